"""The hostile clients of a run, and the training data that they poison."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from ..attacks import Attack
from ..data.arrays import chosen_clients
from ..data.federated import FederatedData
from ..engine.row_aggregation import own_without_draws
from ..engine.task import Task
from ..rng import Purpose, choose, fold, stream
from .spec import RunSpec


def hostile_clients(spec: RunSpec) -> Tensor:
    """Return the numbers of the hostile clients in ascending order; none without an attack.

    Raises:
        ValueError: If there is no such client, or the share is less than half a client.
    """
    attack, N = spec.attack, len(spec.data)
    if attack is None:
        return torch.empty(0, dtype=torch.int64)
    owner = type(attack).__name__
    if attack.clients is not None:
        try:
            return torch.tensor(sorted(chosen_clients(attack.clients, N, spec.data.names)))
        except ValueError as error:
            text = str(error).removeprefix("subset: ").replace("'ids'", "'clients'")
            raise ValueError(f"{owner}: {text}") from None
    assert attack.share is not None
    count = int(attack.share * N + 0.5)
    if count == 0:
        raise ValueError(f"{owner}: 'share' must be at least one of {N} clients, got {attack.share}")
    return choose(stream(spec.seed, 0, 0, Purpose.ATTACK), N, count).sort().values


def poisoned(spec: RunSpec, task: Task, hostile: Tensor) -> Task:
    """Return the task that clients train on: with the data that hostile clients poison, if the attack does that.

    Metrics are measured on the task as it was.
    """
    attack, raw, data = spec.attack, spec.data, task.data
    if attack is None or not attack.poisons:
        return task
    entries = torch.cat([torch.arange(int(raw.offsets[i]), int(raw.offsets[i + 1])) for i in hostile.tolist()])
    rows = entries if raw.index is None else raw.index[entries]
    x, y = raw.x[rows], raw.y[rows]
    key = fold(stream(spec.seed, 0, 0, Purpose.ATTACK), 0)
    with own_without_draws(attack, "poison", key.device):
        new_x, new_y = attack.poison(x, y, _classes(raw), key)
    _check_poisoned(attack, (x, y), (new_x, new_y))
    prepared = raw.normalize is not None and data.normalize is None  # the task's inputs are normalised already
    inputs = raw.inputs(new_x.to(data.x.device), task.model.dtype) if prepared else new_x
    return replace(task, data=_with_samples(data, entries, rows, inputs if new_x is not x else None, new_y))


def _with_samples(data: FederatedData, entries: Tensor, rows: Tensor, x: Tensor | None, y: Tensor) -> FederatedData:
    """Return the federation with other samples at entries of its index. x is None where the inputs stay.

    Samples that other entries use, too, stay as they are for those.
    """
    device = data.x.device
    entries, rows, y = entries.to(device), rows.to(device), y.to(data.y)
    used = None if data.index is None else torch.bincount(data.index[: int(data.offsets[-1])], minlength=len(data.x))
    if used is None or bool((used[rows] == 1).all()):
        new_x = data.x if x is None else data.x.index_copy(0, rows, x.to(data.x))
        return replace(data, x=new_x, y=data.y.index_copy(0, rows, y))
    assert data.index is not None
    n = len(data.x)
    return replace(
        data,
        x=torch.cat([data.x, data.x[rows] if x is None else x.to(data.x)]),
        y=torch.cat([data.y, y]),
        index=data.index.index_copy(0, entries, torch.arange(n, n + len(rows), device=device)),
    )


def _classes(data: FederatedData) -> int:
    """Return the number of classes, 0 if targets are not classes."""
    if data.y.is_floating_point():
        return 0
    largest = max(int(y.max()) for y in (data.y, *(y for _, y in data.all_targets())))
    return max(largest + 1, len(data.labels or ()))


def _check_poisoned(attack: Attack, before: tuple[Tensor, Tensor], after: tuple[Tensor, Tensor]) -> None:
    for name, old, new in zip("xy", before, after, strict=True):
        if not isinstance(new, Tensor) or new.shape != old.shape:
            got = tuple(new.shape) if isinstance(new, Tensor) else type(new).__name__
            raise ValueError(
                f"{type(attack).__name__}: 'poison' must return {name} of shape {tuple(old.shape)}, got {got}"
            )
