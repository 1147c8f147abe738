"""The algorithms, one file per family.

Constructors raise ValueError if a hyper-parameter is out of range. In the examples of the docstrings, `data` is a small
`FederatedData` and `model` a network for its samples.
"""

from .fedavg import FedAvg, FedProx
from .fedcm import FedADC, FedCM
from .feddyn import AdaBest, FedDyn
from .fedmos import FedMoS
from .fedopt import FedAdagrad, FedAdam, FedAvgM, FedYogi
from .ghbm import GHBM, FedHBM, LocalGHBM
from .mime import Mime, MimeLite
from .scaffold import Scaffold
from .storm import FedLomo, Stem

__all__ = [
    "GHBM",
    "AdaBest",
    "FedADC",
    "FedAdagrad",
    "FedAdam",
    "FedAvg",
    "FedAvgM",
    "FedCM",
    "FedDyn",
    "FedHBM",
    "FedLomo",
    "FedMoS",
    "FedProx",
    "FedYogi",
    "LocalGHBM",
    "Mime",
    "MimeLite",
    "Scaffold",
    "Stem",
]
