"""Check, before the first round, that the model fits the data and the loss."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import Tensor

from ..core.formatting import one_line
from ..core.losses import PADDING
from ..core.module_kind import UnsuitableModel
from ..core.outside_parameters import unregistered_layers
from ..core.trial import try_model
from .loss_check import check_loss, classes_hint
from .task import Task

_SAMPLES_TRIED = 8
_AT_ONCE = 2**20
"""Numbers of a vector that are examined at once."""


@torch.no_grad()
def check_fit(task: Task) -> None:
    """Refuse a model that does not fit the data or the loss, by a few samples.

    Raises:
        ValueError: If weights or samples are not finite, the model or the loss fails, or labels and outputs disagree.
    """
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
    for tested in _test_inputs(task):
        _outputs(
            task, task.inputs(tested[_extremes(tested, None, task).repeat(task.model.least_rows).to(tested.device)])
        )
    if outputs.ndim == 0 or len(outputs) != len(inputs):
        raise ValueError(
            f"Cannot train the model because it must return a tensor with a row per sample, got {tuple(outputs.shape)}"
        )
    more = torch.linspace(0, int(task.data.offsets[-1]) - 1, _SAMPLES_TRIED).long()
    with _model_errors(task, inputs):
        some = task.samples(torch.cat([entries, more]).to(task.model.device))[0]
        try_model(task.model, some, {int(task.smallest_batches.min()), task.largest_batch})
    _check_smallest_batch(task, inputs, targets)
    _check_named_loss(task, outputs, targets)
    check_loss(task)


def _check_named_loss(task: Task, outputs: Tensor, targets: Tensor) -> None:
    """Refuse outputs and targets that a built-in loss does not take."""
    if task.loss.named == "cross_entropy":
        _check_labels(task, outputs, targets)
    elif task.loss.named is not None and outputs.shape != targets.shape:
        column = tuple(outputs.shape) == (*targets.shape, 1)
        hint = "; squeeze the model's output, outputs.squeeze(-1), or use targets of shape (n, 1)" if column else ""
        raise ValueError(
            f"Cannot train the model because its output has shape {tuple(outputs.shape)} and the targets "
            f"{tuple(targets.shape)}; for {task.loss.name!r} they must agree{hint}"
        )
    if task.loss.named == "bce" and not all(bool(((y >= 0) & (y <= 1)).all()) for _, y in task.data.all_targets()):
        raise ValueError("Cannot use bce because some targets are not in [0, 1]; use loss='mse'")


def _check_smallest_batch(task: Task, inputs: Tensor, targets: Tensor) -> None:
    """Refuse batches that BatchNorm layers cannot normalise, or whose axis the model removes."""
    sizes = task.smallest_batches
    client = task.data.label(int(sizes.argmin()))
    if int(sizes.min()) >= task.model.least_batch:
        if int(sizes.min()) == 1:
            _check_single_sample(task, inputs, targets, client)
        return
    raise ValueError(
        f"Cannot train on a batch of one sample (client {client}) because BatchNorm has one number per channel there, "
        "whose variance is not defined; use another 'batch_size', local_steps in place of local_epochs, "
        "clients with at least two samples, or batchnorm='group'"
    )


def _check_single_sample(task: Task, inputs: Tensor, targets: Tensor, client: str) -> None:
    """Refuse a model that removes the axis of a single sample, if the loss needs it."""
    with _model_errors(task, inputs):
        several, one = (task.model.trace(task.model.initial(), inputs[:n]).outputs for n in (2, 1))
    if one.shape == (1, *several.shape[1:]):
        return
    try:
        with torch.enable_grad():
            leaf = one.detach().clone().requires_grad_()
            torch.autograd.grad(task.loss.mean(leaf, targets[:1]), leaf)
    except Exception as error:  # whatever a user's loss raises
        raise ValueError(
            f"Cannot train on a batch of one sample (client {client}) because the model returns a tensor of shape "
            f"{tuple(one.shape)} for it instead of {(1, *several.shape[1:])}; use squeeze(1) or flatten(1), which keep "
            "the axis of the samples"
        ) from error


def _test_inputs(task: Task) -> list[Tensor]:
    """Return the inputs of the test set, and of clients' test sets that are not among the training inputs."""
    data = task.data
    own = [] if data.tests is None or data.tests.x is data.x else [data.tests.x]
    return [*([] if data.test is None else [data.test[0]]), *own]


def _outputs(task: Task, inputs: Tensor) -> Tensor:
    with _model_errors(task, inputs), task.model.evaluation_mode():
        return task.model(task.model.initial(), inputs)


@contextmanager
def _model_errors(task: Task, inputs: Tensor) -> Iterator[None]:
    """Attribute an error to the model and the shape of its inputs."""
    try:
        yield
    except UnsuitableModel:
        raise
    except Exception as error:  # whatever a user's forward raises, it is about these inputs
        layout = task.data.layout
        text = one_line(repr(error) if isinstance(error, KeyError) else str(error))
        what = f"samples of shape {tuple(inputs.shape[1:])} ({inputs.dtype})" if layout is None else f"inputs {layout}"
        hint = "" if inputs.is_floating_point() or task.data.layout is not None else _as_numbers(task, inputs)
        if (name := unregistered_layers(task.model.module)) is not None:
            hint = f"; its attribute '{name}' holds layers that are no submodules; use nn.ModuleList or nn.ModuleDict"
        raise ValueError(f"Cannot run the model on {what} because it fails there: {text}{hint}") from error


@torch.no_grad()
def _as_numbers(task: Task, inputs: Tensor) -> str:
    """Return how to give a model real numbers, if it accepts those in place of integers."""
    try:
        with task.model.evaluation_mode():
            task.model(task.model.initial(), inputs.to(task.model.dtype))
    except Exception:  # whatever a user's forward raises
        return ""
    return "; use real numbers, x.astype('float32'), or data.declare(normalize=fm.Normalize(mean=0, std=1))"


def _extremes(x: Tensor, index: Tensor | None, task: Task) -> Tensor:
    """Return the samples with the smallest and the largest value, if values are indices of an embedding."""
    if (layout := task.data.layout) is not None:
        alone = replace(task, data=replace(task.data, layout=None))
        return torch.cat([_extremes(v, index, alone) for v in layout.unpack(x).values()])
    if x.dtype == torch.bool:
        return torch.zeros(1, dtype=torch.int64)
    if x.is_floating_point() or task.data.normalize is not None:
        return torch.zeros(1, dtype=torch.int64)
    rows = x.flatten(1) if x.ndim > 1 else x[:, None]
    low, high = rows.amin(1).long(), rows.amax(1).long()
    if index is not None:
        low, high = low[index], high[index]
    return torch.stack([low.argmin(), high.argmax()]).cpu()


def _check_finite(task: Task) -> None:
    """Refuse weights that are not finite, and samples that are not finite in the run's dtype."""
    if not all(bool(part.isfinite().all()) for part in task.model.initial().split(_AT_ONCE)):
        raise ValueError("Cannot train the model because its initial weights are not finite; use a new model")
    most, data = torch.finfo(task.model.dtype).max, task.data
    own = () if data.tests is None or data.tests.x is data.x else (data.tests.x, data.tests.y)
    for part, pair in (("training", (data.x, data.y)), ("test", data.test or ()), ("client test", own)):
        inputs = [v for x in pair[:1] for v in data.layout.unpack(x).values()] if data.layout is not None else pair[:1]
        for v in (*inputs, *pair[1:]):
            if not v.is_floating_point():
                continue
            largest = max((float(end.double().abs()) for end in torch.aminmax(v)), key=lambda w: (math.isnan(w), w))
            if not largest <= most:
                raise ValueError(
                    f"Cannot train on the {part} samples because they hold {largest:.3g}, which is no number of "
                    f"{str(task.model.dtype).removeprefix('torch.')}; use other samples or dtype=torch.float64"
                )


def _as_classes(outputs: Tensor, targets: Tensor) -> str:
    """How targets that hold classes in another form become class numbers; "" if they are none."""
    if targets.shape == outputs.shape and targets.ndim > 1 and bool((targets.sort(-1).values[..., :-1] == 0).all()):
        return "y.argmax(-1) in place of one-hot targets"
    whole = not targets.is_floating_point() or bool((targets % 1 == 0).all())
    if whole and targets.ndim == outputs.ndim > 1 and targets.shape[-1] == 1:
        return "y.squeeze(-1)" + (".long()" if targets.is_floating_point() else "")
    return "y.long() where they number classes" if whole and targets.is_floating_point() else ""


def _check_labels(task: Task, outputs: Tensor, targets: Tensor) -> None:
    if targets.is_floating_point():
        use = _as_classes(outputs, targets)
        raise ValueError(
            f"Cannot use cross_entropy because the targets are not class numbers; use loss='mse'{use and ', or ' + use}"
        )
    if outputs.ndim != targets.ndim + 1:
        use = _as_classes(outputs, targets)
        raise ValueError(
            f"Cannot train the model because its output has shape {tuple(outputs.shape)} where labels of shape "
            f"{tuple(targets.shape)} need one more axis, of classes{use and '; use ' + use}"
        )
    if (hint := classes_hint(outputs, targets)) is not None:
        raise ValueError(
            f"Cannot train the model because its output has shape {tuple(outputs.shape)} for targets of shape "
            f"{tuple(targets.shape)}; {hint}"
        )
    for part, y in task.data.all_targets():
        y = y.to(torch.int64)
        y = y.where(y != PADDING, 0)
        low, high, classes = int(y.min()), int(y.max()), outputs.shape[1]
        if low < 0:
            raise ValueError(f"Cannot train the model because {part} labels must be ≥ 0, got {low}")
        if high >= classes:
            raise ValueError(
                f"Cannot train the model because it has {classes} outputs and {part} labels go up to {high}; "
                f"use a model with at least {high + 1} classes"
            )
