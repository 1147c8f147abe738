"""Several processes as one run: the same bits, however many they are."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import fedmos as fm
from fedmos.engine.ranks import Ranks

TESTS = Path(__file__).parents[1]


def test_one_two_and_four_ranks_come_to_the_same_bits():
    """Model, server's state, every client's state and history, for jobs of all kinds (see helpers/ranks_job.py)."""
    environment = os.environ | {"PYTHONPATH": f"{TESTS.parent / 'src'}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    job = subprocess.run(
        [sys.executable, TESTS / "helpers" / "ranks_job.py"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert job.returncode == 0, job.stderr
    digests, in_company = json.loads(job.stdout.splitlines()[-1])
    assert len(digests) == 8
    for name, by_size in digests.items():
        assert len(set(by_size.values())) == 1, f"{name}: {by_size}"
    assert len({by_size["1"] for by_size in digests.values()}) == len(digests)
    assert in_company["two"] == in_company["four"] == in_company["two, then one"]
    assert len({in_company[name] for name in ("one rank", "two", "two, cut off")}) == 3


LEAVING = """
import glob
import torch
from fedmos.engine.ranks import join, leave

join()
torch.func.vmap(torch.func.grad(torch.sum))(torch.ones(2, 3))
leave()
threads = [open(name).read() for name in glob.glob("/proc/self/task/*/comm")]
assert threads and not any("gloo" in thread for thread in threads), threads
"""


@pytest.mark.skipif(sys.platform != "linux", reason="threads are counted in /proc")
def test_who_leaves_the_others_leaves_no_threads_behind(tmp_path):
    """As the process ends, they would now and then abort it."""
    (tmp_path / "leaving.py").write_text(LEAVING)
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", tmp_path / "leaving.py"]
    environment = os.environ | {"PYTHONPATH": str(TESTS.parent / "src"), "OMP_NUM_THREADS": "1"}
    job = subprocess.run(launcher, env=environment, capture_output=True, text=True, timeout=300)
    assert job.returncode == 0, job.stderr


def ranks_of(size: int, speed: list[float]) -> Ranks:
    ranks = Ranks()
    ranks.size, ranks._speed = size, speed
    return ranks


def test_work_goes_to_who_would_be_done_first():
    assert ranks_of(1, [1.0]).assign([3.0, 1.0]) == [0, 0]
    even = ranks_of(2, [1.0, 1.0]).assign([1.0] * 8)
    assert even.count(0) == even.count(1) == 4
    uneven = ranks_of(2, [3.0, 1.0]).assign([1.0] * 8)
    assert uneven.count(0) == 6
    assert ranks_of(2, [1.0, 1.0]).assign([5.0, 1.0, 1.0, 1.0, 1.0, 1.0]) == [0, 1, 1, 1, 1, 1]
    assert ranks_of(4, [1.0] * 4).assign([1.0, 1.0]) == [0, 1]


@pytest.mark.parametrize("width", [2, 4, 5, 13])
def test_the_width_of_chunks_does_not_show(quick, monkeypatch, width):
    """Sums are taken block by block in the order of clients, and a client left alone is computed as one of two."""
    how = {"engine": "batched", "rounds": 2, "selection": fm.Uniform(m=13), "algorithm": fm.Scaffold(lr=0.1)}
    whole = quick(**how)
    monkeypatch.setattr("fedmos.engine.execution_plan._max_parallel_clients", lambda task: width)
    assert torch.equal(quick(**how).params, whole.params)


def test_products_round_alike_wherever_their_factors_lie(quick, monkeypatch):
    """Rows of odd length begin where the processor's vectors do not; see MKL_CBWR in fedmos/__init__.py."""
    how = {
        "engine": "batched",
        "model": fm.models.mlp(features=64),
        "algorithm": fm.FedMoS(lr=0.1),
        "selection": fm.Uniform(m=13),
        "batch_size": 5,
    }
    whole = quick(**how)
    monkeypatch.setattr("fedmos.engine.execution_plan._max_parallel_clients", lambda task: 3)
    assert torch.equal(quick(**how).params, whole.params)
