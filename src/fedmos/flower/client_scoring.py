"""Evaluation of a client on its own test samples, by the client: of the global model, of its own, and fine-tuned."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from ..algorithm import Algorithm, Context, Vectors
from ..core.statistics_layout import STATISTICS
from ..engine.client_store import ClientStore
from ..engine.cohort import Cohort
from ..engine.declaration import Declaration, Shapes
from ..engine.execution_plan import ExecutionPlan
from ..engine.personal_models import evaluable_models, has_personal_models
from ..engine.task import Task
from ..evaluation.client_scores import ClientEvaluator, Scores
from ..evaluation.evaluate_clients import EvaluateClients
from ..evaluation.measurable import correctness
from ..evaluation.user_metrics import choose_metrics
from ..run.client_evaluation import FINETUNED, GLOBAL, OWN, score_names
from ..run.fine_tuning import FineTuning
from ..run.spec import RunSpec
from . import wire
from .client_errors import ClientErrorCode

TESTS = "tests"
"""The name of the number of test samples in a reply."""
MODEL, SERVER_MODEL = "model", "x"
"""The vectors of a request: the model that is evaluated, with running statistics if clients keep them, and the server's
model where that is another one."""
_ONE = torch.zeros(1, dtype=torch.int64)


@dataclass(kw_only=True)
class ReceivedState:
    """What a client of a deployment knows of the state of the run; see `fedmos.engine.model_state.ModelState`."""

    task: Task
    algorithm: Algorithm
    clients: ClientStore
    x: Tensor
    measured: Tensor
    header: Mapping[str, Any]

    @property
    def t(self) -> int:
        """The number of rounds played."""
        return int(self.header["round"]) + 1

    @cached_property
    def evaluated(self) -> Tensor:
        """The model that is evaluated, without running statistics."""
        return self.measured[: len(self.x)]

    @cached_property
    def declaration(self) -> Declaration:
        """What the algorithm declares."""
        return Declaration(self.algorithm, self.task.model.layers)

    def lr(self, t: int) -> float:
        """Return the step size of the last round or of the next one."""
        return float(self.header["lr"] if t == self.t else self.header["last_lr"])

    def context(self, cohort: Cohort) -> Context:
        """Return the context of the next round; without clients, or with all that are evaluated."""
        S = self.header["S"] if len(cohort.ids) else 0
        lr = torch.full((), self.lr(self.t), dtype=self.x.dtype, device=self.x.device)
        return Context(t=self.t, lr=lr, N=self.header["N"], S=S, W=float(S), layers=self.task.model.layers)


class ClientScoring:
    """Evaluates one client.

    Args:
        spec: The options of the run.
        task: The client's task, whose data may have test samples.
        algorithm: The algorithm of the run at the client.
        plan: The client's execution plan.
        fewest: With fewer test samples, no score is computed.
    """

    def __init__(self, spec: RunSpec, task: Task, algorithm: Algorithm, plan: ExecutionPlan, fewest: int) -> None:
        self._spec, self._task, self._algorithm, self._plan = spec, task, algorithm, plan
        tests = task.data.tests
        self.tests = 0 if tests is None else int(tests.sizes[0])
        """The number of test samples."""
        if 0 < self.tests < fewest:
            raise wire.RefusedError(
                f"this client has {self.tests} test samples, and its policy demands {fewest}",
                ClientErrorCode.TOO_FEW_SAMPLES,
            )

    def shapes(self, names: Mapping[str, Any]) -> Shapes:
        """Return the shapes of the vectors of a request that has these."""
        model = self._task.model
        statistics = Declaration(self._algorithm, model.layers).client_state.get(STATISTICS, (0,))
        shapes: dict[str, tuple[int, ...]] = {MODEL: (model.size + statistics[0],)}
        return shapes | ({SERVER_MODEL: (model.size,)} if SERVER_MODEL in names else {})

    def scores(self, received: Vectors, own: Vectors, header: Mapping[str, Any]) -> Vectors:
        """Return the scores and the number of test samples, (1,) each; NaN where a score is not defined.

        Args:
            received: The vectors of the request.
            own: The client's state.
            header: The header of the request.
        """
        counted, spec = {TESTS: torch.tensor([self.tests], dtype=torch.float64)}, self._spec
        assert isinstance(spec.evaluate_clients, EvaluateClients)
        metrics = choose_metrics(self._task, spec.metrics, of_clients=True)
        names = score_names(spec, correctness(self._task) is not None, metrics)
        undefined = {name: torch.full((1,), torch.nan, dtype=torch.float64) for name in names}
        if not self.tests:
            return undefined | counted
        clients = ClientStore(own, 1)
        clients.write(_ONE, {name: v[None] for name, v in own.items()})
        clients.note(_ONE, header["last"])
        measured = received[MODEL]
        x = received.get(SERVER_MODEL, measured[: self._task.model.size])
        state = ReceivedState(
            task=self._task, algorithm=self._algorithm, clients=clients, x=x, measured=measured, header=header
        )
        evaluator = ClientEvaluator(self._task, metrics, self._plan)
        found = _named(GLOBAL, evaluator(measured, _ONE))
        if has_personal_models(state):
            found |= _named(OWN, evaluator(self._own_models(state), _ONE))
        if spec.evaluate_clients.finetune_steps:
            tuning = FineTuning(spec, self._task, self._plan)
            found |= _named(FINETUNED, evaluator(tuning.models(state, _ONE), _ONE))
        return undefined | found | counted

    def _own_models(self, state: ReceivedState) -> Callable[[Tensor], Tensor]:
        def models(ids: Tensor) -> Tensor:
            return evaluable_models(state, ids, vectorised=self._plan.engine == "batched")

        return models


def _named(kind: str, scores: Scores) -> Vectors:
    return {f"{kind}_{name}": v.to(torch.float64) for name, v in scores.items()}
