"""Rounds of PFLlib's own code, unchanged, on a split of `pfllib.py`.

    bash benchmarks/peers/vendor_pfllib.sh
    python benchmarks/peers/pfllib_job.py FedAvg SCAFFOLD Ditto --split pathological --rounds 4

Prints a line of JSON per method with the median seconds of a round by PFLlib's own clock, without and with its
evaluation, which measures accuracy on all test samples and the loss on all training samples of the clients. The first
round is not counted. The split is written in PFLlib's format into a temporary folder, which PFLlib reads again in every
round. Servers and clients get the defaults of its `system/main.py`; that file itself is not executed, because it
imports what all 40 methods need.

Where they are missing, h5py (which writes the curve at the end) and matplotlib (which draws attacks) are stand-ins that
do nothing. Nothing of PFLlib's training or evaluation is replaced.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import io
import json
import os
import statistics
import sys
import tempfile
import warnings
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import nn

import fedmos as fm

sys.path.insert(0, str(Path(__file__).parents[1]))
from pfllib import CLIENTS, LAMBDA, LR, SPLITS, federation

HERE = Path(__file__).parents[2] / ".carry" / "pfllib"
NAME = "FashionMNIST"
SERVERS = {
    "Local": "serverlocal.Local",
    "FedAvg": "serveravg.FedAvg",
    "FedProx": "serverprox.FedProx",
    "SCAFFOLD": "serverscaffold.SCAFFOLD",
    "Ditto": "serverditto.Ditto",
    "FedPer": "serverper.FedPer",
    "FedRep": "serverrep.FedRep",
}
DIVIDED = {"FedAvg", "FedPer", "FedRep"}
"""Methods for which main.py divides the model into base and head."""


class NoFile:
    """Stands in for `h5py.File`."""

    def __init__(self, *_: Any) -> None: ...

    def __enter__(self) -> NoFile:
        return self

    def __exit__(self, *_: object) -> None: ...

    def create_dataset(self, *_: Any, **__: Any) -> None: ...


def provide_missing() -> list[str]:
    """Make stand-ins importable for missing packages; returns their names."""
    missing = [name for name in ("h5py", "matplotlib") if find_spec(name) is None]
    for name in missing:
        sys.modules[name] = ModuleType(name)
    if "h5py" in missing:
        sys.modules["h5py"].File = NoFile  # type: ignore[attr-defined]
    if "matplotlib" in missing:
        sys.modules["matplotlib.pyplot"] = ModuleType("matplotlib.pyplot")
        sys.modules["matplotlib"].pyplot = sys.modules["matplotlib.pyplot"]  # type: ignore[attr-defined]
    return missing


def write_split(data: fm.FederatedData, folder: Path) -> None:
    """Write a split as PFLlib's dataset_utils.py does: a compressed file per client with a dictionary of x and y."""
    assert data.tests is not None
    for kind, samples_of in (("train", data.client), ("test", data.tests.__getitem__)):
        (folder / kind).mkdir(parents=True)
        for i in range(len(data)):
            x, y = samples_of(i)
            content: Any = {"x": data.inputs(x).numpy(), "y": y.numpy()}
            with (folder / kind / f"{i}.npz").open("wb") as file:
                np.savez_compressed(file, data=content)


def arguments(method: str, rounds: int, device: str) -> argparse.Namespace:
    """Return what main.py passes to a server by default, with an evaluation in every second round."""
    return argparse.Namespace(
        goal="test",
        device=device,
        dataset=NAME,
        num_classes=10,
        batch_size=10,
        local_learning_rate=LR,
        learning_rate_decay=False,
        learning_rate_decay_gamma=0.99,
        global_rounds=rounds,
        top_cnt=100,
        local_epochs=1,
        algorithm=method,
        join_ratio=1.0,
        random_join_ratio=False,
        num_clients=CLIENTS,
        eval_gap=2,
        save_folder_name="items",
        auto_break=False,
        dlg_eval=False,
        dlg_gap=100,
        batch_num_per_client=2,
        num_new_clients=0,
        fine_tuning_epoch_new=0,
        few_shot=0,
        client_drop_rate=0.0,
        train_slow_rate=0.0,
        send_slow_rate=0.0,
        time_select=False,
        time_threthold=10000,
        mu=LAMBDA,
        plocal_epochs=1,
        server_learning_rate=1.0,
    )


def timed(method: str, rounds: int) -> tuple[list[float], float]:
    """Return the seconds of every round, and the best accuracy that PFLlib printed."""
    models = import_module("flcore.trainmodel.models")
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    given = arguments(method, rounds, device)
    given.model = models.FedAvgCNN(in_features=1, num_classes=10, dim=1024).to(device)
    if method in DIVIDED:
        given.head = copy.deepcopy(given.model.fc)
        given.model.fc = nn.Identity()
        given.model = models.BaseHeadSplit(given.model, given.head)
    module, name = SERVERS[method].split(".")
    with contextlib.redirect_stdout(io.StringIO()):
        server = getattr(import_module(f"flcore.servers.{module}"), name)(given, 0)
        server.train()
    return server.Budget, max(server.rs_test_acc)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("methods", nargs="+", choices=list(SERVERS))
    parser.add_argument("--split", choices=list(SPLITS), default="pathological")
    parser.add_argument("--rounds", type=int, default=2, help="rounds after the first, every second one evaluated")
    parser.add_argument("--images", type=int, help="use the first so many images")
    given = parser.parse_args()
    if given.rounds < 2:
        parser.error("--rounds must be ≥ 2, so that a round without and one with an evaluation are counted")
    if not HERE.is_dir():
        parser.error(f"{HERE} is missing; run bash benchmarks/peers/vendor_pfllib.sh")
    warnings.simplefilter("ignore")  # as main.py does
    stand_ins = provide_missing()
    sys.path.insert(0, str(HERE / "system"))
    where = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    with tempfile.TemporaryDirectory() as folder:
        write_split(federation(given.split, given.images), Path(folder) / "dataset" / NAME)
        (Path(folder) / "system").mkdir()
        os.chdir(Path(folder) / "system")  # PFLlib's paths begin here
        for method in given.methods:
            rounds, best = timed(method, given.rounds)
            times = {"seconds": statistics.median(rounds[1::2]), "evaluated": statistics.median(rounds[2::2])}
            line: dict[str, Any] = {"code": "PFLlib", "method": method, "split": given.split, "precision": "float32"}
            line |= {"device": where} | {name: round(t, 4) for name, t in times.items()}
            print(json.dumps(line | {"best": round(best, 4), "stand_ins": stand_ins}), flush=True)
        os.chdir("/")


if __name__ == "__main__":
    main()
