"""Forward passes in evaluation mode."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace

import torch
from torch import Tensor

from ..data.federated import FederatedData
from .task import Task

SAMPLES_AT_ONCE = 1024
_SCORES_AT_ONCE = 2**26


def evaluation_mode(task: Task) -> AbstractContextManager[None]:
    """Put the model in evaluation mode within the context."""
    return task.model.evaluation_mode()


def with_accepted_inputs(task: Task) -> Task:
    """Return the task with the integer columns of a table as real numbers, if the model accepts only those.

    Raises:
        ValueError: If an integer would be rounded.
    """
    data, dtype = task.data, task.model.dtype
    if data.encoding is None or data.x.is_floating_point() or data.normalize is not None:
        return task
    if _accepts(task, data.x[:2]) or not _accepts(task, data.x[:2].to(dtype)):
        return task

    def real(x: Tensor) -> Tensor:
        rounded = (x.to(dtype).to(torch.int64) != x).any(0).nonzero()
        if len(rounded):
            name = data.encoding.features[int(rounded[0])] if data.encoding is not None else ""
            raise ValueError(
                f"Cannot use column '{name}' as a number because {str(dtype).removeprefix('torch.')} would round its "
                "integers; use a model that takes integers (an embedding), or add it to 'categorical'"
            )
        return x.to(dtype)

    return replace(task, data=_with_inputs(data, real))


def _with_inputs(data: FederatedData, convert: Callable[[Tensor], Tensor]) -> FederatedData:
    """Return the federation with converted inputs of all its samples."""
    return replace(
        data,
        x=convert(data.x),
        test=None if data.test is None else (convert(data.test[0]), data.test[1]),
        tests=None if data.tests is None else data.tests.moved(convert(data.tests.x), data.tests.y),
        unseen=None if data.unseen is None else _with_inputs(data.unseen, convert),
    )


def _accepts(task: Task, inputs: Tensor) -> bool:
    """Return whether the model runs on these inputs."""
    try:
        with evaluation_mode(task), torch.no_grad():
            task.model(task.model.initial(), inputs)
    except Exception:  # whatever the user's forward raises
        return False
    return True


def samples_at_once(task: Task, x: Tensor) -> int:
    """Return how many samples to evaluate together."""
    rows = task.model.least_rows
    inputs, _ = task.samples(torch.zeros(rows, dtype=torch.int64, device=x.device))
    return most_at_once(x.device, task.model(x, inputs).numel() // rows)


def most_at_once(device: torch.device, outputs: int) -> int:
    """Return how many samples to evaluate together: fewer where the model has many outputs per sample."""
    most = SAMPLES_AT_ONCE * (1 if device.type == "cpu" else 8)
    return max(1, min(most, _SCORES_AT_ONCE // outputs))


def client_losses(task: Task, x: Tensor, ids: Tensor, positions: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Return each client's mean loss and mean squared loss at x over the given positions of its data.

    x is one model, or has a row for each client.
    """
    if x.ndim == 2:
        rows = [client_losses(task, x[i], ids[i : i + 1], positions[i : i + 1]) for i in range(len(ids))]
        return torch.cat([mean for mean, _ in rows]), torch.cat([squared for _, squared in rows])
    counts = torch.tensor([len(part) for part in positions])
    owner = torch.repeat_interleave(torch.arange(len(ids)), counts)
    entries = task.data.offsets[ids][owner] + torch.cat(list(positions))
    if task.loss.batch is not None:
        with evaluation_mode(task):
            outputs, targets = all_outputs(task, x, entries.to(x.device))
        parts = zip(outputs.split(counts.tolist()), targets.split(counts.tolist()), strict=True)
        losses = torch.stack([task.loss.mean(o, t) for o, t in parts]).to("cpu", torch.float64)
        return losses, torch.full_like(losses, torch.nan)  # there is no loss of a single sample
    sums, norms = torch.zeros(2, len(ids), dtype=torch.float64), torch.zeros(len(ids), dtype=torch.float64)
    with evaluation_mode(task):
        for part in torch.arange(len(entries)).split(samples_at_once(task, x)):
            inputs, targets = task.samples(entries[part].to(x.device))
            outputs = task.model(x, task.model.laid_out(inputs))
            losses = task.loss.each_or_loop(outputs, targets).to("cpu", torch.float64)
            sums.index_add_(1, owner[part], torch.stack([losses, losses**2]))
            if not task.loss.uniform:
                norms.index_add_(0, owner[part], task.loss.norms(targets).to("cpu", torch.float64))
    mean, squared = sums / counts
    if task.loss.sums:
        mean = sums[0]
    elif not task.loss.uniform:
        mean = torch.where(norms > 0, sums[0] / norms.where(norms > 0, 1), 0)
    return mean, squared


def all_outputs(task: Task, x: Tensor, entries: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return outputs and targets at entries of the federation's index, or of the test set if `entries` is None."""
    outputs, targets = [], []
    if entries is None:
        assert task.data.test is not None
        every = torch.arange(len(task.data.test[1]), device=x.device)
    else:
        every = entries
    for part in every.split(samples_at_once(task, x)):
        if entries is None:
            assert task.data.test is not None
            inputs, labels = task.inputs(task.data.test[0][part]), task.targets(task.data.test[1][part])
        else:
            inputs, labels = task.samples(part)
        outputs.append(task.model(x, task.model.laid_out(inputs)))
        targets.append(labels)
    return torch.cat(outputs), torch.cat(targets)
