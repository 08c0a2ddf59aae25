"""The stages of `build`: with it the only files that read the switches."""
