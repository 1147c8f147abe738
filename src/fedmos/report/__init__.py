"""Reports and figures of runs and comparisons."""
