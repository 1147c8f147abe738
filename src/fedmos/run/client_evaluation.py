"""The option `evaluate_clients` in a run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..algorithm import Algorithm
from ..core.history import CLIENT_METRICS, Record
from ..core.metric_functions import MetricFunction
from ..core.metric_names import is_loss
from ..data.federated import FederatedData
from ..engine.local_backend import LocalBackend
from ..engine.personal_models import evaluable_models, has_personal_models
from ..engine.ranks import Ranks
from ..engine.snapshot import ClientScores
from ..engine.state import FederatedState
from ..engine.task import Task
from ..evaluation.client_scores import ClientEvaluator, ClientModels, Scores
from ..evaluation.evaluate_clients import EvaluateClients
from ..evaluation.measurable import correctness
from ..evaluation.per_client import worst_tenth
from ..rng import Purpose, choose, signed, stream
from .fine_tuning import FineTuning
from .spec import RunSpec

_PERCENTILES = (10, 25, 50, 75, 90)
GLOBAL, OWN, FINETUNED = "client", "personal", "finetuned"
"""What the names of scores begin with: those of the global model, of the client's own, and of the fine-tuned one."""


class EvaluatedGroup(NamedTuple):
    """The clients of a run, or those that take no part in it."""

    prefix: str
    """What the names of its scores begin with."""
    task: Task
    ids: Tensor
    """The clients that are evaluated."""


class ClientEvaluation:
    """Evaluates the clients of a run on their own test samples.

    Args:
        spec: The options of the run.
        task: What metrics are measured on.
        metrics: The metrics of the run by name.
        ranks: The ranks of the run.

    Raises:
        ValueError: If clients have no test samples.
    """

    def __init__(self, spec: RunSpec, task: Task, metrics: Mapping[str, MetricFunction], ranks: Ranks) -> None:
        assert isinstance(spec.evaluate_clients, EvaluateClients)
        self._spec, self._how, self._metrics, self._ranks = spec, spec.evaluate_clients, metrics, ranks
        self._groups = self._found_groups(task)
        self._has_classes = correctness(task) is not None
        self._tools: list[tuple[ClientEvaluator, FineTuning | None]] | None = None

    def _found_groups(self, task: Task) -> list[EvaluatedGroup]:
        """Return the clients of the run and, if there are any, those that take no part in it."""
        data, seed = task.data, self._spec.seed
        _check_tests(data, "clients")
        groups = [EvaluatedGroup(GLOBAL, task, sampled_clients(self._how, _tested(data), seed))]
        if data.unseen is not None:
            _check_tests(data.unseen, "unseen clients")
            unseen = _unseen_task(task, data.unseen)
            groups.append(EvaluatedGroup("unseen", unseen, sampled_clients(self._how, _tested(data.unseen), seed)))
        return groups

    def due(self, t: int, rounds: int) -> bool:
        """Whether clients are evaluated after round t, from 1, of so many."""
        return t % self._how.every == 0 or t == rounds

    @property
    def names(self) -> list[str]:
        """The names of the summaries that a record can have."""
        return [summary for name in self.score_names for summary in _summary_names(name)]

    @property
    def score_names(self) -> list[str]:
        """The names of the scores of a client."""
        return score_names(self._spec, self._has_classes, self._metrics, unseen=len(self._groups) > 1)

    def measure(self, state: FederatedState) -> ClientScores:
        """Evaluate the clients after a round; returns the values of all clients, NaN for those not evaluated."""
        assert isinstance(state.backend, LocalBackend)
        plan = state.backend.executor.plan
        if self._tools is None:
            self._tools = [
                (
                    ClientEvaluator(group.task, self._metrics, plan, self._ranks),
                    FineTuning(self._spec, group.task, plan) if self._how.finetune_steps else None,
                )
                for group in self._groups
            ]
        found: Scores = {}
        for group, (evaluator, tuning) in zip(self._groups, self._tools, strict=True):
            found |= self._named(group, group.prefix, evaluator(state.measured, group.ids))
            if group.prefix == GLOBAL and (models := _personal(state, plan.engine == "batched")):
                found |= self._named(group, OWN, evaluator(models, group.ids))
            if tuning is not None:
                tuned = evaluator(tuning.models(state, group.ids), group.ids)
                found |= self._named(group, _finetuned(group.prefix), tuned)
        return ClientScores(state.t, found)

    def summary(self, scores: ClientScores) -> dict[str, float]:
        """Return mean and worst tenth of every score and, of accuracies, percentiles and the mean over samples."""
        found: dict[str, float] = {}
        for name, values in scores.values.items():
            group = self._groups[-1 if name.startswith("unseen") else 0]
            found |= summarise(name, values, self._test_sizes(group))
        return found

    def _test_sizes(self, group: EvaluatedGroup) -> Tensor:
        """Return the number of test samples of each client of a group."""
        assert group.task.data.tests is not None
        return group.task.data.tests.sizes

    @staticmethod
    def _named(group: EvaluatedGroup, kind: str, scores: Scores) -> Scores:
        """Return the scores of all clients of a group, with the kind of model in their names."""
        found = {}
        for name, values in scores.items():
            every = torch.full((len(group.task.data),), torch.nan, dtype=torch.float64)
            every[group.ids] = values
            found[f"{kind}_{name}"] = every
        return found


def score_names(spec: RunSpec, has_classes: bool, metrics: Iterable[str], unseen: bool = False) -> list[str]:
    """Return the names of the scores of a client.

    Args:
        spec: The options of the run.
        has_classes: Whether accuracies are measured.
        metrics: The names of the metrics of the run.
        unseen: Whether there are clients that take no part.
    """
    assert isinstance(spec.evaluate_clients, EvaluateClients)
    kinds, groups = [GLOBAL], [GLOBAL, *(["unseen"] if unseen else [])]
    if type(spec.composed_algorithm).personal is not Algorithm.personal:
        kinds.append(OWN)
    kinds += groups[1:]
    if spec.evaluate_clients.finetune_steps:
        kinds += [_finetuned(group) for group in groups]
    measures = ["loss", *(["accuracy"] if has_classes else []), *metrics]
    return [f"{kind}_{measure}" for kind in kinds for measure in measures]


def with_summary(record: Record, summary: Mapping[str, float]) -> Record:
    """Return the record with the summary of an evaluation of clients."""
    fields: dict[str, Any] = {name: summary[name] for name in CLIENT_METRICS if name in summary}
    rest = {name: value for name, value in summary.items() if name not in CLIENT_METRICS}
    return replace(record, **fields, client_metrics=rest)


def summarise(name: str, values: Tensor, sizes: Tensor) -> dict[str, float]:
    """Return the summary of one score of all clients, which have so many test samples; empty if no client has it."""
    known = ~values.isnan()
    if not bool(known.any()):
        return {}
    ascending = values[known].sort(descending=is_loss(name)).values
    found = {name: float(ascending.mean()), f"{name}_worst": worst_tenth(ascending)}
    if name.endswith("_accuracy"):
        quantiles = torch.quantile(ascending, torch.tensor([p / 100 for p in _PERCENTILES], dtype=torch.float64))
        found |= {f"{name}_p{p}": float(q) for p, q in zip(_PERCENTILES, quantiles, strict=True)}
        weights = sizes[known].to(torch.float64)
        found[f"{name}_weighted"] = float((weights * values[known]).sum() / weights.sum())
    return found


def _summary_names(name: str) -> list[str]:
    more = [f"p{p}" for p in _PERCENTILES] + ["weighted"] if name.endswith("_accuracy") else []
    return [name, *(f"{name}_{suffix}" for suffix in ("worst", *more))]


def _finetuned(prefix: str) -> str:
    return FINETUNED if prefix == GLOBAL else f"{prefix}_{FINETUNED}"


def _personal(state: FederatedState, vectorised: bool) -> ClientModels | None:
    """Return the function that gives clients' own models; None if the algorithm has none."""
    if not has_personal_models(state):
        return None

    def models(some: Tensor) -> Tensor:
        return evaluable_models(state, some, vectorised)

    return models


def _tested(data: FederatedData) -> Tensor:
    """Return the clients that have test samples."""
    assert data.tests is not None
    return data.tests.sizes.nonzero().flatten()


def sampled_clients(how: EvaluateClients, candidates: Tensor, seed: int) -> Tensor:
    """Return those of the candidates to evaluate, in ascending order."""
    if how.sample is None or how.sample >= len(candidates):
        return candidates
    chosen = choose(stream(seed, 0, 0, Purpose.EVALUATION), len(candidates), how.sample)
    return candidates[chosen.sort().values]


def _unseen_task(task: Task, unseen: FederatedData) -> Task:
    """Return the task of clients that take no part. Their random streams are those after the other clients'."""
    n, device = len(unseen), task.model.device
    seeds = torch.full((n,), signed(task.seed), device=device)
    return replace(task, data=unseen, origin=(seeds, torch.arange(n, device=device) + len(task.data)))


def _check_tests(data: FederatedData, who: str) -> None:
    if data.tests is None:
        raise ValueError(
            f"Cannot evaluate the {who} because they have no test samples of their own; use "
            "partition(..., holdout=0.2), in a configuration data.holdout, or data.hold_out(0.2) or from_arrays(..., "
            "tests=[(x, y), ...]), or leave 'evaluate_clients' out"
        )
