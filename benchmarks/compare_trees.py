"""Time per round of two source trees of fedmos, side by side.

    python benchmarks/compare_trees.py OLD_TREE NEW_TREE [jobs] [--engine batched]

Each tree plays a long run of the same job in a process of its own. The processes take turns: one plays a few rounds
while the other waits. So both meet the same load of a shared machine. Printed are the median times of a round and the
median of the pairs' ratios, NEW to OLD: below 1, the new tree is faster.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any

JOBS = ["mlp", "mnist", "pfl-cifar", "lenet"]
TURN_SECONDS = 0.5
"""The least time of a turn."""


class Tree:
    """A process that plays rounds of a job with one tree, a turn at a time."""

    def __init__(self, root: Path, job: str, algorithm: str, engine: str) -> None:
        self._cache = tempfile.TemporaryDirectory()
        environment = os.environ | {"PYTHONPATH": str(root / "src"), "FEDMOS_CACHE": self._cache.name}
        words = [sys.executable, __file__, "--child", root, job, algorithm, engine]
        self._process = subprocess.Popen(
            [str(word) for word in words], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def turn(self, rounds: int) -> float:
        """Play so many rounds; return the seconds of one."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{rounds}\n")
        self._process.stdin.flush()
        return float(self._process.stdout.readline()) / rounds

    def __enter__(self) -> Tree:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()
        self._cache.cleanup()


def child(root: str, job: str, algorithm: str, engine: str) -> None:
    """Play rounds of a long run, as many at a time as a line of the standard input says, until it ends."""
    sys.path.insert(0, f"{root}/benchmarks")
    import engines  # the jobs of the tree itself

    import fedmos as fm

    assert Path(fm.__file__).is_relative_to(root), fm.__file__
    left, began = 0, 0.0

    def wait(record: Any) -> None:
        nonlocal left, began
        left -= 1
        if left > 0:
            return
        if began:
            print(time.perf_counter() - began, flush=True)
        line = sys.stdin.readline()
        if not line:
            raise KeyboardInterrupt
        left, began = int(line), time.perf_counter()

    if engine == "compiled":
        os.environ["FEDMOS_ENGINE"] = "compiled"
    fm.run(**engines.Ours(engines.JOBS[job], algorithm, "cpu", engine, None).arguments, callbacks=[wait])


def compare(job: str, algorithm: str, given: argparse.Namespace) -> None:
    roots = [root.resolve() for root in (given.old, given.new)]
    with Tree(roots[0], job, algorithm, given.engine) as old, Tree(roots[1], job, algorithm, given.engine) as new:
        warm = [tree.turn(given.warm) for tree in (old, new)]
        rounds = max(1, round(TURN_SECONDS / max(warm)))
        times: dict[Tree, list[float]] = {old: [], new: []}
        for number in range(given.turns):
            for tree in (old, new) if number % 2 else (new, old):
                times[tree].append(tree.turn(rounds))
    ratios = [b / a for a, b in zip(times[old], times[new], strict=True)]
    before, now = (1e3 * statistics.median(taken) for taken in times.values())
    print(f"| {job} | {algorithm} | {before:.1f} | {now:.1f} | {statistics.median(ratios):.3f} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument("jobs", nargs="*", default=JOBS)
    parser.add_argument("--algorithms", nargs="*", default=["FedAvg", "FedMoS"])
    parser.add_argument("--engine", default="batched", choices=["loop", "batched", "compiled", "auto"])
    parser.add_argument("--turns", type=int, default=15)
    parser.add_argument("--warm", type=int, default=3, help="rounds that are not counted")
    given = parser.parse_args()
    print(
        "| job | algorithm | ms a round, OLD | ms a round, NEW | NEW / OLD, median of pairs |\n|---|---|---:|---:|---:|"
    )
    for job in given.jobs:
        for algorithm in given.algorithms:
            compare(job, algorithm, given)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        child(*sys.argv[2:])
    else:
        main()
