"""Checks before the first round: whether the options of a run fit together, and the model fits the data."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor

from ..core.formatting import format_value, one_line
from ..core.history import METRICS
from ..core.losses import PADDING
from ..core.metric_names import target_rule
from ..core.precision import Precision
from ..core.validation import require, suggest
from ..engine.lr_schedule import decayed
from ..engine.sampling import over_selecting
from ..engine.simulated_clock import Clock
from ..engine.task import Task
from .spec import RunSpec

Located = Callable[[str], AbstractContextManager[None]]
"""Returns a context in which errors are attributed to a part of the configuration."""


def check_parts(spec: RunSpec, located: Located = lambda where: nullcontext(), where: str = "") -> None:
    """Refuse a federation that does not suit the selection, the availability, the system or the step size.

    `located` gets the name of the part that is checked; `where` is put before the names of algorithm and selection.
    """
    N = len(spec.data)
    with located("data"):
        spec.data.validate()
    with located(f"{where}selection"):
        spec.selection.validate(N)
    if spec.availability is not None:
        with located("availability"):
            spec.availability.validate(N)
    if spec.system is not None:
        with located("system"):
            over_selecting(spec.selection, spec.system, N)
            Clock(spec.system, N, spec.seed)
    with located(f"{where}algorithm"):
        _check_step_size(spec)


def _check_step_size(spec: RunSpec) -> None:
    """Refuse a step size that overflows in some round, by a factor above one or in the run's dtype."""
    decay, lr = spec.lr_decay, decayed(spec.algorithm.lr, spec.lr_decay)
    for t in (0, spec.rounds - 1, *(decay if isinstance(decay, Mapping) else ())):
        value = lr(int(t))
        if not math.isfinite(value) or value > torch.finfo(spec.dtype).max:
            raise ValueError(
                f"{type(spec.algorithm).__name__}: 'lr' must stay finite in {str(spec.dtype).removeprefix('torch.')} "
                f"over {spec.rounds} rounds, got {format_value(spec.algorithm.lr)} with lr_decay {format_value(decay)}"
            )


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
            hint = " (this federation cannot measure it)" if metric in METRICS else suggest(str(metric), measurable)
            raise ValueError(
                f"run: 'target' must name one of {', '.join(measurable)}, got {format_value(metric)}{hint}"
            )
        require("run", f"target[{metric!r}]", value, target_rule(metric))
    return {metric: float(value) for metric, value in target.items()}


@torch.no_grad()
def check_fit(task: Task) -> None:
    """Run a few samples through model and loss, and compare the labels with the outputs."""
    if task.data.augment is not None and task.data.x.ndim != 4:
        raise ValueError(
            f"Cannot augment samples of shape {tuple(task.data.x.shape[1:])} because they are not images (channels, "
            "height, width)"
        )
    _check_finite(task)
    # The last sample of some clients and the first of the next: classes differ there if they do anywhere.
    edges = task.data.offsets[1:3]
    entries = torch.cat([edges - 1, edges]).clamp(max=int(task.data.offsets[-1]) - 1)
    entries = torch.cat([entries, _extremes(task.data.x, task.data.index, task)]).unique()
    inputs, targets = task.samples(entries.to(task.model.device))
    outputs = _outputs(task, inputs)
    if task.data.test is not None:
        tested = task.data.test[0]
        _outputs(task, task.inputs(tested[_extremes(tested, None, task).to(tested.device)]))
    if not isinstance(outputs, Tensor) or outputs.ndim == 0 or len(outputs) != len(inputs):
        got = tuple(outputs.shape) if isinstance(outputs, Tensor) else type(outputs).__name__
        raise ValueError(f"Cannot train the model because it must return a tensor with a row per sample, got {got}")
    if task.loss.named == "cross_entropy":
        _check_labels(task, outputs, targets)
    elif task.loss.named is not None and outputs.shape != targets.shape:
        raise ValueError(
            f"Cannot train the model because its output has shape {tuple(outputs.shape)} and the targets "
            f"{tuple(targets.shape)}; for {task.loss.name!r} they must agree"
        )
    if task.loss.named == "bce" and not all(bool(((y >= 0) & (y <= 1)).all()) for y in _targets(task)):
        raise ValueError("Cannot use bce because some targets are not in [0, 1]; use loss='mse'")
    try:
        loss, terms = float(task.loss.mean(outputs, targets)), task.loss.each_or_loop(outputs, targets)
    except Exception as error:
        raise ValueError(
            f"Cannot apply the loss to the model's output because it fails there: {one_line(str(error))}"
        ) from error
    if math.isfinite(loss) and abs(loss - float(terms.mean())) > 1e-3 * (1 + abs(loss)):
        raise ValueError(
            f"run: 'loss' must be a mean over the samples of a batch, but on {len(terms)} samples it is {loss:.4g} "
            f"and the mean of its values on each alone {float(terms.mean()):.4g}"
        )


def _outputs(task: Task, inputs: Tensor) -> Any:
    module = task.model.module.eval()
    try:
        return task.model(task.model.initial(), inputs)
    except Exception as error:  # whatever a user's forward raises, it is about these inputs
        raise ValueError(
            f"Cannot run the model on samples of shape {tuple(inputs.shape[1:])} ({inputs.dtype}) because it fails "
            f"there: {one_line(str(error))}"
        ) from error
    finally:
        module.train()


def _extremes(x: Tensor, index: Tensor | None, task: Task) -> Tensor:
    """Entries of the samples with the smallest and the largest number, where those are symbols a model looks up."""
    if x.is_floating_point() or task.data.normalize is not None:
        return torch.zeros(1, dtype=torch.int64)
    rows = x.flatten(1) if x.ndim > 1 else x[:, None]
    low, high = rows.amin(1).long(), rows.amax(1).long()
    if index is not None:
        low, high = low[index], high[index]
    return torch.stack([low.argmin(), high.argmax()]).cpu()


def _targets(task: Task) -> list[Tensor]:
    """Targets of training and testing."""
    data = task.data
    return [data.y if data.index is None else data.y[data.index], *([] if data.test is None else [data.test[1]])]


def _check_finite(task: Task) -> None:
    """Weights that are numbers, and samples that still are in the run's dtype."""
    if not bool(task.model.initial().isfinite().all()):
        raise ValueError("Cannot train the model because its initial weights are not finite; use a new model")
    most, data = torch.finfo(task.model.dtype).max, task.data
    for who, pair in (("training", (data.x, data.y)), ("test", data.test or ())):
        for v in pair:
            if not v.is_floating_point():
                continue
            largest = max((float(end.double().abs()) for end in torch.aminmax(v)), key=lambda w: (math.isnan(w), w))
            if not largest <= most:
                raise ValueError(
                    f"Cannot train on the {who} samples because they hold {largest:.3g}, which is no number of "
                    f"{str(task.model.dtype).removeprefix('torch.')}; use other samples or dtype=torch.float64"
                )


def _check_labels(task: Task, outputs: Tensor, targets: Tensor) -> None:
    if targets.is_floating_point():
        raise ValueError("Cannot use cross_entropy because the targets are not class numbers; use loss='mse'")
    if outputs.ndim != targets.ndim + 1:
        raise ValueError(
            f"Cannot train the model because its output has shape {tuple(outputs.shape)} where labels of shape "
            f"{tuple(targets.shape)} need one more axis, of classes"
        )
    for who, y in zip(("training", "test"), _targets(task), strict=False):
        if y.ndim > 1:
            y = y.to(torch.int64)
            y = y.where(y != PADDING, 0)
        low, high, classes = int(y.min()), int(y.max()), outputs.shape[1]
        if low < 0:
            raise ValueError(f"Cannot train the model because {who} labels must be ≥ 0, got {low}")
        if high >= classes:
            raise ValueError(
                f"Cannot train the model because it has {classes} outputs and {who} labels go up to {high}; "
                f"use a model with at least {high + 1} classes"
            )


@contextmanager
def repeatable(task: Task) -> Iterator[None]:
    """Refuse a model that, while it trains, draws from the global generator or changes its buffers."""
    device, module = task.model.device, task.model.module

    def generators() -> list[Tensor]:
        return [torch.get_rng_state(), *([torch.cuda.get_rng_state(device)] if device.type == "cuda" else [])]

    def buffers() -> list[tuple[int, int]]:
        return [(id(b), b._version) for b in module.buffers()]

    before, held = generators(), buffers()
    yield
    if any(not torch.equal(a, b) for a, b in zip(before, generators(), strict=True)):
        raise ValueError(
            "Cannot train the model because it draws from PyTorch's global generator (functional dropout?), so its "
            "runs would not repeat; use nn.Dropout layers"
        )
    if held != buffers():
        raise ValueError(
            "Cannot train the model because it changes its buffers in training (running statistics?), which clients "
            "would share; use layers without such buffers"
        )
