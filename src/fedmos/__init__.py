"""fedmos: federated learning for skewed data and scarce communication."""

import os
import sys

# MKL reads this variable when it is first used. Without it, on some CPUs, the rounding of a product depends on the
# memory alignment of its factors, and so a client's result on which clients share its chunk.
os.environ.setdefault("MKL_CBWR", "AUTO")

from . import aggregation, attacks, codecs, leakage, local, models, privacy
from .algorithm import Algorithm, ClientContext, Context, Gradient, Layers
from .algorithms import *  # noqa: F403
from .algorithms import __all__ as _algorithms
from .checking.api import check
from .comparison.api import compare, tune
from .comparison.plot import plot
from .config.registry import algorithms, availabilities, partitions, selectors
from .core import batch_losses as losses
from .core import metric_functions as metrics
from .core import schedules
from .core.callback import Callback
from .core.history import History, Record
from .core.personal_parameters import Personal
from .core.version import __version__
from .data import Augment, Dataset, Encoding, FederatedData, Normalize, datasets, partition
from .engine.buffer import Buffer
from .engine.round_results import DivergenceError
from .engine.simulated_clock import Constant, LogNormal, PerClient, System
from .evaluation import analysis
from .evaluation import diagnostics as _diagnostics
from .evaluation.diagnostics import Diagnostics
from .evaluation.evaluate_clients import EvaluateClients
from .run import tracking as _tracking
from .run.api import run
from .run.early_stopping import EarlyStopping
from .run.many import run_many
from .run.result import Result
from .selection import *  # noqa: F403
from .selection import __all__ as _selectors
from .selection.selector import Selector, View

Table = PerClient
"""The earlier name of `PerClient`."""

# Public paths of modules that lie deeper.
_modules = {
    "analysis": analysis,
    "diagnostics": _diagnostics,
    "losses": losses,
    "metrics": metrics,
    "schedules": schedules,
    "tracking": _tracking,
}
for _name, _module in _modules.items():
    sys.modules[f"{__name__}.{_name}"] = globals()[_name] = _module

__all__ = [
    *_algorithms,
    *_selectors,
    "Algorithm",
    "Augment",
    "Buffer",
    "Callback",
    "ClientContext",
    "Constant",
    "Context",
    "Dataset",
    "Diagnostics",
    "DivergenceError",
    "EarlyStopping",
    "Encoding",
    "EvaluateClients",
    "FederatedData",
    "Gradient",
    "History",
    "Layers",
    "LogNormal",
    "Normalize",
    "PerClient",
    "Personal",
    "Record",
    "Result",
    "Selector",
    "System",
    "Table",
    "View",
    "__version__",
    "aggregation",
    "algorithms",
    "analysis",
    "attacks",
    "availabilities",
    "check",
    "codecs",
    "compare",
    "datasets",
    "local",
    "leakage",
    "losses",
    "metrics",
    "models",
    "partition",
    "partitions",
    "plot",
    "privacy",
    "run",
    "run_many",
    "schedules",
    "selectors",
    "tune",
]
