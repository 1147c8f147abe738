"""Small runs that are to be killed, starved and raced.

They run in forks of the test process, which start in no time and can be killed like any process. The test process
itself never trains: PyTorch does not differentiate in a fork of a process that has.
"""

import hashlib
import json
import os
import socket
import sys
import time
import traceback
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import torch._dynamo  # noqa: F401  torch.func imports it at its first use, for seconds: here once, not in every fork

import fedmos as fm
from fedmos.engine.process_group import leave

COMBINATIONS = {
    "FedMoS + ACS": (fm.FedMoS(lr=0.05), fm.ACS(m=4)),
    "SCAFFOLD + MD": (fm.Scaffold(lr=0.05), fm.MD(m=4)),
    "FedHBM + rpow-d": (fm.FedHBM(lr=0.05), fm.PowerOfChoice(m=4, d=8, loss="reported")),
}
EVERY = 4


@cache
def federation() -> fm.FederatedData:
    return fm.datasets.load("digits").partition(fm.partition.ByClass(classes=2, size=(4, 22)), clients=20, seed=0)


@cache
def tested_federation() -> fm.FederatedData:
    """A federation with test samples of clients, some of which take no part."""
    digits = fm.datasets.load("digits")
    data = digits.partition(fm.partition.ByClass(classes=2, size=(4, 22)), clients=20, seed=0, holdout=0.3)
    return data.split_clients(0.2)[0]


def train(combination: str, out: Path | None, **changes: Any) -> fm.Result:
    algorithm, selection = COMBINATIONS[combination]
    arguments = {
        "model": fm.models.mlp(features=64),
        "data": federation(),
        "algorithm": algorithm,
        "selection": selection,
        "rounds": 40,
        "local_steps": 2,
        "batch_size": 4,
        "engine": "batched",
        "out": out,
        "resume": out is not None,
        "checkpoint_every": None if out is None else EVERY,
    }
    return fm.run(**arguments | changes)


def fork(work: Callable[[], Any]) -> int:
    """Start `work` in a process of its own; its exit code says whether it went well."""
    federation()
    sys.stdout.flush()
    if pid := os.fork():
        return pid
    try:
        work()
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        os._exit(1)


def ranks(size: int, work: Callable[[], Any]) -> list[int]:
    """Start `work` in as many processes that know of each other, as torchrun would."""
    with socket.socket() as some:
        some.bind(("127.0.0.1", 0))
        port = some.getsockname()[1]

    def as_rank(number: int) -> None:
        where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        os.environ |= where | {"RANK": str(number), "LOCAL_RANK": str(number), "WORLD_SIZE": str(size)}
        work()
        leave()

    return [fork(lambda number=number: as_rank(number)) for number in range(size)]


def in_ranks(size: int, work: Callable[[], Any]) -> None:
    for pid in ranks(size, work):
        _, status = os.waitpid(pid, 0)
        assert status == 0


def in_fork(work: Callable[[], Any]) -> None:
    _, status = os.waitpid(fork(work), 0)
    assert status == 0


def sentence_of(work: Callable[[], Any], note: Path) -> str:
    """The error that `work` ends with, empty if it ends well."""

    def attempt() -> None:
        note.write_text("")
        try:
            work()
        except OSError as error:
            note.write_text(f"{type(error).__name__}: {error}")

    in_fork(attempt)
    return note.read_text()


def digest(run: Path) -> str:
    """Of everything a finished run has come to, times apart."""
    result = fm.Result.load(run)
    sha = hashlib.sha256(result.params.numpy().tobytes())
    for vectors in (result.server_state, *(result.clients[i] for i in result.clients)):
        for name in sorted(vectors):
            sha.update(vectors[name].numpy().tobytes())
    for record in result.history:
        sha.update(json.dumps([record.cohort, record.weights, record.train_loss, record.accuracy]).encode())
        if record.update_norms is not None:
            sha.update(json.dumps(record.update_norms).encode())
        if record.client_metrics is not None:
            sha.update(json.dumps([record.personal_accuracy, record.client_metrics]).encode())
    if result.client_evaluation is not None:
        for name, scores in sorted(result.client_evaluation.values.items()):
            sha.update(name.encode() + scores.numpy().tobytes())
    if result.best is not None:
        sha.update(json.dumps([result.best.round, *result.best.params.tolist()]).encode())
    return sha.hexdigest()


def rounds_recorded(run: Path) -> int:
    metrics = run / "metrics.jsonl"
    return len(metrics.read_text().splitlines()) if metrics.exists() else 0


def rounds_saved(run: Path) -> int:
    try:
        return len(fm.Result.load(run).history)
    except FileNotFoundError:
        return 0


def half_written(run: Path) -> list[Path]:
    return list(run.rglob("*.partial"))


def slow_disk() -> None:
    """From now on every flush of this process takes as long as on a spinning disk."""
    plain = os.fsync

    def slow(file: int) -> None:
        time.sleep(0.01)
        plain(file)

    os.fsync = slow
