"""Ranks that are killed: the others end promptly, nobody is left behind, and a restart comes to the same bits."""

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

import fedmos as fm
from helpers import jobs
from helpers.configs import RUN

pytestmark = pytest.mark.slow
PATIENCE = 60.0


@pytest.mark.parametrize("combination", jobs.COMBINATIONS)
def test_a_killed_rank_ends_the_job_and_any_number_of_ranks_resumes_it(tmp_path, combination):
    began = time.monotonic()
    jobs.in_ranks(2, lambda: jobs.train(combination, tmp_path / "whole"))
    took = time.monotonic() - began
    expected = jobs.digest(tmp_path / "whole")
    jobs.in_fork(lambda: jobs.train(combination, tmp_path / "alone"))
    assert jobs.digest(tmp_path / "alone") == expected
    moments, waits, killed = random.Random(combination), [], 0
    for attempt in range(12):
        out = tmp_path / "run"
        shutil.rmtree(out, ignore_errors=True)
        pids = jobs.ranks(2, lambda out=out: jobs.train(combination, out))
        time.sleep(moments.uniform(0.2, took))
        os.kill(pids[attempt % 2], signal.SIGKILL)
        began = time.monotonic()
        statuses = [_end(pid, began) for pid in pids]
        waits.append(time.monotonic() - began)
        killed += any(os.WIFSIGNALED(status) for status in statuses)
        jobs.in_ranks((1, 2, 4)[attempt % 3], lambda out=out: jobs.train(combination, out))
        assert jobs.digest(out) == expected
    assert killed >= 6
    print(
        f"\n{combination}: {killed} ranks killed, the others ended within {max(waits):.1f} s, all resumed to the same bits"
    )


def _end(pid: int, began: float) -> int:
    """The status with which a process ends, in time."""
    while time.monotonic() < began + PATIENCE:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return status
        time.sleep(0.02)
    os.kill(pid, signal.SIGKILL)
    raise AssertionError(f"a rank still waits after {PATIENCE} s")


def torchrun(folder: Path, *arguments: str, restarts: int = 0) -> subprocess.Popen:
    launcher = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--max-restarts", str(restarts)]
    changes = ["--set", "rounds=400", "--set", "checkpoint_every=10", "--set", "engine=batched"]
    command = [sys.executable, *launcher, "-m", "fedmos", *arguments, *changes]
    return subprocess.Popen(command, cwd=folder, env=os.environ | {"OMP_NUM_THREADS": "1"})


def workers(folder: Path) -> list[int]:
    """Processes that run fedmos in this folder, launchers apart."""
    found = []
    for process in Path("/proc").iterdir():
        try:
            if process.name.isdigit() and (process / "cwd").resolve() == folder.resolve():
                command = (process / "cmdline").read_bytes()
                if b"fedmos" in command and b"torch.distributed.run" not in command:
                    found.append(int(process.name))
        except OSError:
            continue
    return found


def wait_for(rounds: int, run: Path) -> None:
    deadline = time.monotonic() + 120
    while jobs.rounds_recorded(run) < rounds:
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_torchrun_with_a_killed_rank_and_a_killed_launcher(tmp_path):
    (tmp_path / "mos.toml").write_text(RUN.replace("target", "# target"))
    assert torchrun(tmp_path, "run", "mos.toml", "--out", "whole").wait(timeout=300) == 0
    whole = fm.Result.load(tmp_path / "whole")

    job = torchrun(tmp_path, "run", "mos.toml", "--out", "restarted", restarts=1)
    wait_for(35, tmp_path / "restarted")
    os.kill(workers(tmp_path)[1], signal.SIGKILL)
    assert job.wait(timeout=300) == 0  # it has started both again, and they went on from a checkpoint
    assert torch.equal(fm.Result.load(tmp_path / "restarted").params, whole.params)

    job = torchrun(tmp_path, "run", "mos.toml", "--out", "orphaned")
    wait_for(35, tmp_path / "orphaned")
    job.kill()
    job.wait()
    began = time.monotonic()
    while workers(tmp_path):
        assert time.monotonic() < began + PATIENCE
        time.sleep(0.05)
    print(f"\nlauncher killed: its ranks were gone after {time.monotonic() - began:.1f} s")
    assert len(fm.Result.load(tmp_path / "orphaned").history) < 400
    assert torchrun(tmp_path, "run", "mos.toml", "--out", "orphaned", "--resume").wait(timeout=300) == 0
    assert torch.equal(fm.Result.load(tmp_path / "orphaned").params, whole.params)
