"""`fm.check`: a battery of checks for algorithms, selectors and local optimisers."""
