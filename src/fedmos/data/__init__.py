"""Data sets, partitions and federations: the package of `fm.datasets`, `fm.partition` and `fm.FederatedData`."""

from . import datasets, partition
from .augment import Augment
from .dataset import Dataset
from .federated import FederatedData
from .importers.encoding import Encoding
from .normalize import Normalize

__all__ = ["Augment", "Dataset", "Encoding", "FederatedData", "Normalize", "datasets", "partition"]
