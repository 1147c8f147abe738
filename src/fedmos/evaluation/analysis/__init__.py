"""Measures of a federation and of a selector: what the papers' theorems speak of, computed."""

from .heterogeneity import Heterogeneity, heterogeneity
from .sampling import Sampling, SkewBounds, draw_weights, sampling_variance, selection_skew, skew_bounds

__all__ = [
    "Heterogeneity",
    "Sampling",
    "SkewBounds",
    "draw_weights",
    "heterogeneity",
    "sampling_variance",
    "selection_skew",
    "skew_bounds",
]
