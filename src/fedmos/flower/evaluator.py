"""The metrics of a deployment's models."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ..engine.task import Task
from ..evaluation.measurable import measurable
from ..evaluation.metrics import Evaluator


class DeploymentEvaluator(Evaluator):
    """Evaluates on the server's test set and, with `ask`, on the clients' training data."""

    def __init__(self, task: Task, ask: Callable[[Tensor, list[str]], Tensor] | None) -> None:
        super().__init__([task], train=False)
        self._ask = ask
        self._asked = [] if ask is None else [name for name in measurable(task) if name.startswith("train_")]
        self.names = self._asked + self.names

    def client_accuracy(self, x: Tensor) -> None:
        """Return None: the server cannot read the clients' data."""

    def __call__(self, xs: Tensor) -> Tensor:
        tested = super().__call__(xs)
        if self._ask is None:
            return tested
        trained = torch.stack([self._ask(x, self._asked).to(tested.device) for x in xs])
        return torch.cat([trained, tested], dim=1)
