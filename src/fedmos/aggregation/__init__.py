"""Aggregation rules: what the server takes in place of the weighted mean of the clients' uploads.

Example:
    >>> rule = fm.aggregation.TrimmedMean(0.2)
    >>> result = fm.run(
    ...     model, data, fm.FedAvg(lr=0.1), fm.Uniform(m=5), rounds=2, local_steps=2, batch_size=8, aggregation=rule
    ... )
"""

from .coordinatewise import Median, TrimmedMean
from .geometric_median import GeometricMedian
from .krum import Krum
from .mean import ClippedMean, Mean
from .rule import Aggregation
from .secure import Secure

__all__ = ["Aggregation", "ClippedMean", "GeometricMedian", "Krum", "Mean", "Median", "Secure", "TrimmedMean"]
