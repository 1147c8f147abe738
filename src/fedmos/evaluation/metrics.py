"""Evaluation of a model on everyone's training data and on the test set."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import vmap

from ..core.function_state import FunctionWatch
from ..engine.compiled import Compiled
from ..engine.graphs import Graphs
from ..engine.inference import SAMPLES_AT_ONCE, evaluation_mode, samples_at_once
from ..engine.ranks import Ranks
from ..engine.task import Task
from .batch_loss import batch_loss_metrics
from .measurable import correctness, measurable
from .per_client import client_accuracy
from .sample_weights import pool_samples, test_weights

_RECORDED = 64
"""An evaluation of at most this many batches is captured as one CUDA graph."""


class Evaluator:
    """Computes losses and accuracies of models (R, D) in evaluation mode: (R, k), float64, in the order of `names`.

    train_loss is the objective Σ p_i f_i over all clients. Accuracies exist where targets are class numbers and outputs
    have a score per class, and for a binary cross-entropy of one logit with targets 0 and 1; the accuracy of a sequence
    is the fraction of correct positions, without padding.
    """

    def __init__(
        self, tasks: Sequence[Task], vectorised: bool = False, ranks: Ranks | None = None, train: bool = True
    ) -> None:
        """Make an evaluator.

        Args:
            tasks: One task per model. The samples and the test set of all tasks must be the same tensors.
            vectorised: Whether to evaluate several models, or a model on a GPU, with `vmap`.
            ranks: The ranks that share the evaluation.
            train: Whether to evaluate on the training data, too; otherwise on the test set only.
        """
        self._ranks, self._train = ranks or Ranks(), train
        self._task = task = tasks[0]
        self._samples, self._weight = pool_samples(tasks)
        if not train:
            self._samples, self._weight = self._samples[:, :0], self._weight[..., :0]
        self._test_weight = None if task.data.test is None else test_weights(task)[None]
        self._graphs = Graphs(task.model.device) if task.model.device.type == "cuda" else None
        self._watch = FunctionWatch(task.own_functions if self._graphs is not None else ())
        # On a CPU a single model is evaluated without vmap; on a GPU with the kernels of a cohort.
        self._vectorised = vectorised and (len(tasks) > 1 or self._graphs is not None)
        compiled = task.compiled and self._graphs is not None and not task.model.mixes_in_evaluation
        self._each: Callable[..., Tensor] = Compiled(self._scores) if compiled else self._scores
        self._at_once: int | None = None
        self._correct = correctness(task)
        self.names = [name for name in measurable(task) if train or not name.startswith("train_")]

    @classmethod
    def of_all(cls, tasks: Sequence[Task]) -> Evaluator | None:
        """Make an evaluator for tasks on a GPU that share their samples; None for other tasks."""

        def held(task: Task) -> tuple[int, ...]:
            return tuple(id(v) for v in (task.data.x, task.data.y, *(task.data.test or ())))

        mergeable = tasks[0].model.device.type == "cuda" and len({held(task) for task in tasks}) == 1
        return cls(tasks, vectorised=True) if mergeable else None

    def __call__(self, xs: Tensor) -> Tensor:
        if self._task.loss.batch is not None:
            return torch.stack([batch_loss_metrics(self._task, x, self._correct, self._train) for x in xs])
        if self._at_once is None:
            with evaluation_mode(self._task), torch.no_grad():
                self._at_once = max(1, samples_at_once(self._task, xs[0]) // len(xs))
        if self._watch.look():  # captured and compiled programs would go on with old values
            self._graphs, self._each = None, self._scores
        if self._graphs is None or self._samples.shape[1] > _RECORDED * self._at_once:
            parts = self._measure(xs)
        else:
            parts = self._graphs.run("evaluation", self._measure, xs)
        train, tests = self._divided(self._samples.shape[1]), 0
        if self._task.data.test is not None:
            tests = self._divided(len(self._task.data.test[1]))
        if self._ranks.size > 1:
            owner = [n % self._ranks.size for n in (*range(train), *range(tests))]
            mine = [n for n, rank in enumerate(owner) if rank == self._ranks.rank]
            like = parts.new_empty((len(xs), len(self.names) // (2 if tests else 1)))
            parts = torch.stack(self._ranks.gather(dict(zip(mine, parts, strict=True)), owner, like))
        found = [some.sum(0) for some in (parts[:train], parts[train:]) if len(some)]
        return torch.cat(found, dim=1) if found else parts.new_empty((len(xs), 0))

    def client_accuracy(self, x: Tensor) -> dict[str, Any] | None:
        """Return the distribution of the accuracy of x over clients; see `client_accuracy`."""
        return client_accuracy(self._task, x)

    def _divided(self, n: int) -> int:
        """Return the number of parts that n samples are divided into."""
        return -(n // -(self._at_once or SAMPLES_AT_ONCE))

    def _measure(self, xs: Tensor) -> Tensor:
        """Return the contribution of each part of the training and then of the test samples, (parts, R, 1 or 2).

        With several ranks, each evaluates the parts whose number modulo the number of ranks is its rank.
        """
        data, device = self._task.data, xs.device
        with evaluation_mode(self._task), torch.no_grad():
            sums = self._sums(xs, data.x, data.y, self._samples, self._weight) if self._samples.numel() else []
            if data.test is not None and self._test_weight is not None:
                every = torch.arange(len(data.test[1]), device=device)[None]
                sums += self._sums(xs, *data.test, every, self._test_weight)
        return torch.stack(sums) if sums else torch.empty(0, dtype=torch.float64, device=device)

    def _sums(self, xs: Tensor, x: Tensor, y: Tensor, samples: Tensor, weight: Tensor) -> list[Tensor]:
        """Return weighted sums of loss and correct predictions over each part of the samples, (R, 1 or 2) each.

        Samples are (1 or R, n), the same for all models or each model's own; weights are (1 or R, 1 or 2, n).
        """
        n = samples.shape[1]
        parts = self._divided(n)
        width = -(n // -parts)
        if isinstance(self._each, Compiled):  # all parts of one shape
            more = parts * width - n
            samples = torch.cat([samples, samples[:, :1].expand(-1, more)], dim=1)
            weight = F.pad(weight, (0, more))
        ranks, sums = self._ranks, []
        for part, (some, w) in enumerate(zip(samples.split(width, 1), weight.split(width, -1), strict=True)):
            if part % ranks.size == ranks.rank:
                inputs, targets = self._task.inputs(x[some.flatten()]), self._task.targets(y[some.flatten()])
                scores = self._each(xs, inputs.unflatten(0, some.shape), targets.unflatten(0, some.shape))
                w = w[:, : scores.shape[1]]  # without classes, the weights of the accuracy are not used
                # A sample of weight zero may have any loss, even an infinite one.
                sums.append(torch.where(w == 0, 0, scores * w).sum(-1))
        return sums

    def _scores(self, xs: Tensor, inputs: Tensor, targets: Tensor) -> Tensor:
        """Return each sample's loss and, with classes, whether it is classified correctly, (R, 1 or 2, n), float64.

        Inputs and targets are (1 or R, n, …): the same samples for all models, or each model's own.
        """
        if self._vectorised:
            if self._task.model.has_cohort_functions:  # what it reads in Python must be constants
                inputs, targets = (v.expand(len(xs), *v.shape[1:]) for v in (inputs, targets))
            same = len(inputs) == 1 and not self._task.model.has_cohort_functions
            own, given = (None, (inputs[0], targets[0])) if same else (0, (inputs, targets))
            scores: Tensor = vmap(self._score, in_dims=(0, own, own))(xs, *given)
            return scores
        inputs, targets = inputs.expand(len(xs), *inputs.shape[1:]), targets.expand(len(xs), *targets.shape[1:])
        laid_out = self._task.model.laid_out
        return torch.stack([self._score(x, laid_out(i), t) for x, i, t in zip(xs, inputs, targets, strict=True)])

    def _score(self, x: Tensor, inputs: Tensor, targets: Tensor) -> Tensor:
        outputs = self._task.model(x, inputs)
        losses = self._task.loss.each_or_loop(outputs, targets)
        if self._correct is None:
            return losses[None].to(torch.float64)
        return torch.stack([losses.to(torch.float64), self._correct(outputs, targets)])
