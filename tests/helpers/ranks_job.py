"""Runs with 1, 2 and 4 ranks, or with `some`, a few runs with 1 and 2. Prints a digest for every job and number of ranks as JSON, for test_ranks.py.

Then the same for a network whose kernels round by how many clients they are called for, and the threads of ranks.

This is a process of its own because ranks are forks of it, and PyTorch cannot differentiate in a fork of a process that
has done so.
"""

import glob
import json
import os
import sys
import tempfile
import time
from functools import reduce
from pathlib import Path
from typing import ClassVar

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

import fedmos as fm
from fedmos.engine import process_group, ranks
from helpers import jobs
from helpers.extended import Extended

torch.set_num_threads(1)


def normalised() -> torch.nn.Module:
    """A network with BatchNorm."""
    torch.manual_seed(0)
    layers = (torch.nn.Flatten(), torch.nn.Linear(64, 12), torch.nn.BatchNorm1d(12), torch.nn.ReLU())
    return torch.nn.Sequential(*layers, torch.nn.Linear(12, 10))


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
    "local optimisers, kept": {
        "algorithm": fm.Scaffold(lr=0.02),
        "selection": fm.Uniform(m=5),
        "local": [fm.local.SAM(), fm.local.Adam(keep=True)],
    },
    "local optimisers, averaged": {
        "algorithm": fm.FedCM(lr=0.02),
        "selection": fm.Uniform(m=5),
        "local": [fm.local.AdamW(average=True), fm.local.Muon(average=True)],
    },
    "coded messages": {
        "algorithm": fm.Scaffold(lr=0.05),
        "selection": fm.Uniform(m=5),
        "uplink": fm.codecs.ErrorFeedback([fm.codecs.Rotate(), fm.codecs.Quantize(4)]),
        "downlink": fm.codecs.TopK(0.1),
        "system": fm.System(speed=fm.LogNormal(median=100, sigma=1), deadline=1.5),
    },
    "privacy": {
        "algorithm": fm.Mime(lr=0.05, beta=0.5),
        "selection": fm.Bernoulli(rate=0.1),
        "privacy": fm.privacy.Gaussian(0.5, 0.1, 1e-3),
        "uplink": fm.codecs.Quantize(4),
        "system": fm.System(speed=fm.LogNormal(median=100, sigma=1), deadline=1.5),
    },
    "correlated noise": {
        "algorithm": fm.Mime(lr=0.05, beta=0.5),
        "selection": fm.Cyclic(m=6),
        "privacy": fm.privacy.MatrixFactorization(0.5, 0.1, 1e-3, bands=3),
    },
    "integer noise at clients": {
        "algorithm": fm.Mime(lr=0.05, beta=0.5),
        "selection": fm.Uniform(m=5),
        "privacy": fm.privacy.DiscreteGaussian(0.5, 0.1, 1e-3),
        "aggregation": fm.aggregation.Secure(),
    },
    "noise at clients": {
        "algorithm": fm.Scaffold(lr=0.05),
        "selection": fm.Uniform(m=5),
        "privacy": fm.privacy.Local(0.5, 0.1, 1e-3),
        "uplink": fm.codecs.Quantize(4),
    },
    "hostile clients and a robust rule": {
        "algorithm": fm.Mime(lr=0.05, beta=0.5),
        "selection": fm.Uniform(m=7),
        "aggregation": fm.aggregation.Krum(1, keep=4),
        "attack": fm.attacks.GaussianNoise(0.1, share=0.3),
        "system": fm.System(speed=fm.LogNormal(median=100, sigma=1), deadline=1.5),
    },
    "secure aggregation": {
        "algorithm": fm.Mime(lr=0.05, beta=0.5),
        "selection": fm.Uniform(m=7),
        "aggregation": fm.aggregation.Secure(20, threshold=0.6),
        "system": fm.System(speed=fm.LogNormal(median=100, sigma=1), deadline=1.5),
    },
    "BatchNorm state that clients keep": {
        "algorithm": fm.Scaffold(lr=0.05),
        "selection": fm.Uniform(m=5),
        "model": normalised(),
        "batchnorm": "local-affine",
    },
    "personal parameters, and scales and shifts": {
        "algorithm": fm.Scaffold(lr=0.05),
        "selection": fm.Uniform(m=5),
        "model": normalised(),
        "batchnorm": "local-affine",
        "personal": fm.Personal(["4.*"], steps=1),
        "local": fm.local.Adam(average=True),
        "data": jobs.tested_federation(),
        "evaluate_clients": fm.EvaluateClients(every=3, finetune_steps=2),
    },
    "evaluation of clients": {
        "algorithm": fm.Ditto(lr=0.05),
        "selection": fm.Uniform(m=5),
        "data": jobs.tested_federation(),
        "evaluate_clients": fm.EvaluateClients(every=3, finetune_steps=2),
    },
    "asynchronous rounds": {
        "algorithm": fm.Scaffold(lr=0.05),
        "selection": fm.UCB(m=1),
        "uplink": fm.codecs.ErrorFeedback(fm.codecs.Quantize(4)),
        "downlink": fm.codecs.TopK(0.1),
        "system": fm.System(speed=fm.LogNormal(median=100, sigma=1), deadline=3.0, dropout=0.1),
        "buffer": fm.Buffer(size=5, concurrency=9),
    },
    "asynchronous rounds, by single updates": {
        "algorithm": fm.FedHBM(lr=0.05, scale="elapsed"),
        "selection": fm.MD(m=1),
        "system": fm.System(speed=fm.LogNormal(median=100, sigma=1)),
        "buffer": fm.Buffer(size=1, concurrency=6),
        "rounds": 20,
    },
    "every declared shape": {"algorithm": Extended(lr=0.05), "selection": fm.Uniform(m=5)},
    "numbers": {"algorithm": fm.FedExP(lr=0.05, average=True), "selection": fm.Uniform(m=5)},
    "another start": {"algorithm": fm.FedACG(lr=0.05), "selection": fm.Uniform(m=5)},
    "a schedule, norms of updates, the best model and an early end": {
        "algorithm": fm.FedAvg(lr=0.2),
        "selection": fm.Uniform(m=5),
        "lr_decay": fm.schedules.Warmup(2, then=fm.schedules.Cosine(5, final=0.1)),
        "update_norms": True,
        "keep_best": "accuracy",
        "callbacks": [fm.EarlyStopping("test_loss", patience=4, min_delta=100.0)],
    },
    "uploads chosen after training": {
        "algorithm": fm.Scaffold(lr=0.05),
        "selection": fm.OCS(m=3, d=9),
        "system": fm.System(speed=fm.LogNormal(median=100, sigma=1), deadline=1.5),
    },
    "updates that the selector reads": {"algorithm": fm.FedAvg(lr=0.05), "selection": fm.DELTA(m=5)},
    "adapters on a frozen base": {
        "algorithm": fm.Scaffold(lr=0.05),
        "selection": fm.Uniform(m=9),
        "model": fm.models.lora(fm.models.mlp(features=64), 4, "1", dropout=0.1, train=["3.*", "5.*"]),
    },
    "client by client": {"algorithm": fm.FedAvg(lr=0.05), "selection": fm.Uniform(m=5), "engine": "loop"},
    "chosen by measuring": {"algorithm": fm.FedCM(lr=0.05), "selection": fm.CACS(m=4, warmup=2), "engine": "auto"},
}


def poisoned() -> fm.FederatedData:
    """A federation in which some clients' samples are so large that their updates overflow."""
    pairs = [(x.float() / 16, y) for x, y in map(jobs.federation().client, range(20))]
    for i in (3, 8, 12):
        pairs[i] = (pairs[i][0] * 1e30, pairs[i][1])
    return fm.FederatedData.from_arrays(pairs)


class UnevenKernel(torch.autograd.Function):
    """A kernel whose rounding depends on the number of clients, as in compiled programs and some convolutions."""

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


class UnevenLinear(torch.nn.Linear):
    def forward(self, x):
        return UnevenKernel.apply(super().forward(x.flatten(1)))


def uneven_kernels(folder: Path) -> dict[str, str]:
    """Digests of runs with such a kernel, one of them continued by another number of ranks."""

    def train(size: int, out: str, rounds: int = 7) -> str:
        torch.manual_seed(0)
        model = UnevenLinear(64, 10)
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


def thread_names() -> list[str]:
    return [Path(file).read_text().strip() for file in glob.glob("/proc/self/task/*/comm")]


def threads_of_ranks(folder: Path) -> list[dict[str, list[str]]]:
    """The names of the threads of each of two ranks, in the process group and after they have left it."""

    def join_and_leave() -> None:
        process_group.join()
        number = ranks.Ranks.joined().rank
        torch.func.vmap(torch.func.grad(torch.sum))(torch.ones(2, 3))
        names = {"joined": thread_names()}
        process_group.leave()
        (folder / f"threads-{number}.json").write_text(json.dumps(names | {"left": thread_names()}))

    jobs.in_ranks(2, join_and_leave)
    return [json.loads((folder / f"threads-{number}.json").read_text()) for number in range(2)]


class FailsOnOneRank(fm.FedAvg):
    """FedAvg whose server's step fails in the third round, on one rank."""

    failing: ClassVar[int] = -1

    def server(self, x, state, agg, ctx):
        if os.environ["RANK"] == str(self.failing) and ctx.t == 2:
            raise ZeroDivisionError("a mistake")
        return super().server(x, state, agg, ctx)


def errors_of_ranks(folder: Path, failing: int) -> list[str]:
    """The error with which each of two ranks ends if the server's step fails on one, which then waits for the other.

    If the other rank has not ended after a minute, there is no error of it.
    """
    notes = [folder / f"failing-{failing}-{rank}.txt" for rank in range(2)]

    def train() -> None:
        FailsOnOneRank.failing = failing
        rank = int(os.environ["RANK"])
        try:
            jobs.train("SCAFFOLD + MD", None, algorithm=FailsOnOneRank(lr=0.05), rounds=5)
        except Exception as error:
            notes[rank].write_text(f"{type(error).__name__}: {error}")
        end = time.monotonic() + 60
        while rank == failing and not notes[1 - rank].exists() and time.monotonic() < end:
            time.sleep(0.02)

    jobs.in_ranks(2, train)
    return [note.read_text() if note.exists() else "" for note in notes]


VECTORS = [(1, 5), (3, 1), (7, 3), (64, 16), (1001, 8), (4099, 23)]
"""Lengths of vectors, and how many are added."""


def pieces_of(n: int, pieces: int, dtype: torch.dtype, size: int) -> tuple[list[torch.Tensor], list[int]]:
    """Vectors whose sum depends on the order of additions, and the rank of each; some ranks have none."""
    source = torch.Generator().manual_seed(n)
    scales = 10.0 ** torch.randint(-3, 4, (pieces, 1), generator=source)
    vectors = (torch.randn(pieces, n, generator=source, dtype=torch.float64) * scales).to(dtype)
    return list(vectors), (torch.randint(0, max(1, size - 1), (pieces,), generator=source)).tolist()


def sums_of_ranks(folder: Path, sizes: tuple[int, ...]) -> dict[int, list[list[dict]]]:
    """By number of ranks and by rank: what `sum_in_order` returns and the bytes it and `gather` receive, as JSON."""

    def add(out: Path) -> None:
        process_group.join()
        own, found = ranks.Ranks.joined(), []
        for dtype in (torch.float32, torch.float64):
            for n, count in VECTORS:
                vectors, owner = pieces_of(n, count, dtype, own.size)
                mine = {number: v for number, v in enumerate(vectors) if owner[number] == own.rank}
                summed, received = own.sum_in_order(mine, owner, vectors[0]), own.bytes_received
                gathered = own.gather(mine, owner, vectors[0])
                found.append(
                    {
                        "equal": torch.equal(summed, reduce(torch.add, vectors)) and summed.dtype == dtype,
                        "gathered": all(map(torch.equal, gathered, vectors)),
                        "another order": torch.equal(summed, reduce(torch.add, reversed(vectors))),
                        "bytes": received,
                        "bytes to gather": own.bytes_received - received,
                        "owner": owner,
                        "n": n * dtype.itemsize,
                    }
                )
                own.bytes_received = 0
        (out / f"{own.rank}.json").write_text(json.dumps(found))

    for size in sizes:
        (folder / f"sums-{size}").mkdir()
        jobs.in_ranks(size, lambda size=size: add(folder / f"sums-{size}"))
    return {size: [json.loads((folder / f"sums-{size}/{r}.json").read_text()) for r in range(size)] for size in sizes}


SOME = (
    "a clock, some late",
    "asynchronous rounds",
    "coded messages",
    "privacy",
    "evaluation of clients",
    "every declared shape",
)


NAMES = {
    "some": ("SCAFFOLD + MD", *SOME),
    "many": ("SCAFFOLD + MD", "coded messages", "every declared shape", "secure aggregation"),
    "all": (*jobs.COMBINATIONS, *HARD),
}
SIZES = {"some": (1, 2), "many": (1, 8, 16), "all": (1, 2, 4)}


def digests(folder: Path, name: str, sizes: tuple[int, ...]) -> dict[int, str]:
    """The digest of a job by number of ranks."""
    changes = {"rounds": 7, "checkpoint_every": 3} | dict(HARD.get(name, {}))
    if changes.get("data") == "poisoned":
        changes["data"] = poisoned()
    combination, found = name if name in jobs.COMBINATIONS else next(iter(jobs.COMBINATIONS)), {}
    for size in sizes:
        out = folder / name.replace(" ", "-") / str(size)
        jobs.in_ranks(size, lambda out=out: jobs.train(combination, out, **changes))
        found[size] = jobs.digest(out)
    return found


def main(what: str) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder, sizes = Path(name), SIZES[what]
        found = {
            "digests": {job: digests(folder, job, sizes) for job in NAMES[what]},
            "uneven kernels": uneven_kernels(folder) if what == "all" else {},
            "threads": threads_of_ranks(folder) if what == "some" else [],
            "errors": [errors_of_ranks(folder, rank) for rank in range(2)] if what == "some" else [],
            "sums": sums_of_ranks(folder, (3,) if what == "some" else sizes[1:]),
        }
        print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1])
