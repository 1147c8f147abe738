"""Engines: how a cohort's local work is computed. What is computed, a round, is in `rounds`."""

from .plan import choose_plan

__all__ = ["choose_plan"]
