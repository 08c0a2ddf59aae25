"""Data: one file per source of samples, each a map-style dataset of plain tensors with a typed constructor."""
