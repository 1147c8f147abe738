"""The algorithms, one file per family.

Constructors raise ValueError if a hyper-parameter is out of range. In the examples of the docstrings, `data` is a small
`FederatedData` and `model` a network for its samples.
"""

from .fedavg import FedAvg, FedProx
from .fedcm import FedADC, FedCM
from .feddyn import AdaBest, FedDyn
from .fedmos import FedMoS
from .fednova import FedExP, FedNova
from .fedopt import FedAdagrad, FedAdam, FedAvgM, FedYogi
from .fedswa import FedSWA
from .ghbm import GHBM, FedHBM, LocalGHBM
from .mime import Mime, MimeLite
from .momentum import FedAvgMom, ScaffoldM
from .personal import APFL, Ditto, LocalOnly, PFedMe
from .sam import FedGamma, FedLESAM, FedSMOO, FedSpeed
from .scaffold import Scaffold
from .start import FedACG, FedInit
from .storm import FedLomo, Stem

__all__ = [
    "APFL",
    "GHBM",
    "AdaBest",
    "Ditto",
    "FedACG",
    "FedADC",
    "FedAdagrad",
    "FedAdam",
    "FedAvg",
    "FedAvgM",
    "FedAvgMom",
    "FedCM",
    "FedDyn",
    "FedExP",
    "FedGamma",
    "FedHBM",
    "FedInit",
    "FedLESAM",
    "FedLomo",
    "FedMoS",
    "FedNova",
    "FedProx",
    "FedSMOO",
    "FedSWA",
    "FedSpeed",
    "FedYogi",
    "LocalGHBM",
    "LocalOnly",
    "Mime",
    "MimeLite",
    "PFedMe",
    "Scaffold",
    "ScaffoldM",
    "Stem",
]
