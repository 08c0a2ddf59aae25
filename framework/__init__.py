"""Gearshift: a training framework in which every GPU technique is one switch whose worth is measured."""
