"""`fm.run_many`: several runs, those of one shape side by side as one program."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from .engine.merge import Together, shape_of
from .engine.rounds import DivergenceError, Evaluation, Steps
from .engine.task import Moved
from .engine.work import Job
from .history import Record
from .precision import arithmetic
from .result import Result
from .session import Session
from .simulation import run

_log = logging.getLogger("fedmos")


def run_many(runs: Sequence[Mapping[str, Any]], **shared: Any) -> list[Result]:
    """Train several runs, and return their results in order.

    Each run is a mapping of `fm.run`'s arguments, beside those in `shared`. Runs that differ only in seed, data split,
    selection, step size or other numbers of the algorithm train side by side along the batch axis, for far less than
    the sum of their times; each gets the result it would get alone, up to rounding. Others run one after another. A run
    that diverges ends with the result it had, and `interrupted`; the others go on.
    """
    if isinstance(runs, Mapping) or not all(isinstance(given, Mapping) for given in runs):
        raise ValueError("run_many: 'runs' must be a list of mappings of fm.run's arguments")
    moved: Moved = {}
    sessions = [_session(dict(shared) | dict(given), moved) for given in runs]
    groups: dict[Any, list[Session]] = {}
    for number, session in enumerate(sessions):
        shape = shape_of(session.simulation)
        groups.setdefault(("alone", number) if shape is None else shape, []).append(session)
    results: dict[int, Result] = {}
    for group in groups.values():
        for session, result in zip(group, _play(group), strict=True):
            results[id(session)] = result
    return [results[id(session)] for session in sessions]


def _session(given: dict[str, Any], moved: Moved) -> Session:
    arguments = inspect.signature(run).bind(**given)
    arguments.apply_defaults()
    return Session(**arguments.arguments, moved=moved)


@torch.no_grad()
def _play(group: list[Session]) -> list[Result]:
    together = Together([session.simulation for session in group])
    ended: dict[int, Result] = {}
    with arithmetic(group[0].task.model.precision):
        for session in group:
            session.begin()
        try:
            while len(ended) < len(group):
                rounds = {}
                for number, session in enumerate(group):
                    if number not in ended:
                        steps = session.steps()
                        if steps is None:
                            ended[number] = session.end()
                        else:
                            rounds[number] = steps
                _round(group, rounds, together, ended)
        except KeyboardInterrupt:
            for number, session in enumerate(group):
                if number not in ended:
                    ended[number] = session.end(interrupted=True)
    return [ended[number] for number in range(len(group))]


def _round(
    group: list[Session], rounds: dict[int, Steps[Record]], together: Together, ended: dict[int, Result]
) -> None:
    """One round of every run: answer the runs' requests, those for equal work at once, until all are through."""
    answers: dict[int, Any] = dict.fromkeys(rounds)
    while answers:
        jobs: dict[Any, list[tuple[int, Job]]] = {}
        for number, answer in list(answers.items()):
            session = group[number]
            del answers[number]
            try:
                request = rounds[number].send(answer)
            except StopIteration as end:
                session.after(end.value)
                continue
            except DivergenceError as error:
                _log.warning("A run of several ends early: %s", error)
                ended[number] = session.end(interrupted=True)
                continue
            if isinstance(request, Evaluation):
                answers[number] = session.simulation.evaluator(request.x)
            else:
                jobs.setdefault((request.phase, len(request.ids), request.ctx.S), []).append((number, request))
        for equal in jobs.values():
            for (number, _), done in zip(equal, together.do(equal), strict=True):
                answers[number] = done
