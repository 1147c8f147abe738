"""Checks before the first round: whether the options of a run fit together."""

from __future__ import annotations

import logging
import math
import warnings
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import cache

import torch

from ..codecs.codec import Codec
from ..codecs.compose import coding_of
from ..codecs.links import describe_link
from ..codecs.own import counted_bytes
from ..core.batch_losses import Batch
from ..core.declared_fields import names_of
from ..core.formatting import format_value
from ..core.history import METRICS
from ..core.metric_names import is_client_metric, target_rule
from ..core.precision import Precision
from ..core.schedules import factor_of
from ..core.validation import require, suggest
from ..engine.cohort_size import cohort_size, over_selecting
from ..engine.lr_schedule import decayed
from ..engine.misspelt_names import misspelt_sentences
from ..engine.simulated_clock import Clock
from .asynchronous import check_buffer
from .hostile import hostile_clients
from .robust import check_aggregation
from .spec import RunSpec

_log = logging.getLogger("fedmos")

_CHECKED_ROUNDS = 10_000
"""Rounds for which a schedule of the step size is evaluated before the first one."""

Located = Callable[[str], AbstractContextManager[None]]
"""Returns a context in which errors are attributed to a part of the configuration."""


def check_parts(spec: RunSpec, located: Located = lambda where: nullcontext(), where: str = "") -> None:
    """Refuse a federation that does not suit the selection, the availability, the system or the step size.

    `located` gets the name of the part that is checked; `where` is put before the names of algorithm and selection.
    """
    N = len(spec.data)
    _warn_of_misspelt_names(spec)
    _warn_of_counted_bytes(spec)
    _warn_of_narrower_parameters(spec)
    with located("data"):
        spec.data.validate()
        _warn_of_rounding(spec)
    with located(f"{where}selection"):
        _check_selection(spec)
    if spec.availability is not None:
        with located("availability"):
            spec.availability.validate(N)
    if spec.system is not None:
        with located("system"):
            if spec.buffer is None:
                over_selecting(spec.selection, spec.system, N)
            Clock(spec.system, N, spec.seed)
    with located(f"{where}buffer"):
        check_buffer(spec)
    with located(f"{where}aggregation"):
        check_aggregation(spec, cohort_size(spec.selection, spec.system, N, spec.buffer))
    with located(f"{where}attack"):
        hostile_clients(spec)
    if callable(spec.lr_decay):
        with located(""):
            for t in _scheduled_rounds(spec):
                factor_of(spec.lr_decay, t)
    with located(f"{where}algorithm"):
        _check_step_size(spec)


def _check_selection(spec: RunSpec) -> None:
    """Refuse a selection that does not fit the federation, or reads losses that clients cannot report."""
    spec.selection.validate(len(spec.data))
    if isinstance(spec.loss, Batch) and "start_squared_loss" in spec.selection.reports:
        raise ValueError(
            f"Cannot select with {type(spec.selection).__name__} because it needs losses of single samples, which "
            f"{spec.loss.__name__}, a loss of the whole batch, does not have; use another selection"
        )
    if "x" not in names_of(spec.algorithm.down) and any(v.startswith("start_") for v in spec.selection.reports):
        raise ValueError(
            f"Cannot select with {type(spec.selection).__name__} because its clients report losses at x, which "
            f"{type(spec.algorithm).__name__} does not send them; use another selection"
        )
    coded = any(vector.name == "x" for vector in coding_of(spec.composed_algorithm).down)
    if coded and any(name.startswith("start_") for name in spec.selection.reports):
        raise ValueError(
            f"Cannot select with {type(spec.selection).__name__} because its clients report losses at x, of which "
            f"downlink={describe_link(spec.downlink)} sends them an approximation; use another selection"
        )


def _warn_of_misspelt_names(spec: RunSpec) -> None:
    options = (spec.algorithm, spec.selection, spec.local, spec.uplink, spec.downlink, spec.aggregation)
    parts = [part for option in options for part in (option if isinstance(option, tuple) else (option,))]
    for part in (*parts, *spec.callbacks):
        for sentence in misspelt_sentences(part):
            _warn_once(sentence)


def _warn_of_counted_bytes(spec: RunSpec) -> None:
    """Warn of codecs of the user's whose `nbytes` is not that of the fields that they return."""
    coding = coding_of(spec.composed_algorithm)
    size = sum(p.numel() for p in spec.trained_model.parameters() if p.requires_grad)
    for codec in dict.fromkeys(vector.codec for vector in (*coding.up, *coding.down)):
        counted, sent = counted_bytes(codec, size, spec.dtype), Codec.nbytes(codec, size, spec.dtype)
        if counted != sent:
            _warn_once(
                f"{type(codec).__name__}: 'nbytes' counts {counted} bytes of a vector of {size} numbers, and the "
                f"fields that it returns have {sent}; records have the former"
            )


def _warn_of_narrower_parameters(spec: RunSpec) -> None:
    """Warn of a model in float64 that is trained in float32."""
    if spec.dtype == torch.float32 and any(p.dtype == torch.float64 for p in spec.trained_model.parameters()):
        _warn_once(
            "The parameters of the model are float64, and the run trains in float32; use dtype=torch.float64 to keep "
            "their precision"
        )


@cache
def _warn_once(sentence: str) -> None:
    _log.warning(sentence)


def _warn_of_rounding(spec: RunSpec) -> None:
    """Warn of integers that the run's dtype rounds: those that are normalised, and those in a float64 table."""
    data, dtype = spec.data, spec.dtype
    integers = data.normalize is not None and data.x.dtype in (torch.int32, torch.int64)
    table = data.encoding is not None and data.x.dtype == torch.float64 and dtype != torch.float64
    if not (integers or table):
        return
    whole = data.x if integers else data.x[data.x == data.x.round()]
    changed = (whole.to(dtype).to(torch.float64) != whole.to(torch.float64)).nonzero()
    if len(changed):
        warnings.warn(
            f"The integers of the inputs are rounded in {str(dtype).removeprefix('torch.')}, e.g. "
            f"{int(whole[tuple(changed[0])])}; use dtype=torch.float64, or smaller numbers",
            stacklevel=2,
        )


def _check_step_size(spec: RunSpec) -> None:
    """Refuse a step size that overflows in some round, by a factor above one or in the run's dtype."""
    decay, lr = spec.lr_decay, decayed(spec.algorithm.lr, spec.lr_decay)
    for t in _scheduled_rounds(spec):
        value = lr(int(t))
        if not math.isfinite(value) or value > torch.finfo(spec.dtype).max:
            raise ValueError(
                f"{type(spec.algorithm).__name__}: 'lr' must stay finite in {str(spec.dtype).removeprefix('torch.')} "
                f"over {spec.rounds} rounds, got {format_value(spec.algorithm.lr)} with lr_decay {format_value(decay)}"
            )


def _scheduled_rounds(spec: RunSpec) -> Iterable[int]:
    """Return the rounds whose step sizes are checked: all of a schedule up to a bound, else extreme ones."""
    first, last = 0, spec.rounds - 1
    if callable(spec.lr_decay):  # in later rounds, the run stops at a factor that is no number ≥ 0
        return (*range(min(spec.rounds, _CHECKED_ROUNDS)), last)
    return (first, last, *(spec.lr_decay if isinstance(spec.lr_decay, Mapping) else ()))


def find_device(device: str | torch.device) -> torch.device:
    """Return the device of that name if this machine has it."""
    if isinstance(device, str) and device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        if not isinstance(device, str | torch.device):
            raise TypeError
        chosen = torch.device(device)
        torch.zeros(1, device=chosen).item()  # fails on a "meta" device
    except (RuntimeError, AssertionError, TypeError) as error:
        raise ValueError(
            f"run: 'device' must be 'auto' or a device of this machine, got {format_value(device)}"
        ) from error
    return chosen


def check_precision(precision: Precision, dtype: torch.dtype, device: torch.device) -> None:
    """Refuse a precision that the dtype or the device does not have."""
    if precision is not None and dtype != torch.float32:
        raise ValueError(f"run: 'precision' must be None where 'dtype' is {dtype}, got {precision!r}")
    if precision == "tf32" and device.type != "cuda":
        raise ValueError("run: 'precision' must be None or 'bf16' on a CPU, got 'tf32'")


def check_target(target: Mapping[str, float] | None, measurable: list[str]) -> Mapping[str, float]:
    """Return the target as a dictionary; refuse metrics that the federation does not measure."""
    if target is None:
        return {}
    if not isinstance(target, Mapping):
        raise ValueError(f"run: 'target' must map metrics to numbers, got {format_value(target)}")
    for metric, value in target.items():
        if metric not in measurable:
            got = f"{format_value(metric)}{_metric_hint(str(metric), measurable)}"
            raise ValueError(f"run: 'target' must name one of {', '.join(measurable)}, got {got}")
        require("run", f"target[{metric!r}]", value, target_rule(metric))
    return {metric: float(value) for metric, value in target.items()}


def check_metric(owner: str, option: str, metric: str | None, measurable: list[str]) -> None:
    """Refuse an option of `owner` that names a metric which the federation does not measure."""
    if metric is not None and metric not in measurable:
        got = f"{format_value(metric)}{_metric_hint(str(metric), measurable)}"
        raise ValueError(f"{owner}: '{option}' must be one of {', '.join(measurable)}, got {got}")


def _metric_hint(metric: str, measurable: list[str]) -> str:
    """Say why a metric is not measured, or suggest a similar name."""
    if metric in METRICS:
        return " (this federation cannot measure it)"
    if is_client_metric(metric) and not any(map(is_client_metric, measurable)):
        return "; use evaluate_clients=1"
    return suggest(metric, measurable)
