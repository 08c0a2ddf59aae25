"""The models: plain modules with typed constructors, one file each, free of configuration and training code."""
