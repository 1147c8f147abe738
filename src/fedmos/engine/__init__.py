"""Engines: how a cohort's local work is computed. What is computed, a round, is in `rounds`."""
