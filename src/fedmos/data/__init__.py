"""Data sets, partitions and federations."""

from . import datasets, partition
from .federated import FederatedData, Normalize

__all__ = ["FederatedData", "Normalize", "datasets", "partition"]
