"""`fm.compare` and `fm.tune`: comparisons of the user's own objects."""
