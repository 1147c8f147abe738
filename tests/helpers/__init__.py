"""Shared by tests: reference implementations, problems, generators of inputs, and processes to run."""
