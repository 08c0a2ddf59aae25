"""Where the time and the memory of a step go: a few steady steps looked at closely, once in a run."""
