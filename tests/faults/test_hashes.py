"""One hash whatever surrounds a run, and another for every seed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from helpers import jobs

pytestmark = pytest.mark.slow

SCRIPT = """
import sys
from pathlib import Path
import torch
torch.set_num_threads(int(sys.argv[2]))
sys.path.insert(0, sys.argv[1])
from helpers import jobs
for combination in jobs.COMBINATIONS:
    out = Path("out") / combination
    jobs.train(combination, out, rounds=10)
    print(jobs.digest(out))
"""


def test_hashes_do_not_depend_on_the_environment(tmp_path):
    surroundings = [
        (1, {"PYTHONHASHSEED": "0", "TZ": "UTC"}),
        (1, {"PYTHONHASHSEED": "1", "TZ": "Asia/Kathmandu"}),
        (2, {"PYTHONHASHSEED": "random", "TZ": "America/St_Johns", "LC_ALL": "C"}),
    ]
    hashes = set()
    for number, (threads, changes) in enumerate(surroundings):
        folder = tmp_path / f"a folder {number}"
        folder.mkdir()
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT, str(Path(__file__).parents[1]), str(threads)],
            cwd=folder,
            env=os.environ | changes,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        hashes.add(done.stdout)
    (common,) = hashes
    assert len(set(common.split())) == 3
    print(
        f"\none hash for each combination over hash seeds, time zones, locales, folders and threads: {common.split()}"
    )


def test_ten_seeds_give_ten_hashes(tmp_path):
    for seed in range(10):
        jobs.in_fork(lambda seed=seed: jobs.train("FedMoS + ACS", tmp_path / str(seed), seed=seed, rounds=5))
    assert len({jobs.digest(tmp_path / str(seed)) for seed in range(10)}) == 10
    print("\nten seeds, ten hashes")
