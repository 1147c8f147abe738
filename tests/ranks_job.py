"""What 1, 2 and 4 ranks come to: printed as JSON, a digest for every job and number of ranks. Run by test_ranks.py.

A process of its own, because ranks are forks of it, and PyTorch does not differentiate in a fork of a process that has.
"""

import json
import sys
import tempfile
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent / "faults"))

import jobs

import fedmos as fm

torch.set_num_threads(1)

HARD = {
    "a clock, some late": {
        "algorithm": fm.Mime(lr=0.05, beta=0.5),
        "selection": fm.Uniform(m=6),
        "system": fm.System(speed=fm.LogNormal(median=100, sigma=1), deadline=1.0, over_select=1.5),
    },
    "updates that are not finite": {
        "algorithm": fm.Scaffold(lr=0.05),
        "selection": fm.Uniform(m=5),
        "on_bad_update": "drop",
        "model": fm.models.mlp(features=64),
        "clip": None,
        "data": "poisoned",
    },
    "a cohort smaller than the ranks": {"algorithm": fm.FedDyn(lr=0.05), "selection": fm.Uniform(m=3)},
    "client by client": {"algorithm": fm.FedAvg(lr=0.05), "selection": fm.Uniform(m=5), "engine": "loop"},
    "chosen by measuring": {"algorithm": fm.FedCM(lr=0.05), "selection": fm.CACS(m=4, warmup=2), "engine": "auto"},
}


def poisoned() -> fm.FederatedData:
    """A federation in which some clients' samples are so large that their updates overflow."""
    pairs = [(x.float() / 16, y) for x, y in map(jobs.federation().client, range(20))]
    for i in (3, 8, 12):
        pairs[i] = (pairs[i][0] * 1e30, pairs[i][1])
    return fm.FederatedData.from_arrays(pairs)


def main() -> None:
    found: dict[str, dict[int, str]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in (*jobs.COMBINATIONS, *HARD):
            changes = {"rounds": 7, "checkpoint_every": 3} | dict(HARD.get(name, {}))
            if changes.get("data") == "poisoned":
                changes["data"] = poisoned()
            combination = name if name in jobs.COMBINATIONS else next(iter(jobs.COMBINATIONS))
            found[name] = {}
            for size in (1, 2, 4):
                out = Path(folder) / name.replace(" ", "-") / str(size)
                jobs.in_ranks(size, lambda out=out, c=combination, changes=changes: jobs.train(c, out, **changes))
                found[name][size] = jobs.digest(out)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
