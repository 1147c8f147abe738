"""Fine-tuning of the global model on each client's training samples, for its evaluation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from ..algorithms import FedAvg
from ..core.personal_parameters import PERSONAL, Personal, as_personal
from ..core.statistics_layout import STATISTICS
from ..engine.cohort import Cohort
from ..engine.execution_plan import ExecutionPlan
from ..engine.executor import JobExecutor
from ..engine.job import Job
from ..engine.model_state import ModelState
from ..engine.personal_models import with_statistics
from ..engine.task import Task
from ..evaluation.client_scores import ClientModels
from ..evaluation.evaluate_clients import EvaluateClients
from ..local.batch_norm import with_batch_norm
from ..local.chain import Local
from ..local.compose import with_local
from ..local.optimizer import LocalOptimizer
from ..local.personal import join, with_personal
from ..local.sam import SAM
from .spec import RunSpec


class FineTuning:
    """Trains the global model on a client's samples for a few steps, as FedAvg does with the run's options.

    The step size is that of the last round; batches are those of the next one. Local optimisers start anew, and so do
    parameters that stay with the clients (the option `personal`), from their values in the global model.

    Args:
        spec: The options of the run.
        task: The clients.
        plan: How the run computes clients.
    """

    def __init__(self, spec: RunSpec, task: Task, plan: ExecutionPlan) -> None:
        assert isinstance(spec.evaluate_clients, EvaluateClients)
        alone = with_local(FedAvg(lr=spec.algorithm.lr), _fresh(spec.local))
        personal = None if spec.personal is None else Personal(as_personal(spec.personal).patterns)
        alone = with_personal(alone, spec.trained_model, personal, None)
        algorithm = with_batch_norm(alone, spec.model, spec.batchnorm, spec.personal_names)
        self._task = replace(task, local_steps=spec.evaluate_clients.finetune_steps, local_epochs=None)
        vars(self._task)["program"] = task.program  # compiled once
        self._executor = JobExecutor(self._task, algorithm, plan)

    def models(self, state: ModelState, ids: Tensor) -> ClientModels:
        """Return the function that fine-tunes the current model for some of the clients `ids`."""
        executor, data = self._executor, self._task.data
        x = state.evaluated
        initial = executor.declaration.initial(executor.declaration.client_state, x)
        if STATISTICS in initial:
            initial[STATISTICS] = state.measured[len(x) :]
        ctx = state.context(Cohort.of(ids, torch.ones(len(ids), dtype=torch.float64), data))
        width, lr = int(data.sizes[ids].max()), state.lr(max(state.t - 1, 0))

        def fine_tune(some: Tensor) -> Tensor:
            rows = []
            for chunk in executor.chunks(some):
                own = {name: v.expand(len(chunk), *v.shape) for name, v in initial.items()}
                last = torch.full((len(chunk),), -1)
                result = executor.execute(Job("train", chunk, ctx, [lr], [ctx.W], x, {}, own, last, {}, width))
                tuned = x + result.uploads["delta"]
                if PERSONAL in result.own:
                    tuned = join(tuned, result.own[PERSONAL])
                rows.append(with_statistics(tuned, result.own).clone())
            return torch.cat(rows)

        return fine_tune


def _fresh(local: Local | None) -> Local | None:
    """Return the local optimisers with state that lasts for the fine-tuning only."""
    if local is None:
        return None
    return tuple(map(_scratch, local)) if isinstance(local, Sequence) else _scratch(local)


def _scratch(optimizer: LocalOptimizer | SAM) -> LocalOptimizer | SAM:
    return replace(optimizer, keep=False, average=False) if isinstance(optimizer, LocalOptimizer) else optimizer
