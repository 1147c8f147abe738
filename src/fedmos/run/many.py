"""`fm.run_many`: several runs, those of one shape side by side as one program."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..core.history import Record
from ..core.precision import arithmetic
from ..engine.cohort import Read, read
from ..engine.job import Job
from ..engine.merged_runs import MergedRuns, shape_of
from ..engine.ranks import Ranks, join
from ..engine.round import DivergenceError, Evaluation, Steps
from ..engine.task import DeviceCache
from .options import call_with_options
from .preflight import repeatable
from .result import Result
from .run import Run
from .spec import RunSpec

_log = logging.getLogger("fedmos")


def run_many(runs: Iterable[Mapping[str, Any]], **shared: Any) -> list[Result]:
    """Train several runs, and return their results in order.

    Each run is a mapping of `fm.run`'s arguments, beside those in `shared`. Runs that differ only in seed, data split,
    selection, step size or other numbers of the algorithm train side by side along the batch axis, for far less than
    the sum of their times; each gets the result it would get alone, up to rounding. Others run one after another. A run
    that diverges ends with the result it had, and `interrupted`; the others go on.
    """
    runs = [] if isinstance(runs, Mapping | str) else list(runs)
    if not runs or not all(isinstance(given, Mapping) for given in runs):
        raise ValueError("run_many: 'runs' must be a list of mappings of fm.run's arguments, and not empty")
    join()
    if Ranks.joined().size > 1:
        raise ValueError("Cannot train several runs together over several ranks; use fm.run for one after another")
    specs = [call_with_options("run_many", RunSpec, (), dict(shared) | dict(one)) for one in runs]
    folders = [Path(spec.out).absolute() for spec in specs if spec.out is not None]
    if len(set(folders)) < len(folders):
        raise ValueError("run_many: 'out' must be a folder of its own for each run")
    device_cache: DeviceCache = {}
    with ExitStack() as folders_in_use:
        sessions = [folders_in_use.enter_context(closing(Run(spec, device_cache=device_cache))) for spec in specs]
        groups: dict[Any, list[Run]] = {}
        for number, session in enumerate(sessions):
            shape = shape_of(session.simulation)
            groups.setdefault(("alone", number) if shape is None else shape, []).append(session)
        results: dict[int, Result] = {}
        interrupted = False
        for group in groups.values():
            ended, interrupted = _play(group, interrupted)
            results |= {id(session): result for session, result in zip(group, ended, strict=True)}
        return [results[id(session)] for session in sessions]


def _play(group: list[Run], interrupted: bool) -> tuple[list[Result], bool]:
    """The results of runs of one shape, and whether somebody pressed Ctrl-C, now or before."""
    together = MergedRuns([session.simulation for session in group])
    ended: dict[int, Result] = {}
    with arithmetic(group[0].task.model.precision):
        for number, session in enumerate(group):
            session.begin()
            if "diverged" in session.info:  # earlier, and would again
                ended[number] = session.end(interrupted=True)
        try:
            first = True
            while len(ended) < len(group) and not interrupted:
                rounds = {}
                for number, session in enumerate(group):
                    if number not in ended:
                        steps = session.steps()
                        if steps is None:
                            ended[number] = session.end()
                        else:
                            rounds[number] = steps
                with ExitStack() as stack:
                    for session in group if first else []:
                        stack.enter_context(repeatable(session.task))
                    records = _Round(group, rounds, together, ended).play()
                first = False
                for number, record in records.items():
                    group[number].after(record)
        except KeyboardInterrupt:
            interrupted = True
        for number, session in enumerate(group):
            if number not in ended:
                ended[number] = session.end(interrupted=True)
    return [ended[number] for number in range(len(group))], interrupted


class _Round:
    """One round of every run: the runs' requests are answered, those for equal work at once, until all are through."""

    def __init__(
        self, group: list[Run], rounds: dict[int, Steps[Record]], together: MergedRuns, ended: dict[int, Result]
    ) -> None:
        self._group, self._rounds, self._together, self._ended = group, rounds, together, ended
        self._jobs: dict[Any, list[tuple[int, Job]]] = {}
        self._models: list[tuple[int, Tensor]] = []
        self._reads: list[tuple[int, Read]] = []
        self._records: dict[int, Record] = {}

    @torch.no_grad()
    def play(self) -> dict[int, Record]:
        for number in self._rounds:
            self._go_on(number, None)
        # What is only queued comes first; reading, which waits for the device, when there is nothing else to do.
        while True:
            if self._jobs:
                jobs = self._jobs.pop(next(iter(self._jobs)))
                self._answer(jobs, self._together.do(jobs))
            elif self._models:
                models, self._models = self._models, []
                self._answer(models, self._together.evaluate(models))
            elif self._reads:
                reads, self._reads = self._reads, []
                self._answer(reads, read([request for _, request in reads]))
            else:
                return self._records

    def _answer(self, requests: Sequence[tuple[int, Any]], answers: Sequence[Any]) -> None:
        for (number, _), answer in zip(requests, answers, strict=True):
            self._go_on(number, answer)

    def _go_on(self, number: int, answer: Any) -> None:
        """Let a run go on to its next request, or to the end of its round."""
        session = self._group[number]
        try:
            request = self._rounds[number].send(answer)
            while isinstance(request, Read) and request.now:
                request = self._rounds[number].send(read([request])[0])
        except StopIteration as end:
            self._records[number] = end.value
        except DivergenceError as error:
            _log.warning("A run of several ends early: %s", error)
            session.info["diverged"] = str(error)
            self._ended[number] = session.end(interrupted=True)
        else:
            if isinstance(request, Job):
                self._jobs.setdefault(self._together.alike(number, request), []).append((number, request))
            elif isinstance(request, Evaluation):
                self._models.append((number, request.x))
            else:
                self._reads.append((number, request))
