"""Engines: how a cohort's local work is computed. What is computed, a round, is in `rounds`."""

from .plan import choose_plan, override, resumed_plan
from .work import Plan

__all__ = ["Plan", "choose_plan", "override", "resumed_plan"]
