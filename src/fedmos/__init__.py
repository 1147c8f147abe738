"""fedmos: federated learning for skewed data and scarce communication."""

__version__ = "0.1.0"

import os

# Read by MKL when it is first used. Without it products round by where in memory their factors lie, on some CPUs, and
# so a client's by who shares its chunk.
os.environ.setdefault("MKL_CBWR", "AUTO")

from . import analysis, models
from .algorithm import Algorithm, ClientContext, Context, Gradient
from .algorithms import *  # noqa: F403
from .algorithms import __all__ as _algorithms
from .callbacks import Callback
from .catalogue import algorithms, availabilities, partitions, selectors
from .data import Augment, Dataset, FederatedData, Normalize, datasets, partition
from .diagnostics import Diagnostics
from .engine.rounds import DivergenceError
from .history import History, Record
from .many import run_many
from .result import Result
from .selection import *  # noqa: F403
from .selection import __all__ as _selectors
from .selection.selector import Selector, View
from .simulation import run
from .system import Constant, LogNormal, System, Table

__all__ = [
    *_algorithms,
    *_selectors,
    "Algorithm",
    "Augment",
    "Callback",
    "ClientContext",
    "Constant",
    "Context",
    "Dataset",
    "Diagnostics",
    "DivergenceError",
    "FederatedData",
    "Gradient",
    "History",
    "LogNormal",
    "Normalize",
    "Record",
    "Result",
    "Selector",
    "System",
    "Table",
    "View",
    "algorithms",
    "analysis",
    "availabilities",
    "datasets",
    "models",
    "partition",
    "partitions",
    "run",
    "run_many",
    "selectors",
]
