"""Bytes that ranks receive to add one vector each: `python benchmarks/rank_traffic.py`.

Compares gathering all vectors on every rank (`Ranks.gather`) with adding slices (`Ranks.sum_in_order`), over gloo, for
one vector of LeNet's size a rank. "counted" is `Ranks.bytes_received` of a rank; "on the wire" is what the loopback
interface of a network namespace of its own has carried, divided by the number of ranks, with TCP's overhead.
"""

from __future__ import annotations

import os
import socket
import sys
from functools import reduce
from pathlib import Path

import torch
import torch.distributed as dist

from fedmos.engine.process_group import join, leave
from fedmos.engine.ranks import Ranks

D = 796_000
SIZES = (2, 4, 8, 16, 32)


def carried() -> int:
    """Return the bytes that the loopback interface has received."""
    line = next(line for line in Path("/proc/net/dev").read_text().splitlines() if line.strip().startswith("lo:"))
    return int(line.split()[1])


def measure(way: str, ranks: Ranks) -> tuple[int, int]:
    """Return the bytes counted by this rank, and those on the wire of all ranks."""
    owner = list(range(ranks.size))
    v = torch.randn(D, generator=torch.Generator().manual_seed(ranks.rank))
    ranks.sum_in_order({ranks.rank: v}, owner, v)  # makes the connections
    dist.barrier()
    wire, counted = carried(), ranks.bytes_received
    dist.barrier()
    if way == "gather":
        reduce(torch.add, ranks.gather({ranks.rank: v}, owner, v))
    else:
        ranks.sum_in_order({ranks.rank: v}, owner, v)
    dist.barrier()
    return ranks.bytes_received - counted, carried() - wire


def work(size: int, rank: int, port: int) -> None:
    torch.set_num_threads(1)
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(size), "RANK": str(rank)}
    join()
    ranks = Ranks.joined()
    columns = []
    for way in ("gather", "slices"):
        counted, wire = measure(way, ranks)
        columns.append(f"{counted / 1e6:.2f} | {wire / size / 1e6:.2f}")
    if ranks.first:
        print(f"| {size} | {' | '.join(columns)} |", flush=True)
    leave()


def main() -> None:
    print(f"D = {D}, float32: {4 * D / 1e6:.2f} MB a vector")
    print("| ranks | gather: MB counted | on the wire | slices: MB counted | on the wire |")
    print("|---:|---:|---:|---:|---:|", flush=True)
    for size in SIZES:
        with socket.socket() as some:
            some.bind(("127.0.0.1", 0))
            port = some.getsockname()[1]
        children = []
        for rank in range(size):
            if (pid := os.fork()) == 0:
                work(size, rank, port)
                os._exit(0)
            children.append(pid)
        for pid in children:
            assert os.waitpid(pid, 0)[1] == 0


if __name__ == "__main__":
    if sys.argv[1:] == ["here"]:
        main()
    else:
        command = f"export TORCH_CPP_LOG_LEVEL=ERROR; ip link set lo up && exec {sys.executable} {__file__} here"
        os.execvp("unshare", ["unshare", "-rn", "sh", "-c", command])
