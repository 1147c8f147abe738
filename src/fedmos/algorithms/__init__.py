"""Every algorithm, one file per family."""

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
