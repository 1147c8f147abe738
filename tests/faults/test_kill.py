"""kill -9 at any moment: the run resumes to the same bits."""

import os
import random
import shutil
import signal
import subprocess
import sys
import time

import pytest
import torch

import fedmos as fm
from helpers import jobs
from helpers.configs import RUN

pytestmark = pytest.mark.slow
KILLS = {"FedMoS + ACS": 17, "SCAFFOLD + MD": 17, "FedHBM + rpow-d": 16}


@pytest.mark.parametrize("combination", jobs.COMBINATIONS)
def test_killed_at_random_moments(tmp_path, combination):
    def run(slow: bool, out) -> None:
        if slow:
            jobs.slow_disk()
        jobs.train(combination, out)

    took = {}
    for slow in (False, True):
        began = time.monotonic()
        jobs.in_fork(lambda slow=slow: run(slow, tmp_path / f"whole-{slow}"))
        took[slow] = time.monotonic() - began
    expected = jobs.digest(tmp_path / "whole-False")
    assert jobs.digest(tmp_path / "whole-True") == expected

    moments, killed, inside, lost, never = random.Random(combination), 0, 0, [], 0
    while killed < KILLS[combination]:
        out, slow = tmp_path / "run", killed % 2 == 1
        shutil.rmtree(out, ignore_errors=True)
        child = jobs.fork(lambda slow=slow, out=out: run(slow, out))
        time.sleep(moments.uniform(0.02, took[slow]))
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        if not os.WIFSIGNALED(status):
            continue  # it was through
        killed += 1
        inside += bool(jobs.half_written(out))
        recorded, saved = jobs.rounds_recorded(out), jobs.rounds_saved(out)
        lost.append(recorded - saved)
        never += saved == 0
        assert lost[-1] <= jobs.EVERY
        jobs.in_fork(lambda out=out: run(False, out))
        assert jobs.digest(out) == expected
        assert not jobs.half_written(out)
    print(
        f"\n{combination}: {killed} of {killed} killed runs resumed to {expected[:16]}…; {inside} killed inside a "
        f"write, {never} before the first checkpoint; rounds lost: at most {max(lost)}, interval {jobs.EVERY}"
    )


def test_the_command_line_killed_and_resumed(tmp_path):
    """With real processes, as a user has them."""

    def start(*arguments: str) -> subprocess.Popen:
        return subprocess.Popen([sys.executable, "-m", "fedmos", *arguments], cwd=tmp_path)

    changes = ["--set", "rounds=300", "--set", "checkpoint_every=10", "--set", "engine=batched"]
    (tmp_path / "mos.toml").write_text(RUN.replace("target", "# target"))
    assert start("run", "mos.toml", "--out", "whole", *changes).wait() == 0
    child = start("run", "mos.toml", "--out", "run", *changes)
    while jobs.rounds_recorded(tmp_path / "run") < 35:
        time.sleep(0.01)
    child.kill()
    child.wait()
    assert 30 <= jobs.rounds_saved(tmp_path / "run") < 300
    assert start("resume", "run").wait() == 0
    whole, resumed = (fm.Result.load(tmp_path / name) for name in ("whole", "run"))
    assert torch.equal(whole.params, resumed.params)
    assert "was ended from outside" in (tmp_path / "run" / "log.txt").read_text()
