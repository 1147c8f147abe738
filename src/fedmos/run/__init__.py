"""A run from its options to its result."""
