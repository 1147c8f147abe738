"""Partitions: schemes that divide the samples of a data set among clients, without copying them.

Constructors raise ValueError if a parameter is out of range.

Example:
    >>> digits = fm.datasets.load("digits")
    >>> digits.partition(fm.partition.Dirichlet(alpha=0.1), clients=20)
    FederatedData(20 clients, 1438 samples)
"""

from .by_class import ByClass, Shards
from .dirichlet import Dirichlet, DirichletByClass
from .even import IID, QuantitySkew
from .fixed import Fixed
from .flower import FromFlower
from .natural import Natural
from .split import ClientSplit, Partition

Split = ClientSplit
"""The earlier name of `ClientSplit`."""

__all__ = [
    "IID",
    "ByClass",
    "ClientSplit",
    "Dirichlet",
    "DirichletByClass",
    "Fixed",
    "FromFlower",
    "Natural",
    "Partition",
    "QuantitySkew",
    "Shards",
    "Split",
]
