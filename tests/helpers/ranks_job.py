"""What 1, 2 and 4 ranks come to: printed as JSON, a digest for every job and number of ranks. Run by test_ranks.py.

Then the same for a network whose kernels round by how many clients they are called for.

A process of its own, because ranks are forks of it, and PyTorch does not differentiate in a fork of a process that has.
"""

import json
import sys
import tempfile
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

import fedmos as fm
from helpers import jobs

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


class Company(torch.autograd.Function):
    """A kernel that rounds by how many clients it is called for, as compiled programs and some convolutions do."""

    @staticmethod
    def forward(x):
        return x.clone()

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, dy):
        return dy

    @staticmethod
    def vmap(info, in_dims, x):
        return x * (1 + 1e-3 * info.batch_size), in_dims[0]


class InCompany(torch.nn.Linear):
    def forward(self, x):
        return Company.apply(super().forward(x.flatten(1)))


def in_company(folder: Path) -> dict[str, str]:
    """What such a kernel brings ranks to, and one that continues what they began."""

    def train(size: int, out: str, rounds: int = 7) -> str:
        torch.manual_seed(0)
        model = InCompany(64, 10)
        changes = {"model": model, "selection": fm.Uniform(m=9), "rounds": rounds}
        jobs.in_ranks(size, lambda: jobs.train("SCAFFOLD + MD", folder / out, **changes))
        return jobs.digest(folder / out)

    begun = train(2, "handed on", rounds=3)
    return {
        "one rank": train(1, "one"),
        "two": train(2, "two"),
        "four": train(4, "four"),
        "two, cut off": begun,
        "two, then one": train(1, "handed on"),
    }


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
        print(json.dumps([found, in_company(Path(folder))]))


if __name__ == "__main__":
    main()
