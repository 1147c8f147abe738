"""A check that the loss of a batch is the weighted sum over samples that the vectorised engine computes."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..core.formatting import format_value, one_line
from ..core.function_state import function_state
from ..core.losses import LossFunction
from ..core.outside_parameters import leaves
from .inference import evaluation_mode
from .task import Task

_log = logging.getLogger("fedmos")

_BATCH = 256
"""The largest number of samples of a checked batch."""
_TOLERANCE = 1e-3


def check_loss(task: Task) -> None:
    """Compare the loss of several batches, and its gradient, with the weighted sum over their samples.

    Raises:
        ValueError: If the loss fails, is not one number, depends on more than its arguments, or is no such sum; or if a
            loss of the whole batch depends on padding.
    """
    before = function_state(task.loss.computed)
    for entries in _batches(task):
        inputs, targets = task.samples(entries.to(task.model.device))
        with evaluation_mode(task), torch.no_grad():
            outputs = task.model(task.model.initial(), inputs)
        with _explained(task, outputs, targets):
            fault = None if task.loss.batch is not None else _fault(task.loss.returned, outputs, targets)
        if fault is not None:
            raise ValueError(f"run: 'loss' must {fault}")
        with _explained(task, outputs, targets):
            whole = _value_and_gradient(task, outputs, targets, whole=True)
        if task.loss.named is None:
            _check_repeats(task, outputs, targets, whole)
        if task.loss.batch is not None:
            _check_padding(task, outputs, targets, whole)
            continue
        with _explained(task, outputs, targets):
            parts = _value_and_gradient(task, outputs, targets, whole=False)
        if math.isfinite(whole.value) and not _agree(whole, parts):
            raise ValueError(
                _broadcast(task, outputs, targets, parts)
                or f"run: 'loss' must be a mean over the samples of a batch, but on {len(targets)} samples it is "
                f"{whole.value:.4g} and the mean of its values on each alone {parts.value:.4g}, with other gradients; "
                "use fm.losses.Batch(f) for a loss of the whole batch"
            )
    if function_state(task.loss.computed) != before:
        _log.warning(
            "The loss changes variables when it is called. Engines call it in another order and number, so its value "
            "must not depend on them; use a callback, which is called once a round, to change what the loss reads"
        )


class _Loss(NamedTuple):
    """A loss and its gradient with respect to the outputs."""

    value: float
    gradient: Tensor


def _agree(a: _Loss, b: _Loss) -> bool:
    """Whether two losses are equal up to rounding; the first is finite."""
    close = abs(a.value - b.value) <= _TOLERANCE * (1 + abs(a.value))
    return close and float((a.gradient - b.gradient).norm()) <= _TOLERANCE * (1e-6 + float(a.gradient.norm()))


def _check_repeats(task: Task, outputs: Tensor, targets: Tensor, first: _Loss) -> None:
    """Refuse a loss that has another value when it is computed again, or parameters of its own."""
    again = _value_and_gradient(task, outputs, targets, whole=True)
    if math.isfinite(first.value) and not _agree(first, again):
        raise ValueError(
            f"run: 'loss' must depend on its arguments only, but for the same outputs and targets it is "
            f"{first.value:.4g} and then {again.value:.4g}; leave random numbers and counters out of it"
        )
    with torch.enable_grad():
        leaf = outputs.detach().clone().requires_grad_()
        others = [v for v in leaves(task.loss.mean(leaf, targets)) if v is not leaf]
    if others:
        raise ValueError(
            f"Cannot train with the loss {task.loss.name} because it computes with a tensor of shape "
            f"{tuple(others[0].shape)} that has requires_grad, such as a parameter of the loss or of the model, and "
            "clients train parameters of the model by its outputs only; use weight_decay= for a penalty, put "
            "parameters of the loss into the model and return what it needs as outputs, or use requires_grad_(False)"
        )


def _check_padding(task: Task, outputs: Tensor, targets: Tensor, whole: _Loss) -> None:
    """Refuse a loss of a whole batch that takes a mask and depends on samples that are no part of it."""
    if task.loss.batch is None or not task.loss.batch.masked or not math.isfinite(whole.value):
        return
    n, more = len(targets), [0, len(targets) - 1]
    mask = torch.arange(n + len(more), device=outputs.device) < n
    with torch.enable_grad():
        leaf = torch.cat([outputs, outputs[more]]).detach().requires_grad_()
        value = task.loss.batch(leaf, torch.cat([targets, targets[more]]), mask)
        (gradient,) = torch.autograd.grad(value, leaf, allow_unused=True)
    padded = _Loss(float(value), torch.zeros_like(outputs) if gradient is None else gradient[:n])
    if not _agree(whole, padded):
        raise ValueError(
            f"Batch: 'f' must leave samples out where its mask is False, but {task.loss.name} of {n} samples is "
            f"{whole.value:.4g}, and {padded.value:.4g} or with another gradient where two are appended that the mask "
            "leaves out; use the mask, or a function of (outputs, targets)"
        )


def _broadcast(task: Task, outputs: Tensor, targets: Tensor, parts: _Loss) -> str | None:
    """Return the error for a loss that is no mean because outputs and targets are broadcast; None for others."""
    if outputs.numel() != targets.numel() or outputs.shape == targets.shape:
        return None
    try:
        squeezed = float(task.loss.mean(outputs.reshape(targets.shape), targets))
    except Exception:  # whatever the user's loss raises
        return None
    if abs(squeezed - parts.value) > _TOLERANCE * (1 + abs(squeezed)):
        return None
    return (
        f"Cannot train the model because its output has shape {tuple(outputs.shape)} and the targets "
        f"{tuple(targets.shape)}, so that the loss {task.loss.name} compares every sample with every other; use "
        "targets of the shape of the output, or outputs.squeeze(-1) in the model"
    )


@contextmanager
def _explained(task: Task, outputs: Tensor, targets: Tensor) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        hint = _targets_hint(task, outputs, targets)
        raise ValueError(
            f"Cannot apply the loss to the model's output because it fails there: {one_line(str(error))}{hint}"
        ) from error


def _targets_hint(task: Task, outputs: Tensor, targets: Tensor) -> str:
    """Return which targets the loss would take: real numbers in place of classes, or those of the outputs' shape."""
    moved = classes_hint(outputs, targets)
    if moved is not None and _accepts(task, outputs.movedim(-1, 1), targets):
        return f"; {moved}"
    shape = f"targets of shape ({', '.join(['n', *map(str, outputs.shape[1:])])})"
    real, kind = targets.to(outputs.dtype), "that are real numbers, y.astype('float32')"
    if _accepts(task, outputs, real):
        return f"; use targets {kind}"
    if outputs.numel() != targets.numel():
        return ""
    if _accepts(task, outputs, targets.reshape(outputs.shape)):
        return f"; use {shape}"
    return f"; use {shape} {kind}" if _accepts(task, outputs, real.reshape(outputs.shape)) else ""


def classes_hint(outputs: Tensor, targets: Tensor) -> str | None:
    """Say what to do with outputs of sequences or images that have their classes on the last axis, not on axis 1."""
    given, positions = tuple(outputs.shape[1:]), tuple(targets.shape[1:])
    if not positions or given[:-1] != positions or given[1:] == positions:
        return None
    return "put the classes on axis 1, outputs.movedim(-1, 1) in the model or by outputs="


def _accepts(task: Task, outputs: Tensor, targets: Tensor) -> bool:
    """Whether the loss can be computed with these targets."""
    try:
        task.loss.mean(outputs, targets)
    except Exception:  # whatever the user's loss raises
        return False
    return True


def _fault(loss: LossFunction, outputs: Tensor, targets: Tensor) -> str | None:
    """Return what is wrong with the value of a loss; None if it is one number that depends on the outputs."""
    with torch.enable_grad():
        value: Any = loss(outputs.detach().clone().requires_grad_(), targets)
    if not isinstance(value, Tensor):
        hint = "; leave .item() or float() out" if isinstance(value, float) else ""
        return f"return a tensor, got {format_value(value)}{hint}"
    if value.numel() != 1:
        return (
            f"return one number for a batch, got a tensor of shape {tuple(value.shape)} for "
            f"{len(targets)} samples; return its mean"
        )
    if not value.requires_grad:
        return "have a gradient, but what it returns is no differentiable function of the outputs"
    return None


def _value_and_gradient(task: Task, outputs: Tensor, targets: Tensor, whole: bool) -> _Loss:
    """Return the loss and its gradient with respect to the outputs, of the batch or as a sum over its samples."""
    loss = task.loss
    with torch.enable_grad():
        leaf = outputs.detach().clone().requires_grad_()
        if whole:
            value = loss.mean(leaf, targets)
        else:
            counted = torch.ones(len(targets), dtype=torch.bool, device=targets.device)
            weights = counted.to(leaf.dtype) / len(targets)
            if not loss.uniform:
                weights = loss.weights(targets, counted, leaf.dtype)
            value = (weights * loss.each_or_loop(leaf, targets)).sum()
        (gradient,) = torch.autograd.grad(value, leaf, allow_unused=True)
    return _Loss(float(value), torch.zeros_like(outputs) if gradient is None else gradient)


def _batches(task: Task) -> Iterator[Tensor]:
    """Yield entries of batches that together contain every class, or the extremes of every real target."""
    total = int(task.data.offsets[-1])
    B = min(task.batch_size or _BATCH, _BATCH, total)
    if task.loss.named is not None:  # known to be a weighted sum; it is only tried
        yield torch.linspace(0, total - 1, min(B, 8)).long()
        return
    spaced = torch.linspace(0, total - 1, B).long()
    yield spaced
    yield (spaced + max(1, total // (2 * B))) % total
    targets = task.targets_at(torch.arange(total, device=task.data.y.device)).cpu()
    covering = _covering(targets)
    for part in covering.split(max(1, B // 2)):
        yield torch.cat([part, spaced[: B - len(part)]])


def _covering(targets: Tensor) -> Tensor:
    """Return entries of one sample of every class (at most 1,000) or of the extremes of every real target."""
    rows = targets.flatten(1) if targets.ndim > 1 else targets[:, None]
    if targets.is_floating_point() or targets.ndim > 1:
        extremes: Tensor = torch.cat([rows.argmin(0), rows.argmax(0)]).unique()
        return extremes[:1000]
    classes, first = torch.unique(targets, return_inverse=True)
    entries = torch.full((len(classes),), len(targets)).scatter_reduce(
        0, first, torch.arange(len(targets)), "amin", include_self=True
    )
    return entries[:1000]
