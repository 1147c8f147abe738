"""Runs on Ray: the results of processes of this machine, also when workers are lost."""

import json
import os
import signal
import threading
import time
from collections import deque
from pathlib import Path

import pytest

from fedmos.config import schema as config
from fedmos.experiments.compare import compare
from fedmos.experiments.executors import ProcessExecutor, make_executor
from fedmos.experiments.progress import ComparisonObserver
from fedmos.experiments.ray_executor import RayExecutor
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


METHODS = [
    {"label": name, "algorithm": {"name": name, "lr": 0.05}, "selection": {"name": "Uniform", "m": 5}}
    for name in ("FedAvg", "Scaffold", "FedCM", "FedMoS", "FedAvgM", "FedDyn")
]


def settings(methods: int, seeds: int, rounds: int) -> config.CompareConfig:
    model = {"name": "mlp", "features": 64}
    return comparisons.settings(
        methods=METHODS[:methods], seeds=list(range(seeds)), rounds=rounds, model=model, engine="batched"
    )


def busy_workers() -> list[int]:
    """Processes of the Ray cluster that this process has started in which a task runs."""
    parents, names = {}, {}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            parents[int(path.name)] = int((path / "stat").read_text().rpartition(")")[2].split()[1])
            names[int(path.name)] = (path / "cmdline").read_text()
        except OSError:
            continue

    def descends(pid: int) -> bool:
        while pid in parents and pid != os.getpid():
            pid = parents[pid]
        return pid == os.getpid()

    return [pid for pid, name in names.items() if name.startswith("ray::run_task") and descends(pid)]


class Killer(threading.Thread):
    """Kills a worker that has saved a checkpoint of an unfinished run here, so many times."""

    def __init__(self, out: Path, times: int, checkpoint: bool) -> None:
        super().__init__(daemon=True)
        self._out, self._times, self._checkpoint = out, times, checkpoint
        self.killed: list[int] = []
        self.start()

    def run(self) -> None:
        what = "runs/*/checkpoints/*/manifest.json" if self._checkpoint else "runs/*/metrics.jsonl"
        while len(self.killed) < self._times:
            known = len(list(self._out.glob(what)))
            while len(list(self._out.glob(what))) <= known or not (found := busy_workers()):
                time.sleep(0.3)
            os.kill(found[0], signal.SIGKILL)
            self.killed.append(found[0])


def same_as_alone(tmp_path: Path, given: config.CompareConfig, kills: int, checkpoint: bool) -> int:
    """Compare with and without Ray, and return the rounds that were trained with Ray by workers that were not lost."""
    alone = compare(given, tmp_path / "alone", workers=2)
    observer, killer = ComparisonObserver(), Killer(tmp_path / "ray", kills, checkpoint)
    table = compare(given, tmp_path / "ray", observer, workers=2, on="ray")
    assert len(set(killer.killed)) == kills
    assert (tmp_path / "ray/table.md").read_text() == (tmp_path / "alone/table.md").read_text()
    assert table.cells() == alone.cells()
    runs = sorted(path.name for path in (tmp_path / "alone/runs").iterdir())
    assert len(runs) == len(given.methods) * len(given.seeds)
    for run in runs:
        assert digest(tmp_path / "ray/runs" / run) == digest(tmp_path / "alone/runs" / run)
    return observer.rounds_trained


@pytest.mark.extended
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="workers are found in /proc")
def test_a_lost_worker_changes_nothing(tmp_path):
    given = settings(methods=2, seeds=2, rounds=60)
    assert same_as_alone(tmp_path, given, kills=1, checkpoint=False) <= 240
    again = ComparisonObserver()
    compare(given, tmp_path / "ray", again, workers=2)
    assert again.rounds_trained == 0  # processes of this machine find all runs done


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="workers are found in /proc")
def test_sixty_runs_with_two_lost_workers(tmp_path):
    """Runs continue from the checkpoints that the lost workers have sent."""
    given = settings(methods=6, seeds=10, rounds=100)
    trained = same_as_alone(tmp_path, given, kills=2, checkpoint=True)
    starts = [
        len(json.loads((run / "environment.json").read_text())["starts"]) for run in (tmp_path / "ray/runs").iterdir()
    ]
    print((tmp_path / "ray/table.md").read_text())
    print(f"{starts.count(1)} runs started once, {len(starts) - starts.count(1)} more than once; {trained} rounds")
    assert max(starts) > 1
    assert trained < 60 * 100
