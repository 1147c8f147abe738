"""Data sets, partitions and federations."""

from . import datasets, partition
from .augment import Augment
from .dataset import Dataset
from .federated import FederatedData
from .normalize import Normalize

__all__ = ["Augment", "Dataset", "FederatedData", "Normalize", "datasets", "partition"]
