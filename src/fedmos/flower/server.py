"""The server's side: the simulator's own rounds, with clients that are asked in messages."""

from __future__ import annotations

import json
import logging
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, sleep
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from ..algorithm import Algorithm
from ..core.callback import Callback
from ..core.flat_model import FlatModel
from ..core.history import Record
from ..data.federated import FederatedData
from ..engine.declaration import check_declaration
from ..engine.local_backend import ExecutionPlan
from ..engine.task import Task
from ..run.result import Result
from ..run.run import Run
from ..run.settings import find_device
from ..storage import RunFolder
from ..storage.files import replace_file
from .backend import FlowerBackend, ReplyPolicy
from .client_folder import RUN
from .deployment import Deployment, Given, reported_data, server_part
from .node_registry import NodeRegistry
from .reply_collector import Inbox, ReplyCollector

_log = logging.getLogger("fedmos")

_DEADLINE = 600.0
"""Seconds for a request to clients where no deadline is given."""


def server_app(config: Given, *, test: tuple[Any, Any] | None = None) -> ServerApp:
    """The Flower app of the server.

    Args:
        config: the path of a configuration as for `fedmos run`, a `RunConfig`, or a mapping of `fm.run`'s arguments
            and "deploy", a `Deploy`.
        test: samples to evaluate on, (x, y), where the configuration holds no data.

    The run's folder is the configuration's `out`, or `out` in Flower's run configuration. Started again with the same
    folder, the server goes on after the last round that counts.
    """

    def main(grid: Grid, context: Context) -> None:
        with _shown_by_flower():
            serve(grid, Deployment.of(config), context.run_config.get("out"), test)

    app = ServerApp()
    app.main()(main)
    return app


def serve(grid: Grid, deployment: Deployment, out: Any = None, test: tuple[Any, Any] | None = None) -> Result:
    """A whole run over the clients of a grid."""
    given, deploy = deployment.arguments, deployment.deploy
    folder = out or given["out"]
    if not folder:
        raise ValueError("server_app: 'out' must be a folder, in the configuration or in Flower's run configuration")
    _check_target(given["target"], deploy.train_metrics)
    check_declaration(given["algorithm"])
    ledger = DeploymentManifest.read(Path(folder), deployment)
    model = FlatModel(given["model"], find_device(given["device"]), given["dtype"], given["precision"])
    inbox, samples = Inbox(grid), dict(enumerate(ledger.samples))
    roster = NodeRegistry(inbox, deployment.names, ledger.run, deployment.agreement(model), samples)
    mail = ReplyCollector(inbox, roster, deploy.poll, deploy.rejoin)
    _wait(mail, len(deployment.names), deploy.wait)
    data = _data(deployment, roster, test)
    system = given["system"]
    terms = ReplyPolicy(
        run=ledger.run,
        deadline=_DEADLINE if system is None or system.deadline is None else system.deadline,
        norm_bound=deploy.norm_bound,
        reports=given["selection"].reports,
        train_metrics=deploy.train_metrics,
    )

    def make_backend(task: Task, algorithm: Algorithm, plan: ExecutionPlan) -> FlowerBackend:
        return FlowerBackend(task, algorithm, plan, mail, terms)

    changes = {
        "data": data,
        "engine": deployment.engine,
        "out": RunFolder(folder, deployment.config),
        "resume": True,
        "checkpoint_every": 1,
        "callbacks": [
            *given["callbacks"],
            _Announcer(DeploymentManifest(ledger.run, data.sizes.tolist()), Path(folder)),
        ],
    }
    return Run(**{**given, **changes}, make_backend=make_backend).play()


@dataclass(frozen=True)
class DeploymentManifest:
    """What a server started again must know before it reads a checkpoint: the file deployment.json."""

    run: str
    """What clients keep their state under."""
    samples: list[int]
    """n_i, where they are known."""

    @classmethod
    def read(cls, folder: Path, deployment: Deployment) -> DeploymentManifest:
        sizes = [] if deployment.data is None else deployment.data.sizes.tolist()
        path = folder / "deployment.json"
        try:
            found = json.loads(path.read_text())
        except FileNotFoundError:
            if any((folder / "checkpoints").glob("[0-9]*")):
                raise ValueError(
                    f"Cannot go on with the run in {folder} because it is no deployment's; use a new folder"
                ) from None
            return cls(secrets.token_hex(16), sizes)
        except ValueError:
            found = None
        if not _is_ledger(found):
            raise ValueError(f"Cannot go on with the run in {folder} because {path} is damaged; use a new folder")
        return cls(found["run"], found["samples"])

    def write(self, folder: Path) -> None:
        replace_file(folder / "deployment.json", json.dumps({"run": self.run, "samples": self.samples}).encode())


def _is_ledger(found: Any) -> bool:
    if not isinstance(found, dict) or set(found) != {"run", "samples"} or not isinstance(found["samples"], list):
        return False
    return (
        isinstance(found["run"], str)
        and RUN.fullmatch(found["run"]) is not None
        and all(type(n) is int and n > 0 for n in found["samples"])
    )


class _Announcer(Callback):
    """Notes the run once its folder is ours, and says how it goes."""

    def __init__(self, ledger: DeploymentManifest, folder: Path) -> None:
        self._ledger, self._folder = ledger, folder

    def on_start(self, rounds: int, done: int) -> None:
        self._ledger.write(self._folder)

    def on_round(self, record: Record) -> None:
        metrics = {name: getattr(record, name) for name in ("accuracy", "test_loss", "train_loss")}
        said = "".join(f", {name} {value:.4g}" for name, value in metrics.items() if value is not None)
        _log.info("Round %d: %d clients, %.1f s%s", record.round, len(record.cohort), record.seconds, said)
        if record.abandoned:
            _log.warning(
                "Round %d is abandoned because too few of its %d clients sent an update that can be used; "
                "the model stays as it was",
                record.round,
                len(record.cohort),
            )


def _wait(mail: ReplyCollector, N: int, seconds: float) -> None:
    """Until all clients are there, or for as long as that."""
    began = monotonic()
    while True:
        mail.look()
        missing = set(range(N)) - mail.roster.present
        if not missing:
            return
        if monotonic() - began > seconds:
            names = ", ".join(mail.roster.names[i] for i in sorted(missing)[:20])
            _log.warning("Begins without %d of %d clients: %s", len(missing), N, names)
            return
        sleep(mail.poll)


def _data(deployment: Deployment, roster: NodeRegistry, test: tuple[Any, Any] | None) -> FederatedData:
    """The federation as the server knows it."""
    if deployment.data is not None:
        return server_part(deployment.data)
    if test is None:
        raise ValueError("server_app: 'test' must be given where the configuration holds no data")
    missing = [name for i, name in enumerate(deployment.names) if i not in roster.samples]
    if missing:
        raise ValueError(
            f"Cannot begin because it is not known how many samples these clients have: {', '.join(missing[:20])}; "
            "start them once, or use a longer 'wait'"
        )
    return reported_data([roster.samples[i] for i in range(len(deployment.names))], test)


def _check_target(target: Any, train_metrics: bool) -> None:
    asked = [name for name in target or {} if str(name).startswith("train_")]
    if asked and not train_metrics:
        raise ValueError(f"Cannot stop at {asked[0]} because clients are not asked for it; use train_metrics = true")


@contextmanager
def _shown_by_flower() -> Iterator[None]:
    """Our messages where Flower's own appear."""
    handlers, level = list(logging.getLogger("flwr").handlers), _log.level
    for handler in handlers:
        _log.addHandler(handler)
    _log.setLevel(logging.INFO)
    try:
        yield
    finally:
        _log.setLevel(level)
        for handler in handlers:
            _log.removeHandler(handler)
