# ruff: noqa: E402 (empty modules must be in place before APPFL is imported)
"""The job of events.py in APPFL's virtual-time simulator: FedBuff with its AsyncScheduler.

    .venv-appfl/bin/python benchmarks/peers/appfl_events.py logistic --size 10 --events 300

Clients train one after another as they start. `--lean` switches off `optimize_memory`, which is on by default and
collects
garbage several times an event. Nothing is logged or evaluated.
"""

from __future__ import annotations

import logging
import sys
import tempfile
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
for unused in ("wandb", "piq"):  # imported by APPFL for tracking and for a report on the quality of images
    sys.modules[unused] = ModuleType(unused)

import appfl
import events
from appfl.agent import SimClientAgent, SimServerAgent
from appfl.vsim import AsyncSimDriver, ClientProfile
from torch.utils.data import TensorDataset

WARM = 5


def accuracy(targets: np.ndarray, outputs: np.ndarray) -> float:
    return float((outputs.argmax(1) == targets).mean())


class _Own:
    """What agents would otherwise read from files."""

    name: str

    def _load_model(self) -> None:
        self.model = events.MODELS[self.name]()

    def _load_loss(self) -> None:
        self.loss_fn = torch.nn.CrossEntropyLoss()

    def _load_metric(self) -> None:
        self.metric = accuracy

    def _init_wandb(self) -> None:
        pass


class Server(_Own, SimServerAgent):
    pass


class Client(_Own, SimClientAgent):
    pass


class Timed(AsyncSimDriver):
    """Measures CPU seconds from the `WARM`th event on; by then all clients that train at a time have started."""

    seconds = 0.0

    def _handle_train_complete(self, cid: str, completion_time: float) -> None:
        super()._handle_train_complete(cid, completion_time)
        if len(self.history) == WARM:
            self.seconds -= time.process_time()

    def run(self) -> None:
        super().run()
        self.seconds += time.process_time()


def driver(model: str, size: int, number: int, lean: bool) -> Timed:
    _Own.name = model
    memory = {"optimize_memory": not lean}
    folder = tempfile.mkdtemp()
    training: dict[str, Any] = {
        "trainer": "VanillaTrainer",
        "mode": "step",
        "num_local_steps": events.STEPS,
        "optim": "SGD",
        "optim_args": {"lr": events.LR},
        "train_batch_size": events.BATCH,
        "device": "cpu",
        "logging_output_dirname": folder,
    } | memory
    weights = {"num_clients": events.CLIENTS, "client_weights_mode": "equal", "alpha": events.CLIENTS / size}
    server = Server(
        {
            "client_configs": {"train_configs": training},
            "server_configs": {
                "num_clients": events.CLIENTS,
                "num_global_epochs": number,
                "scheduler": "AsyncScheduler",
                "scheduler_kwargs": {"num_clients": events.CLIENTS} | memory,
                "aggregator": "FedBuffAggregator",
                "aggregator_kwargs": {"K": size, "staleness_fn": "polynomial", "staleness_fn_kwargs": {"a": 0.5}}
                | weights
                | memory,
                "logging_output_dirname": folder,
            }
            | memory,
        }
    )
    data = events.federation()
    slow = torch.exp(torch.randn(events.CLIENTS, generator=torch.Generator().manual_seed(0))).tolist()
    clients, profiles = [], {}
    for i in range(events.CLIENTS):
        x, y = data.client(i)
        local = TensorDataset(data.inputs(x), y)
        clients.append(Client({"train_configs": training} | memory, client_id=str(i), client_dataset=local))
        profiles[str(i)] = ClientProfile(compute_factor=slow[i], bandwidth=0)
    logger = logging.getLogger("appfl-events")
    return Timed(server, clients, profiles, events.CONCURRENCY, logger, base_step_time=1.0)


def main() -> None:
    logging.disable(logging.WARNING)
    parser = events.job_parser(__doc__)
    parser.add_argument("--lean", action="store_true")
    given = parser.parse_args()
    torch.set_num_threads(1)

    made = driver(given.model, given.size, WARM + given.events, given.lean)
    made.run()
    if len(made.history) != WARM + given.events:
        raise RuntimeError(f"{len(made.history)} instead of {WARM + given.events} events")
    events.report("APPFL " + appfl.__version__, given.events / made.seconds)


if __name__ == "__main__":
    main()
