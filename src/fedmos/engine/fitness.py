"""Does the model fit the data? Asked once, before the first round, so that the answer is a sentence."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from ..losses import PADDING
from .task import Task


@torch.no_grad()
def check_fit(task: Task) -> None:
    """Run a few samples through model and loss, and compare the labels with the outputs."""
    if task.data.augment is not None and task.data.x.ndim != 4:
        raise ValueError(
            f"Cannot augment samples of shape {tuple(task.data.x.shape[1:])} because they are not images (channels, "
            "height, width)"
        )
    module = task.model.module.eval()
    # The last sample of some clients and the first of the next: classes differ there if they do anywhere.
    edges = task.data.offsets[1:3]
    entries = torch.cat([edges - 1, edges]).clamp(max=int(task.data.offsets[-1]) - 1).unique()
    inputs, targets = task.samples(entries.to(task.model.device))
    try:
        outputs = task.model(task.model.initial(), inputs)
    except Exception as error:  # whatever a user's forward raises, it is about these inputs
        shape = f"{tuple(inputs.shape[1:])} ({inputs.dtype})"
        raise ValueError(f"Cannot run the model on samples of shape {shape} because it fails there: {error}") from error
    finally:
        module.train()
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
    try:
        loss, terms = float(task.loss.mean(outputs, targets)), task.loss.each_or_loop(outputs, targets)
    except Exception as error:
        raise ValueError(f"Cannot apply the loss to the model's output because it fails there: {error}") from error
    if math.isfinite(loss) and abs(loss - float(terms.mean())) > 1e-3 * (1 + abs(loss)):
        raise ValueError(
            f"run: 'loss' must be a mean over the samples of a batch, but on {len(terms)} samples it is {loss:.4g} "
            f"and the mean of its values on each alone {float(terms.mean()):.4g}"
        )


def _check_labels(task: Task, outputs: Tensor, targets: Tensor) -> None:
    if targets.is_floating_point():
        raise ValueError("Cannot use cross_entropy because the targets are not class numbers; use loss='mse'")
    if outputs.ndim != targets.ndim + 1:
        raise ValueError(
            f"Cannot train the model because its output has shape {tuple(outputs.shape)} where labels of shape "
            f"{tuple(targets.shape)} need one more axis, of classes"
        )
    data = task.data
    used = data.y if data.index is None else data.y[data.index]
    for who, y in (("training", used), ("test", data.test[1] if data.test is not None else used)):
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
