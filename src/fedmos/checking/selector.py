"""The checks of a selector."""

from __future__ import annotations

import difflib
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..algorithm import ClientContext, Field, Gradient, Vectors
from ..algorithms import FedAvg
from ..core.history import Record
from ..engine.sampling import declares
from ..engine.watch import watched
from ..rng import Purpose, draws, stream
from ..run.run import Run
from ..run.spec import RunSpec
from ..selection.availability import Availability
from ..selection.selector import REPORTS, Selector, View
from .algorithm import Check
from .findings import Findings
from .trial import federation, independent_copy, options
from .watcher import MethodWatcher

_ROUNDS = 6
_WHERE_FEW = "; it fails where fewer clients than usual are available (view.N)"
_LARGEST = 1000
"""Clients of the largest federation that is tried."""
_SIMILARITY = 0.75
"""A report whose name is so similar to a built-in one is a misspelt one, and else a number that algorithms upload."""


@dataclass(frozen=True, kw_only=True)
class FedAvgWithNumbers(FedAvg):
    """FedAvg whose clients also upload ‖δ‖² under each of these names."""

    numbers: tuple[str, ...] = ()

    @property
    def up(self) -> Sequence[Field]:
        return ("delta", *((name, ()) for name in self.numbers))

    def finish(self, y: Tensor, s: Vectors, c: ClientContext, grad: Gradient) -> tuple[Vectors, Vectors]:
        delta = y - c.x
        return {"delta": delta} | dict.fromkeys(self.numbers, (delta**2).sum(-1, keepdim=True)), {}


@dataclass(frozen=True)
class FewAvailable(Availability):
    """One, two, three … available clients, and none in the third round."""

    def available(self, seed: int, round: int, N: int) -> Tensor:
        return torch.arange(N) < (0 if round == 2 else round + 1)


def _same_cohorts(a: list[Record], b: list[Record]) -> bool:
    return all(
        (r.cohort, r.weights, r.uploaded) == (q.cohort, q.weights, q.uploaded) for r, q in zip(a, b, strict=True)
    )


@dataclass
class SelectorChecks:
    """Draws cohorts with a selector in several ways that must agree."""

    selector: Selector
    findings: Findings
    local_steps: int | None

    def __post_init__(self) -> None:
        self._owner = type(self.selector).__name__
        self._records: list[Record] = []
        self._sizes = tuple(2 + i % 5 for i in range(self._federation_size()))

    def _federation_size(self) -> int:
        """Return a number of clients that the selector supports."""
        m = getattr(self.selector, self.selector.cohort_field, 0)
        for N in (10, m + 3 if isinstance(m, int) else 10, 30, 100, 300, _LARGEST):
            try:
                self.selector.validate(N)
            except ValueError:
                continue
            if N <= _LARGEST:
                return N
        return 10

    def checks(self) -> list[Check]:
        """Return the checks in their order."""
        return [
            ("declaration", lambda: self.selector.validate(len(self._sizes))),
            ("cohorts", self._check_cohorts),
            ("few available clients", self._check_few_available),
            ("drawing ahead", self._check_prefetchable),
            ("many rounds at once", self._check_select_ahead),
            ("the same run again, resumed", self._compare_resumed),
        ]

    def _watched(self) -> Selector:
        selector: Selector = independent_copy(self.selector)
        return watched(selector, MethodWatcher(self.findings))

    def _run(self, selector: Selector, **changes: Any) -> list[Record]:
        """Train with a selector and return the records of the rounds."""
        arguments = options(self.local_steps, availability=None) | {
            "data": federation(self._sizes),
            "selection": selector,
            "rounds": _ROUNDS,
            "eval_every": _ROUNDS,
        }
        algorithm = FedAvgWithNumbers(lr=0.1, numbers=self._numbers())
        return list(Run(RunSpec(algorithm=algorithm, **arguments | changes)).play().history)

    def _numbers(self) -> tuple[str, ...]:
        """Return the reports that are numbers of an algorithm, as far as the selector tells."""
        reports = self.selector.reports
        if isinstance(reports, str):
            return ()
        return tuple(
            name
            for name in dict.fromkeys(reports)
            if isinstance(name, str)
            and name != "delta"
            and not difflib.get_close_matches(name, REPORTS, n=1, cutoff=_SIMILARITY)
        )

    def _check_cohorts(self) -> None:
        """Draw cohorts of all clients, and check their sizes and weights."""
        self._records = self._run(self._watched())
        field = self.selector.cohort_field
        m = None if self.selector.state else getattr(self.selector, field, None)  # with state, there may be a warm-up
        for record in self._records:
            size, t = len(record.cohort), record.round
            if isinstance(m, int) and size > m:
                self.findings.add(
                    f"{self._owner}: 'select' must return at most {field} = {m} clients, got {size} in round {t}"
                )
            if record.weights and not sum(record.weights) > 0:
                self.findings.add(
                    f"{self._owner}: 'select' must return weights of which some are > 0, got a sum of 0 in round {t}"
                )

    def _check_few_available(self) -> None:
        """Draw cohorts where fewer clients are available than a cohort has."""
        if len(self.findings):  # mistakes that do not depend on it
            return
        try:
            self._run(self._watched(), availability=FewAvailable())
        except Exception as error:
            with self.findings.collected("" if "available" in str(error) else _WHERE_FEW):
                raise

    def _compare_resumed(self) -> None:
        """Compare the cohorts of a run of two parts with those of the same run in one."""
        if not self._records or self.findings.any_of("draws", "keeps", "varies", "ahead"):
            return
        with tempfile.TemporaryDirectory(prefix="fedmos-check-") as folder:
            out = Path(folder) / "run"
            self._run(independent_copy(self.selector), rounds=_ROUNDS // 2, out=out)
            resumed = self._run(independent_copy(self.selector), out=out, resume=True)
        if not _same_cohorts(resumed, self._records):
            again = _same_cohorts(self._run(independent_copy(self.selector)), self._records)
            self.findings.add(
                f"{self._owner}: 'select' must draw the same cohorts in {'a resumed run' if again else 'a second run'} "
                "with the same seed; declare what it remembers in 'state' and keep it in view.state, and draw from "
                "view.key"
            )

    def _check_prefetchable(self) -> None:
        """Compare draws that know seed, round, p and n only with draws that know more."""
        if not declares(self.selector, "prefetchable"):
            return
        for t in range(_ROUNDS):
            bare, rich = (self._drawn(independent_copy(self.selector), self._view(t, knows)) for knows in (False, True))
            if bare != rich:
                self.findings.add(
                    f"{self._owner}: 'prefetchable' must be False because 'select' uses more of the view than seed, "
                    "round, p and n; remove it",
                    "ahead",
                )

    def _check_select_ahead(self) -> None:
        if not (declares(self.selector, "prefetchable") and declares(self.selector, "select_ahead")):
            return
        rounds, selector = range(3, 3 + _ROUNDS), independent_copy(self.selector)
        ids, weights = selector.select_ahead(self._view(rounds.start, False), rounds)
        for t, row, of_row in zip(rounds, ids, weights, strict=True):
            if (row.tolist(), of_row.tolist()) != self._drawn(selector, self._view(t, False)):
                self.findings.add(
                    f"{self._owner}: 'select_ahead' must return the rows that 'select' returns round by round, but "
                    "a row differs; draw from view.keys(rounds)",
                    "ahead",
                )

    @staticmethod
    def _drawn(selector: Selector, view: View) -> tuple[list[int], list[float]]:
        ids, weights = selector.select(view)
        return torch.as_tensor(ids).tolist(), torch.as_tensor(weights, dtype=torch.float64).tolist()

    def _view(self, t: int, knows: bool) -> View:
        """Return a view of round t; with `knows`, it has reports, past rounds and durations, and clients answer."""
        data = federation(self._sizes)
        view = View(seed=0, round=t, p=data.importance, n=data.sizes)
        a, b, c = (draws(stream(1, t, i, Purpose.SELECT), view.N) if knows else torch.zeros(view.N) for i in range(3))
        view.ask_losses = lambda ids, batch: a[ids]
        view.ask_gradients = lambda ids: torch.stack([a, b, c], dim=1)[ids]
        if knows:
            view.reported = dict.fromkeys(self.selector.reports, a)
            view.last, view.picks, view.durations = (8 * a).long() - 1, (8 * b).long(), c
        return view
