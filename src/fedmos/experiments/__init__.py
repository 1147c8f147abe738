"""Several runs: comparisons, tuning, searches, reproductions of published tables."""
