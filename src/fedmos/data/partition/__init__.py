"""Ways to divide a data set among clients. A partition says who gets which samples; nothing is copied."""

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
