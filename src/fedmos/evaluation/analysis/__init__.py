"""Measures of a federation and of a selector: the quantities of the papers' theorems.

Example:
    >>> p = torch.full((8,), 1 / 8)
    >>> fm.analysis.sampling_variance(fm.MD(m=4), p).total
    0.21875
"""

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
