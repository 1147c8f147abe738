"""A job of engines.py in BlazeFL, FedAvg: `python benchmarks/peers/blazefl_job.py mnist`, with Python 3.14 or newer.

On a CPU: `--how serial` trains one client after another with all cores, `--how threads` a client per core, each with
one thread. The threads run side by side only as far as PyTorch releases the interpreter lock, unless Python is a
free-threaded build. Nothing is evaluated. Models are built once per thread instead of once per client.
"""

from __future__ import annotations

import copy
import os
import sys
import threading
from importlib.metadata import version
from typing import Any

os.environ["TQDM_DISABLE"] = "1"

import shared
import torch
from blazefl.contrib import (
    FedAvgBaseClientTrainer,
    FedAvgBaseServerHandler,
    FedAvgThreadPoolClientTrainer,
)
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Batches(Dataset[Any]):
    """The batches of a client, which BlazeFL's loop takes as they are."""

    def __init__(self, client: shared.Client) -> None:
        self.batches, self.samples = client.batches, client.samples

    def __len__(self) -> int:
        return self.samples  # the weight of the client

    def __getitem__(self, index: int) -> list[torch.Tensor]:
        return self.batches[index]


class Federation:
    """BlazeFL's PartitionedDataset."""

    def __init__(self, name: str, device: str) -> None:
        self.clients = shared.clients(name, device)

    def get_dataloader(
        self, type_: str, cid: int | None, batch_size: int | None, generator: torch.Generator | None
    ) -> DataLoader[Any]:
        assert cid is not None
        client = self.clients[cid]
        return DataLoader(Batches(client), batch_size=None, sampler=range(len(client.batches)))


class OneModelPerThread:
    """BlazeFL's ModelSelector."""

    def __init__(self) -> None:
        self.local = threading.local()

    def select_model(self, model_name: str) -> nn.Module:
        if not hasattr(self.local, "model"):
            self.local.model = copy.deepcopy(shared.model(model_name))
        model: nn.Module = self.local.model
        return model


def main() -> None:
    arguments = shared.parser(__doc__)
    arguments.add_argument("--how", choices=["serial", "threads"], default="threads")
    given = arguments.parse_args()
    job, device = shared.JOBS[given.job], shared.device()
    common = {"model_selector": OneModelPerThread(), "model_name": given.job, "dataset": Federation(given.job, device)}
    common |= {"device": device, "num_clients": job.clients, "batch_size": job.batch, "seed": 0}
    server = FedAvgBaseServerHandler(
        global_round=given.warm + given.rounds, sample_ratio=job.cohort / job.clients, **common
    )
    server.model = copy.deepcopy(server.model).to(device)
    assert server.num_clients_per_round == job.cohort
    how = "serial"
    if given.how == "serial":
        trainer = FedAvgBaseClientTrainer(epochs=1, lr=shared.LR, **common)
    else:
        workers = os.cpu_count() or 1
        torch.set_num_threads(1)
        trainer = FedAvgThreadPoolClientTrainer(epochs=1, lr=shared.LR, num_parallels=workers, **common)
        lock = "with" if getattr(sys, "_is_gil_enabled", lambda: True)() else "without"
        how = f"{workers} threads, {lock} the interpreter lock"
    marks = shared.Marks()
    marks.mark()
    while not server.is_stopped():
        trainer.local_process(server.downlink_package(), server.sample_clients())
        for package in trainer.uplink_package():
            server.load(package)
        marks.mark()
    shared.report("BlazeFL", given.job, device, marks.rounds(given.rounds), version=version("blazefl"), how=how)


if __name__ == "__main__":
    main()
