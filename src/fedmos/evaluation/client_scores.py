"""Evaluation of models on the test samples of single clients."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor
from torch.func import vmap

from ..core.metric_functions import MetricFunction
from ..engine.execution_plan import ExecutionPlan
from ..engine.inference import evaluation_mode, samples_at_once
from ..engine.ranks import Ranks
from ..engine.similar_steps import round_up
from ..engine.task import Task
from .measurable import correctness
from .sample_weights import labelled
from .user_metrics import metric_value

ClientModels = Callable[[Tensor], Tensor]
"""Clients → the model of each, (M, D), on the run's device."""
Scores = dict[str, Tensor]
"""By name, the value of each client, (M,), float64, on the CPU; NaN where it is not defined."""

_NUMBERS_AT_ONCE = 2**28
"""The most parameters of clients' models to hold at once."""


class _Evaluated(NamedTuple):
    """What the evaluation of some samples gives."""

    values: Tensor
    """(4, n), float64, on the CPU: the term of each sample in the loss, its norm, the fraction of correct predictions,
    and whether it has a label."""
    outputs: list[tuple[Tensor, Tensor]]
    """Outputs and targets, where a metric or the loss is a function of all samples of a client; on the device."""


class ClientEvaluator:
    """Evaluates one model, or a model of each client, on the test samples of every client.

    One model costs one pass over the test samples, in batches that several clients share. Models of the clients' own
    are evaluated side by side, unless the engine is the loop. With several ranks, each evaluates some of the clients,
    and all ranks return all scores.

    Args:
        task: The task of the run, whose data has test samples of clients.
        metrics: Further metrics by name.
        plan: How the run computes clients.
        ranks: The ranks of the run.

    Example:
        >>> scores = ClientEvaluator(task)(x, torch.arange(100))
        >>> scores["accuracy"].shape
        torch.Size([100])
        >>> scores = ClientEvaluator(task)(lambda ids: models[ids], torch.arange(100))  # models is (100, D)
    """

    def __init__(
        self,
        task: Task,
        metrics: Mapping[str, MetricFunction] | None = None,
        plan: ExecutionPlan | None = None,
        ranks: Ranks | None = None,
    ) -> None:
        self._metrics, self._ranks = dict(metrics or {}), ranks or Ranks()
        self._correct = correctness(task)
        self._task = tested_task(task)
        self._most = 1 if plan is None or plan.engine == "loop" else plan.max_parallel_clients
        self._alone = task.model.mixes_in_evaluation
        self._whole = self._alone or bool(self._metrics) or task.loss.batch is not None
        self.names = ["loss", *([] if self._correct is None else ["accuracy"]), *self._metrics]
        """The names of the scores."""

    @torch.no_grad()
    def __call__(self, models: Tensor | ClientModels, ids: Tensor) -> Scores:
        """Return the scores of clients `ids`, (M,) on the CPU.

        Args:
            models: One model, (D,), or a function that returns the model of each of some clients, (m, D); running
                statistics of BatchNorm layers may follow the parameters.
            ids: The clients. Those without test samples score NaN.
        """
        sizes = self._task.data.sizes[ids]
        table = torch.full((len(self.names), len(ids)), torch.nan, dtype=torch.float64)
        here = (sizes > 0).nonzero().flatten()
        owner = torch.zeros(len(ids), dtype=torch.int64)
        for positions, rank in self._shared(ids, here) if isinstance(models, Tensor) else self._own(ids, here):
            owner[positions] = rank
            if rank == self._ranks.rank:
                table[:, positions] = self._scores(models, ids[positions])
        if self._ranks.size > 1:
            tables = torch.stack(self._ranks.all_gather(table))
            table = tables.gather(0, owner.expand(1, *table.shape))[0]
        return dict(zip(self.names, table, strict=True))

    def _shared(self, ids: Tensor, here: Tensor) -> Iterator[tuple[Tensor, int]]:
        """Divide clients into chunks of about one batch, and assign these to ranks; they do not depend on the ranks."""
        at_once, start, total = 1 if self._alone else self._at_once, 0, 0
        sizes, number = self._task.data.sizes[ids[here]].tolist(), 0
        for end, n in enumerate(sizes):
            if total and total + n > at_once:
                yield here[start:end], number % self._ranks.size
                start, total, number = end, 0, number + 1
            total += n
        if total:
            yield here[start:], number % self._ranks.size

    def _own(self, ids: Tensor, here: Tensor) -> Iterator[tuple[Tensor, int]]:
        """Divide clients into chunks of equal width; each goes to the rank that stores the state of its clients."""
        widths = torch.tensor([round_up(int(n)) for n in self._task.data.sizes[ids[here]]], dtype=torch.int64)
        ranks = ids[here] % self._ranks.size
        for width in widths.unique().tolist():
            for rank in range(self._ranks.size):
                positions = here[(widths == width) & (ranks == rank)]
                for chunk in positions.split(self._side_by_side(width)):
                    if len(chunk):
                        yield chunk, rank

    def _side_by_side(self, width: int) -> int:
        """Return how many clients with so many samples are evaluated side by side."""
        if self._alone:
            return 1
        return max(1, min(self._most, 4 * self._at_once // width, _NUMBERS_AT_ONCE // self._task.model.size))

    @cached_property
    def _at_once(self) -> int:
        """The number of samples per batch."""
        with evaluation_mode(self._task):
            return samples_at_once(self._task, self._task.model.initial())

    def _scores(self, models: Tensor | ClientModels, ids: Tensor) -> Tensor:
        """Return the scores of a chunk of clients, (names, M)."""
        data = self._task.data
        counts = data.sizes[ids].tolist()
        if isinstance(models, Tensor):
            entries = torch.cat([torch.arange(int(data.offsets[i]), int(data.offsets[i + 1])) for i in ids.tolist()])
            return self._by_client(self._evaluate(models, entries), counts)
        own = models(ids)  # which may train them
        if self._side_by_side(round_up(max(counts))) > 1:
            return self._by_client(self._evaluate_rows(own, ids), counts)
        return torch.cat([self._scores(x, one) for x, one in zip(own, ids.split(1), strict=True)], dim=1)

    def _evaluate(self, x: Tensor, entries: Tensor) -> _Evaluated:
        """Evaluate one model at entries of the index, batch by batch."""
        task, parts = self._task, []
        at_once = len(entries) if self._alone else self._at_once
        with evaluation_mode(task):
            for part in entries.to(x.device).split(at_once):
                inputs, targets = task.samples(part)
                parts.append(self._values(task.model(x, task.model.laid_out(inputs)), targets))
        return _Evaluated(torch.cat([one.values for one in parts], dim=1), [v for one in parts for v in one.outputs])

    def _evaluate_rows(self, models: Tensor, ids: Tensor) -> _Evaluated:
        """Evaluate each client's model on its samples, all clients in one call; shorter rows repeat a sample."""
        task, device = self._task, models.device
        sizes, offsets = (v[ids].to(device) for v in (task.data.sizes, task.data.offsets[:-1]))
        width = round_up(int(sizes.max()))
        columns = torch.arange(width, device=device)
        counted = columns < sizes[:, None]
        inputs, targets = task.samples(offsets[:, None] + torch.where(counted, columns, 0))
        if len(models) == 1:  # kernels for one client differ from those for several, and round differently
            models, inputs = models.expand(2, -1), inputs.expand(2, *inputs.shape[1:])
        with evaluation_mode(task):
            outputs = vmap(task.model)(models, inputs)[: len(ids)]
        return self._values(outputs[counted], targets[counted])

    def _values(self, outputs: Tensor, targets: Tensor) -> _Evaluated:
        task, n = self._task, len(targets)
        values = torch.zeros((4, n), dtype=torch.float64)
        if task.loss.batch is None:
            values[0] = task.loss.each_or_loop(outputs, targets).to("cpu", torch.float64)
            values[1] = task.loss.norms(targets).to("cpu", torch.float64)
        if self._correct is not None:
            values[2], values[3] = self._correct(outputs, targets).cpu(), labelled(targets).cpu()
        return _Evaluated(values, [(outputs, targets)] if self._whole else [])

    def _by_client(self, evaluated: _Evaluated, counts: Sequence[int]) -> Tensor:
        """Return the scores of clients that have so many of the evaluated samples, in order: (names, M)."""
        loss, M = self._task.loss, len(counts)
        owner = torch.arange(M).repeat_interleave(torch.tensor(counts))
        values = evaluated.values.clone()
        values[2] *= values[3]
        sums = torch.zeros((4, M), dtype=torch.float64).index_add_(1, owner, values)
        clients = _divided(evaluated.outputs, counts)
        if loss.batch is not None:
            losses = torch.tensor([float(loss.mean(o, t)) for o, t in clients])
        else:
            losses = sums[0] if loss.sums else sums[0] / sums[1]
            # A loss that is no number counts as infinite; a client without any labelled sample does not count.
            losses = torch.where(sums[1] > 0, losses.nan_to_num(nan=torch.inf, posinf=torch.inf), torch.nan)
        rows = [losses.to(torch.float64)]
        if self._correct is not None:
            rows.append(sums[2] / sums[3])
        for name, function in self._metrics.items():
            found = [metric_value(name, function, o.cpu(), t.cpu()) for o, t in clients]
            rows.append(torch.tensor(found, dtype=torch.float64))
        return torch.stack(rows)


def tested_task(task: Task) -> Task:
    """Return the task with the test samples of clients in place of their training samples; clients may have none."""
    data, tests = task.data, task.data.tests
    assert tests is not None
    samples = replace(
        data, x=tests.x, y=tests.y, index=tests.index, offsets=tests.offsets, test=None, tests=None, unseen=None
    )
    return replace(task, data=samples)


def _divided(parts: Sequence[tuple[Tensor, Tensor]], counts: Sequence[int]) -> list[tuple[Tensor, Tensor]]:
    """Return the outputs and targets of each client, which has so many of the samples of all parts."""
    if not parts:
        return []
    outputs, targets = (torch.cat(list(v)).split(list(counts)) for v in zip(*parts, strict=True))
    return list(zip(outputs, targets, strict=True))
