"""What the models of clients depend on: the state of a run, or what a client of a deployment knows of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from torch import Tensor

from ..algorithm import Algorithm, Context
from .client_store import ClientStore
from .cohort import Cohort
from .declaration import Declaration
from .task import Task


class ModelState(Protocol):
    """The state from which clients' own and fine-tuned models are made."""

    @property
    def t(self) -> int:
        """The number of rounds played."""

    @property
    def x(self) -> Tensor:
        """The server's model."""

    @property
    def evaluated(self) -> Tensor:
        """The model that is evaluated."""

    @property
    def measured(self) -> Tensor:
        """The same, followed by running statistics if clients keep them."""

    @property
    def task(self) -> Task:
        """The clients."""

    @property
    def algorithm(self) -> Algorithm:
        """The algorithm of the run."""

    @property
    def declaration(self) -> Declaration:
        """What it declares."""

    @property
    def clients(self) -> ClientStore:
        """The state of clients."""

    @property
    def lr(self) -> Callable[[int], float]:
        """The step size of a round."""

    def context(self, cohort: Cohort) -> Context:
        """Return the context of the next round with this cohort."""
