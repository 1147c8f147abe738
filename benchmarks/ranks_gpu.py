"""Ranks on GPUs: how they exchange, and how far the models of different numbers of ranks differ.

    torchrun --nproc-per-node 2 benchmarks/ranks_gpu.py --models FOLDER # two ranks, which may share a GPU
    python benchmarks/ranks_gpu.py --nccl                               # each collective of a run, through nccl, alone
    torchrun --nproc-per-node 2 benchmarks/ranks_gpu.py --sharing       # what nccl says to two ranks on one GPU

Without --nccl and --sharing, SCAFFOLD (which also exchanges client state) trains for five rounds, and the hash of its
model is printed, and the largest difference from the models that other runs have left in FOLDER.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import socket
from pathlib import Path

import torch
import torch.distributed as dist

import fedmos as fm
from fedmos.engine.process_group import join, leave
from fedmos.engine.ranks import LostRankError, Ranks

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def train(models: Path | None) -> None:
    data = fm.datasets.load("digits").partition(fm.partition.Dirichlet(alpha=0.5), clients=40, seed=0)
    result = fm.run(
        fm.models.mlp(features=64),
        data,
        fm.Scaffold(lr=0.05),
        fm.Uniform(m=16),
        rounds=5,
        local_steps=4,
        batch_size=16,
        engine="batched",
        device=DEVICE,
        eval_every=5,
        progress=False,
    )
    ranks = Ranks.joined(torch.device(DEVICE))
    if ranks.first:
        x = torch.nn.utils.parameters_to_vector(result.model.parameters()).detach().cpu()
        digest = hashlib.sha256(x.numpy().tobytes()).hexdigest()[:16]
        print(f"{ranks.size} ranks exchange on {ranks._device.type}: model {digest}", flush=True)
        if models is not None:
            models.mkdir(parents=True, exist_ok=True)
            for file in sorted(models.glob("*.pt")):
                difference = float((x - torch.load(file)).abs().max())
                print(f"largest difference from {file.stem} ranks: {difference:.1e} of {float(x.abs().max()):.1e}")
            torch.save(x, models / f"{ranks.size}.pt")


def collectives(ranks: Ranks) -> None:
    """Use every exchange of a run once, on the GPU, and check what it returns."""
    v = torch.arange(10.0, device=DEVICE)
    pieces = list(range(ranks.size))
    total = ranks.sum_in_order({ranks.rank: v}, pieces, v)
    assert total.equal(v * ranks.size), total
    assert all(row.equal(v) for row in ranks.gather({ranks.rank: v}, pieces, v))
    assert ranks.all_gather_json({"rank": ranks.rank}) == [{"rank": rank} for rank in pieces]
    assert ranks.broadcast({"from": ranks.rank}) == {"from": 0}
    to_next = [(rank, (rank + 1) % ranks.size) for rank in pieces]
    (received,) = ranks.exchange(to_next, {ranks.rank: v + ranks.rank}, v).values()
    assert received.equal(v + (ranks.rank - 1) % ranks.size)
    print(f"rank {ranks.rank} of {ranks.size}: sum, gather, JSON, broadcast and exchange agree", flush=True)


def alone() -> None:
    """Make a group of one rank whose tensors on the GPU go through nccl."""
    with socket.socket() as some:
        some.bind(("127.0.0.1", 0))
        port = some.getsockname()[1]
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "RANK": "0", "WORLD_SIZE": "1"}
    dist.init_process_group("cpu:gloo,cuda:nccl" if DEVICE == "cuda" else "gloo")
    ranks = Ranks.joined(torch.device(DEVICE))
    assert ranks._device.type == DEVICE
    collectives(ranks)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=Path, metavar="FOLDER")
    parser.add_argument("--nccl", action="store_true")
    parser.add_argument("--sharing", action="store_true")
    given = parser.parse_args()
    if given.nccl:
        alone()
    elif given.sharing:
        join()
        try:
            collectives(Ranks(dist.get_world_size(), dist.get_rank(), torch.device(DEVICE)))
        except LostRankError as error:
            print(f"refused: {error.__cause__}", flush=True)
    else:
        train(given.models)
    leave()


if __name__ == "__main__":
    main()
