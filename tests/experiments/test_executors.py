"""Runs on Ray: the results of processes of this machine, also when workers are lost."""

import json
from collections import deque
from collections.abc import Sequence
from pathlib import Path

import pytest

from fedmos.config import schema as config
from fedmos.experiments.compare import compare
from fedmos.experiments.executors import ProcessExecutor, make_executor
from fedmos.experiments.progress import ComparisonObserver
from fedmos.experiments.ray_executor import RayExecutor
from fedmos.experiments.ray_worker import SECONDS
from helpers import comparisons
from helpers.jobs import digest


@pytest.mark.parametrize("on", ["", "slurm", "ray://", "http://host"])
def test_other_places_are_refused(on):
    with pytest.raises(ValueError, match=r"'on' must be 'ray'.*ray://HOST:10001"):
        make_executor(on, None)


def test_processes_are_the_default():
    executor = make_executor(None, None, workers=3)
    assert isinstance(executor, ProcessExecutor)
    assert executor.workers == 3


def test_a_task_that_is_submitted_while_the_cluster_fails_has_its_error():
    failure = ConnectionError("the cluster is gone")

    class Serving(deque):
        """The other thread gives every waiting task the error as soon as it waits."""

        def append(self, task):
            super().append(task)
            task.future.set_exception(failure)

    executor = RayExecutor("ray")
    executor._waiting, executor._failure = Serving(), failure
    assert executor.submit(comparisons.settings, "{}", []).exception() is failure


LOST = """
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

import fedmos as fm

paused = []


@dataclass(frozen=True)
class Lost(fm.FedAvg):
    \"""FedAvg whose process is killed in round 50, once for every file `kill-*` beside this one.

    It pauses in round 40, after which a checkpoint is due, and in round 50, until the checkpoint is sent.
    \"""

    wait: float = 0.0

    def server(self, x, state, agg, ctx):
        left = list(Path(__file__).parent.glob("kill-*")) if ctx.t in (40, 50) else []
        if ctx.t == 40 and left and not paused:
            paused.append(True)
            time.sleep(2 * self.wait)
        if ctx.t == 50:
            for file in left:
                try:
                    file.unlink()
                except FileNotFoundError:  # another process took it
                    continue
                time.sleep(self.wait)
                os.kill(os.getpid(), signal.SIGKILL)
        return super().server(x, state, agg, ctx)
"""
"""An algorithm of the user, with which a worker is lost at a known place."""


def settings(folder: Path, seeds: int, rounds: int, wait: float, methods: Sequence[str] = ()) -> config.CompareConfig:
    (folder / "lost.py").write_text(LOST)
    lost = {"name": f"{folder / 'lost.py'}:Lost", "lr": 0.05, "wait": wait}
    algorithms = {"Lost": lost} | {name: {"name": name, "lr": 0.05} for name in methods}
    uniform = {"name": "Uniform", "m": 5}
    return comparisons.settings(
        methods=[{"label": label, "algorithm": given, "selection": uniform} for label, given in algorithms.items()],
        seeds=list(range(seeds)),
        rounds=rounds,
        model={"name": "mlp", "features": 64},
        engine="batched",
    )


def same_as_alone(folder: Path, given: config.CompareConfig, kills: int) -> int:
    """Compare with and without Ray, and return the rounds that were trained with Ray by workers that were not lost."""
    alone = compare(given, folder / "alone", workers=2)
    for number in range(kills):
        (folder / f"kill-{number}").touch()
    observer = ComparisonObserver()
    table = compare(given, folder / "ray", observer, workers=2, on="ray")
    assert not list(folder.glob("kill-*"))  # all workers that were to be lost were
    assert (folder / "ray/table.md").read_text() == (folder / "alone/table.md").read_text()
    assert table.cells() == alone.cells()
    runs = sorted(path.name for path in (folder / "alone/runs").iterdir())
    assert len(runs) == len(given.methods) * len(given.seeds)
    for run in runs:
        assert digest(folder / "ray/runs" / run) == digest(folder / "alone/runs" / run)
    return observer.rounds_trained


@pytest.mark.extended
def test_a_lost_worker_changes_nothing(tmp_path):
    given = settings(tmp_path, seeds=2, rounds=60, wait=0, methods=["Scaffold"])
    assert same_as_alone(tmp_path, given, kills=1) <= 240
    again = ComparisonObserver()
    compare(given, tmp_path / "ray", again, workers=2)
    assert again.rounds_trained == 0  # processes of this machine find all runs done


@pytest.mark.slow
def test_sixty_runs_with_two_lost_workers(tmp_path):
    """Runs continue from the checkpoints that the lost workers have sent."""
    methods = ["Scaffold", "FedCM", "FedMoS", "FedAvgM", "FedDyn"]
    given = settings(tmp_path, seeds=10, rounds=100, wait=3 * SECONDS, methods=methods)
    trained = same_as_alone(tmp_path, given, kills=2)
    starts = [
        len(json.loads((run / "environment.json").read_text())["starts"]) for run in (tmp_path / "ray/runs").iterdir()
    ]
    print((tmp_path / "ray/table.md").read_text())
    print(f"{starts.count(1)} runs started once, {len(starts) - starts.count(1)} more than once; {trained} rounds")
    assert max(starts) > 1
    assert trained < 60 * 100
