"""`fm.run_many`: several runs, those of one shape side by side as one program."""

from __future__ import annotations

import logging
from collections.abc import Container, Iterable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

from ..core.interrupts import message_on_interrupt
from ..core.notices import display_messages
from ..core.precision import arithmetic
from ..engine.merged_runs import MergedRuns, merge_key
from ..engine.process_group import join
from ..engine.ranks import Ranks
from ..engine.round_results import DivergenceError
from ..engine.task import DeviceCache
from ..evaluation.metrics import Evaluator
from .callbacks import progress_display
from .options import call_with_options
from .repeatability import repeatable
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

    Args:
        runs: By run, the arguments of `fm.run` in which it differs.
        shared: The arguments of `fm.run` that all runs have in common.

    Returns:
        The results, in the order of `runs`.

    Raises:
        ValueError: If there is no run, an argument is invalid, or two runs have the same `out`.

    Example:
        >>> shared = {"model": model, "data": data, "selection": fm.Uniform(m=3), "rounds": 2, "local_steps": 1}
        >>> results = fm.run_many([{"seed": 0}, {"seed": 1}], algorithm=fm.FedAvg(lr=0.1), batch_size=8, **shared)
        >>> [len(result.history) for result in results]
        [2, 2]
    """
    runs = [] if isinstance(runs, Mapping | str) or not isinstance(runs, Iterable) else list(runs)
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
    with message_on_interrupt(_interrupt_message(folders)), ExitStack() as folders_in_use:
        planned = []
        for spec in specs:
            planned.append(folders_in_use.enter_context(closing(Run(spec, device_cache=device_cache))))
            if planned[-1].interrupted:
                raise KeyboardInterrupt
        groups: dict[Any, list[Run]] = {}
        for number, run_ in enumerate(planned):
            key = merge_key(run_.state)
            groups.setdefault(("alone", number) if key is None else key, []).append(run_)
        results: dict[int, Result] = {}
        interrupted = False
        for group in groups.values():
            ended, interrupted = _play_group(group, interrupted)
            results |= {id(run_): result for run_, result in zip(group, ended, strict=True)}
        return [results[id(run_)] for run_ in planned]


def _interrupt_message(folders: list[Path]) -> str:
    """Return what Ctrl-C shows at once."""
    how = "Continue with: the same call and resume=True" if folders else "The results so far are returned"
    return f"Stopping … {how}"


def _play_group(group: list[Run], interrupted: bool) -> tuple[list[Result], bool]:
    """Play runs with the same merge key; returns their results and whether Ctrl-C was pressed, now or before."""
    merged = MergedRuns([run_.state for run_ in group], Evaluator.of_all([run_.task for run_ in group]))
    ended: dict[int, Result] = {}
    display = _GroupProgress(group)
    with display.attached(), arithmetic(group[0].task.model.precision):
        for number, run_ in enumerate(group):
            run_.start()
            if "diverged" in run_.info:  # a resumed run that diverged before would diverge again
                ended[number] = run_.finish(interrupted=True)
        try:
            first = True
            while len(ended) < len(group) and not interrupted:
                _play_rounds(group, merged, ended, first)
                first = False
                display.update(ended)
        except KeyboardInterrupt:
            interrupted = True
        for number, run_ in enumerate(group):
            if number not in ended:
                ended[number] = run_.finish(interrupted=True)
    return [ended[number] for number in range(len(group))], interrupted


class _GroupProgress:
    """The progress of runs that train side by side: that of the first one that has not ended."""

    def __init__(self, group: list[Run]) -> None:
        self._group = group
        label = group[0].label if len(group) == 1 else f"{group[0].label} and {len(group) - 1} more"
        self._display = progress_display(group[0].spec.progress, label)

    @contextmanager
    def attached(self) -> Iterator[None]:
        """Show the progress in the block, where the runs are played."""
        if self._display is None:
            yield
            return
        self._display.on_start(max(run_.rounds for run_ in self._group), min(run_.state.t for run_ in self._group))
        with display_messages(self._display.say):
            yield
        self._display.on_end(None)

    def update(self, ended: Container[int]) -> None:
        """Show the last record of a run that has not ended."""
        going = (run_ for number, run_ in enumerate(self._group) if number not in ended and len(run_.state.history))
        if self._display is not None and (run_ := next(going, None)) is not None:
            self._display.on_round(run_.state.history[-1])


def _play_rounds(group: list[Run], merged: MergedRuns, ended: dict[int, Result], first: bool) -> None:
    """Play one round of every run that has not ended, and end those that are complete or diverge."""
    rounds = {}
    for number, run_ in enumerate(group):
        if number not in ended:
            if run_.is_complete():
                ended[number] = run_.finish()
            else:
                rounds[number] = run_.next_round()
    with ExitStack() as checks:
        for run_ in group if first else []:
            checks.enter_context(repeatable(run_.state))
        records = merged.play(rounds)
    for number, record in records.items():
        if isinstance(record, DivergenceError):
            _log.warning("One of several runs ends early: %s", record)
            group[number].info.diverged = str(record)
            ended[number] = group[number].finish(interrupted=True)
        else:
            group[number].finish_round(record)
