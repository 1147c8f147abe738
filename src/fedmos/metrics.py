"""Evaluation of a model on everyone's training data and on the test set."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from .algorithm import Vectors
from .engine.graphs import Graphs
from .engine.task import Task
from .losses import per_sample
from .validate import Rule, fraction, number

_SAMPLES_AT_ONCE = 1024
_SCORES_AT_ONCE = 2**26
_RECORDED = 64
"""An evaluation of at most so many batches is recorded as one CUDA graph."""

Metrics = dict[str, float]


def is_loss(metric: str) -> bool:
    """Whether smaller is better."""
    return metric.endswith("loss")


def target_rule(metric: str) -> Rule:
    """What a target for the metric must be."""
    return number if is_loss(metric) else fraction


class Evaluator:
    """Losses and accuracies of a task at given parameters, in evaluation mode.

    train_loss is the objective Σ p_i f_i over all clients. Accuracies exist where targets are class
    numbers and outputs have a score per class; of a sequence, they are the share of its positions
    that are right, padding apart.
    """

    def __init__(self, task: Task) -> None:
        self._task = task
        data = task.data
        self._weight = (data.importance / data.sizes).repeat_interleave(data.sizes).to(task.model.device)
        self._graphs = Graphs(task.model.device) if task.model.device.type == "cuda" else None
        self._at_once: int | None = None

    def __call__(self, x: Tensor) -> Metrics:
        with evaluation(self._task), torch.no_grad():
            if self._at_once is None:
                self._at_once = samples_at_once(self._task, x)
            if self._graphs is None or len(self._weight) > _RECORDED * self._at_once:
                sums = self._measure(x)
            else:
                sums = self._graphs.run("evaluation", self._measure, x)
            values = torch.stack(list(sums.values())).tolist()
            return dict(zip(sums, values, strict=True))

    def _measure(self, x: Tensor) -> Vectors:
        task, at_once = self._task, self._at_once or _SAMPLES_AT_ONCE
        entries = torch.arange(len(self._weight), device=x.device)
        train = self._sums(x, (task.samples(part) for part in entries.split(at_once)), self._weight)
        sums = {f"train_{name}": value for name, value in train.items()}
        if task.data.test is not None:
            inputs, targets = task.data.test
            parts = zip(inputs.split(at_once), targets.split(at_once), strict=True)
            weight = torch.full((len(targets),), 1 / len(targets), dtype=torch.float64, device=x.device)
            test = self._sums(x, ((task.inputs(i), task.targets(t)) for i, t in parts), weight)
            sums["test_loss"] = test["loss"]
            if "accuracy" in test:
                sums["accuracy"] = test["accuracy"]
        return sums

    def _sums(self, x: Tensor, parts: Iterable[tuple[Tensor, Tensor]], weight: Tensor) -> Vectors:
        """Weighted sums of loss and hits over batches of (inputs, targets)."""
        loss = torch.zeros((), dtype=torch.float64, device=x.device)
        hits: Tensor | None = torch.zeros_like(loss)
        start = 0
        for inputs, targets in parts:
            w = weight[start : start + len(targets)]
            start += len(targets)
            outputs = self._task.model(x, inputs)
            loss = loss + (w * self._task.loss.each_or_loop(outputs, targets).to(torch.float64)).sum()
            if hits is None or not has_classes(outputs, targets):
                hits = None
            else:
                right = (outputs.argmax(1) == targets).to(torch.float64)
                hits = hits + (w * per_sample(right, targets)).sum()
        return {"loss": loss} | ({} if hits is None else {"accuracy": hits})


def measurable(task: Task) -> list[str]:
    """The metrics that can be measured of a task."""
    with evaluation(task), torch.no_grad():
        inputs, targets = task.samples(torch.zeros(1, dtype=torch.int64, device=task.model.device))
        kinds = ["loss", *(["accuracy"] if has_classes(task.model(task.model.initial(), inputs), targets) else [])]
    tests = [] if task.data.test is None else ["test_loss", *kinds[1:]]
    return [f"train_{kind}" for kind in kinds] + tests


def client_losses(task: Task, x: Tensor, ids: Tensor, positions: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Each client's mean loss and mean squared loss at x over the named samples of its data, in evaluation mode."""
    owner = torch.repeat_interleave(torch.arange(len(ids)), torch.tensor([len(part) for part in positions]))
    entries = task.data.offsets[ids][owner] + torch.cat(list(positions))
    sums = torch.zeros(2, len(ids), dtype=torch.float64)
    with evaluation(task):
        for part in torch.arange(len(entries)).split(samples_at_once(task, x)):
            inputs, targets = task.samples(entries[part].to(x.device))
            losses = task.loss.each_or_loop(task.model(x, inputs), targets).to("cpu", torch.float64)
            sums.index_add_(1, owner[part], torch.stack([losses, losses**2]))
    mean, squared = sums / torch.tensor([len(part) for part in positions])
    return mean, squared


def samples_at_once(task: Task, x: Tensor) -> int:
    """How many samples to evaluate together: fewer where each has many scores, as of all words at all positions."""
    most = _SAMPLES_AT_ONCE * (1 if x.device.type == "cpu" else 8)
    inputs, _ = task.samples(torch.zeros(1, dtype=torch.int64, device=x.device))
    return max(1, min(most, _SCORES_AT_ONCE // task.model(x, inputs).numel()))


@contextmanager
def evaluation(task: Task) -> Iterator[None]:
    """The model in evaluation mode, for a while."""
    module = task.model.module
    was_training = module.training
    module.eval()
    try:
        yield
    finally:
        module.train(was_training)


def has_classes(outputs: Tensor, targets: Tensor) -> bool:
    """Whether outputs are scores of classes, on axis 1 as in PyTorch, and targets class numbers.

    Outputs (B, classes, …) go with targets (B, …).
    """
    return (
        not targets.is_floating_point()
        and outputs.ndim == targets.ndim + 1
        and outputs.shape[1] > 1
        and outputs.shape[2:] == targets.shape[1:]
    )
