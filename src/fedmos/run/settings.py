"""What `fm.run` may be told, each by itself; whether the parts fit together is asked in `checks`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from ..algorithm import Algorithm
from ..core.callback import Callback
from ..core.formatting import format_value
from ..core.history import METRICS
from ..core.metric_names import target_rule
from ..core.precision import Precision
from ..core.validation import (
    LARGE,
    LOCAL,
    Rule,
    boolean,
    count,
    non_negative,
    none,
    one_of,
    positive,
    require,
    suggest,
    whole_number,
)
from ..core.validation import seed as seed_rule
from ..data.federated import FederatedData
from ..engine.simulated_clock import System
from ..selection.availability import Availability
from ..selection.selector import Selector
from ..storage.checkpoint_schedule import is_every

_DTYPES = (torch.float32, torch.float64)

_KINDS = {
    "model": (nn.Module, "a torch.nn.Module"),
    "data": (FederatedData, "a fedmos.FederatedData"),
    "algorithm": (Algorithm, "a fedmos.Algorithm"),
    "selection": (Selector, "a fedmos.Selector"),
    "availability": (Availability, "a fedmos.Availability or None"),
    "system": (System, "a fedmos.System or None"),
}


def check_kinds(**given: Any) -> None:
    for name, value in given.items():
        kind, words = _KINDS[name]
        if not isinstance(value, kind):
            got = f"the class {value.__name__} itself" if isinstance(value, type) else type(value).__name__
            raise ValueError(f"run: '{name}' must be {words}, got {got}")
    if "algorithm" in given:
        require(type(given["algorithm"]).__name__, "lr", getattr(given["algorithm"], "lr", None), positive)


def _is_decay(v: Any) -> bool:
    if isinstance(v, Mapping):
        return all(whole_number.fault(key) is None and positive.test(factor) for key, factor in v.items())
    return positive.test(v)


_RULES = {
    "rounds": count,
    "local_steps": count.up_to(LOCAL) | none,
    "local_epochs": count.up_to(LOCAL) | none,
    "batch_size": count | none,
    "lr_decay": Rule("> 0, or factors > 0 by round", _is_decay),
    "weight_decay": non_negative.up_to(LARGE),
    "clip": positive.up_to(LARGE) | none,
    "eval_every": count,
    "seed": seed_rule,
    "dtype": one_of(*_DTYPES),
    "precision": one_of("tf32", "bf16") | none,
    "engine": one_of("auto", "loop", "batched"),
    "resume": boolean,
    "checkpoint_every": is_every,
    "on_bad_update": one_of("stop", "drop"),
    "callbacks": Rule("a sequence of callbacks", lambda v: isinstance(v, Sequence)),
    "out": Rule("a path or None", lambda v: v is None or isinstance(v, str | os.PathLike)),
}


def check_settings(given: Mapping[str, Any]) -> None:
    for name, rule in _RULES.items():
        require("run", name, given[name], rule)
    for callback in given["callbacks"]:
        if isinstance(callback, type) or not (isinstance(callback, Callback) or callable(callback)):
            raise ValueError(f"run: 'callbacks' must be Callback objects or functions, got {format_value(callback)}")
    if (given["local_steps"] is None) == (given["local_epochs"] is None):
        got = "both" if given["local_steps"] is not None else "neither"
        raise ValueError(f"run: exactly one of 'local_steps' and 'local_epochs' must be given, got {got}")
    if given["out"] is None and (given["resume"] or given["checkpoint_every"] is not None):
        raise ValueError("run: 'out' must be a folder where 'resume' or 'checkpoint_every' is given, got None")


def check_precision(precision: Precision, dtype: torch.dtype, device: torch.device) -> None:
    if precision is not None and dtype != torch.float32:
        raise ValueError(f"run: 'precision' must be None where 'dtype' is {dtype}, got {precision!r}")
    if precision == "tf32" and device.type != "cuda":
        raise ValueError("run: 'precision' must be None or 'bf16' on a CPU, got 'tf32'")


def find_device(device: str | torch.device) -> torch.device:
    """The device of that name, if this machine has it."""
    if isinstance(device, str) and device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        if not isinstance(device, str | torch.device):
            raise TypeError
        chosen = torch.device(device)
        torch.zeros(1, device=chosen).item()  # which a "meta" device has not
    except (RuntimeError, AssertionError, TypeError) as error:
        raise ValueError(
            f"run: 'device' must be 'auto' or a device of this machine, got {format_value(device)}"
        ) from error
    return chosen


def check_target(target: Mapping[str, float] | None, known: list[str]) -> Mapping[str, float]:
    if target is None:
        return {}
    if not isinstance(target, Mapping):
        raise ValueError(f"run: 'target' must map metrics to numbers, got {format_value(target)}")
    for metric, value in target.items():
        if metric not in known:
            hint = " (this federation cannot measure it)" if metric in METRICS else suggest(str(metric), known)
            raise ValueError(f"run: 'target' must name one of {', '.join(known)}, got {format_value(metric)}{hint}")
        require("run", f"target[{metric!r}]", value, target_rule(metric))
    return {metric: float(value) for metric, value in target.items()}
