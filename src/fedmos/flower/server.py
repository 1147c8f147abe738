"""The Flower app of the server: executes the rounds of a simulation with clients behind a Flower grid."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from time import monotonic, sleep
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from ..core.callback import Callback
from ..core.history import Record
from ..data.federated import FederatedData
from ..engine.declaration import check_declaration
from ..engine.secure_sums import secure_rule
from ..privacy.noise import SecretStreams, SystemNoise
from ..run.backends import BackendSetting
from ..run.build import flat_model
from ..run.early_stopping import EarlyStopping
from ..run.preflight import find_device
from ..run.result import Result
from ..run.run import Run
from ..run.spec import RunSpec
from ..storage import RunFolder
from .backend import FlowerBackend
from .channel import MessageChannel
from .deployment import Deployment, Given, reported_data, server_part
from .manifest import DeploymentManifest
from .node_registry import NodeRegistry
from .releases import Releases
from .reply_collector import ReplyCollector
from .requests import ReplyPolicy
from .secure_backend import SecureFlowerBackend

_log = logging.getLogger("fedmos")

_DEFAULT_DEADLINE = 600.0
"""Seconds that clients have to reply to a request if the run has no deadline."""


def server_app(config: Given, *, test: tuple[Any, Any] | None = None) -> ServerApp:
    """Create the Flower app that runs on the server.

    The run folder is `out` in the configuration or in Flower's run configuration. If the app is started again with the
    same folder, the run continues after the last committed round.

    Args:
        config: The path of a configuration file, a `RunConfig`, or a mapping of `fm.run`'s arguments, with an optional
            entry "deploy" that holds a `Deploy`.
        test: Samples to evaluate the model on, (x, y). Required if the configuration has no data.

    Returns:
        A Flower `ServerApp`. It raises `ValueError` when it is started if the configuration is invalid or names no run
        folder.

    Example:
        A file `server_app.py`, named in the `pyproject.toml` of a Flower app::

            from fedmos.flower import server_app

            app = server_app("run.toml")
    """

    def main(grid: Grid, context: Context) -> None:
        with _log_through_flower():
            serve(grid, Deployment.of(config), context.run_config.get("out"), test)

    app = ServerApp()
    app.main()(main)
    return app


def serve(grid: Grid, deployment: Deployment, out: Any = None, test: tuple[Any, Any] | None = None) -> Result:
    """Execute a whole run with the clients of a Flower grid."""
    spec, deploy = deployment.spec, deployment.deploy
    folder = out or spec.out
    if not folder:
        raise ValueError("server_app: 'out' must be a folder, in the configuration or in Flower's run configuration")
    _check_measured(spec, deploy.train_metrics)
    check_declaration(spec.composed_algorithm)
    known_sizes = [] if deployment.data is None else deployment.data.sizes.tolist()
    manifest = DeploymentManifest.load_or_create(Path(folder), known_sizes)
    collector = _connect(grid, deployment, manifest)
    _wait_for_clients(collector, deploy.wait)
    data = _server_data(deployment, collector.registry, test)
    policy = _reply_policy(deployment, manifest.run)

    def make_backend(setting: BackendSetting) -> FlowerBackend:
        kind = FlowerBackend if secure_rule(setting.algorithm) is None else SecureFlowerBackend
        return kind(setting, collector, policy)

    manifest = replace(manifest, samples=data.sizes.tolist())
    served = replace(
        spec,
        data=data,
        engine=deployment.engine,
        out=RunFolder(folder, deployment.config),
        resume=True,
        checkpoint_every=1,
        callbacks=[*spec.callbacks, _DeploymentCallback(manifest, Path(folder))],
    )
    result = Run(served, make_backend=make_backend, secret=_secret_streams(spec, manifest, Path(folder))).play()
    _log.info(
        "Messages carried %.3f MB of vectors and numbers, and %.3f MB of headers",
        collector.payload / 1e6,
        collector.overhead / 1e6,
    )
    return result


def _connect(grid: Grid, deployment: Deployment, manifest: DeploymentManifest) -> ReplyCollector:
    """Set up the exchange of messages with the clients of a grid."""
    spec, deploy = deployment.spec, deployment.deploy
    model = flat_model(spec, find_device(spec.device))
    channel = MessageChannel(grid)
    registry = NodeRegistry(
        channel,
        deployment.names,
        manifest.run,
        deployment.compatibility_hash(model),
        dict(enumerate(manifest.samples)),
    )
    return ReplyCollector(channel, registry, deploy.poll, deploy.rejoin)


def _secret_streams(spec: RunSpec, manifest: DeploymentManifest, folder: Path) -> SecretStreams | None:
    """Return the random numbers of a private run, which do not follow from its seed; None for other runs."""
    if spec.privacy is None:
        return None
    return SecretStreams(Releases(folder / "releases", manifest.run, SystemNoise()), manifest.cohort_seed)


def _reply_policy(deployment: Deployment, run: str) -> ReplyPolicy:
    spec, deploy = deployment.spec, deployment.deploy
    system = spec.system
    return ReplyPolicy(
        run=run,
        deadline=_DEFAULT_DEADLINE if system is None or system.deadline is None else system.deadline,
        norm_bound=None if isinstance(deploy.norm_bound, str) else deploy.norm_bound,
        norm_factor=deploy.norm_factor if deploy.norm_bound == "adaptive" else None,
        reports=spec.selection.reports,
        train_metrics=deploy.train_metrics,
        compress=deploy.compress,
    )


class _DeploymentCallback(Callback):
    """Writes the manifest when the run starts, and logs every round."""

    def __init__(self, manifest: DeploymentManifest, folder: Path) -> None:
        self._manifest, self._folder = manifest, folder

    def on_start(self, rounds: int, done: int) -> None:
        self._manifest.write(self._folder)  # not earlier: the run folder is locked now

    def on_round(self, record: Record) -> None:
        metrics = {name: getattr(record, name) for name in ("accuracy", "test_loss", "train_loss", "epsilon")}
        values = "".join(f", {name} {value:.4g}" for name, value in metrics.items() if value is not None)
        _log.info("Round %d: %d clients, %.1f s%s", record.round, len(record.cohort), record.seconds, values)
        if record.abandoned:
            _log.warning(
                "Round %d is abandoned because too few of its %d clients sent a valid update; the model is unchanged",
                record.round,
                len(record.cohort),
            )


def _wait_for_clients(collector: ReplyCollector, seconds: float) -> None:
    """Wait until all clients are connected, at most for `seconds`."""
    started, registry = monotonic(), collector.registry
    while True:
        collector.refresh_nodes()
        missing = set(range(len(registry.names))) - registry.connected
        if not missing:
            return
        if monotonic() - started > seconds:
            names = ", ".join(registry.names[i] for i in sorted(missing)[:20])
            _log.warning("Starting without %d of %d clients: %s", len(missing), len(registry.names), names)
            return
        sleep(collector.poll)


def _server_data(deployment: Deployment, registry: NodeRegistry, test: tuple[Any, Any] | None) -> FederatedData:
    """The federation as the server sees it: the clients' sizes and the test set."""
    if deployment.data is not None:
        return server_part(deployment.data)
    if test is None:
        raise ValueError("server_app: 'test' must be given where the configuration holds no data")
    missing = [name for i, name in enumerate(deployment.names) if i not in registry.samples]
    if missing:
        raise ValueError(
            f"Cannot start because the number of samples of these clients is unknown: {', '.join(missing[:20])}; "
            "connect them once, or use a longer 'wait'"
        )
    return reported_data([registry.samples[i] for i in range(len(deployment.names))], test)


def _check_measured(spec: RunSpec, train_metrics: bool) -> None:
    """Refuse options that need metrics of the training data, if clients do not report them."""
    stopping = [callback.metric for callback in spec.callbacks if isinstance(callback, EarlyStopping)]
    for verb, names in (("stop at", [*(spec.target or {}), *stopping]), ("keep the best", [spec.keep_best])):
        training = [name for name in names if str(name).startswith("train_")]
        if training and not train_metrics:
            raise ValueError(f"Cannot {verb} {training[0]} because clients do not report it; use train_metrics = true")


@contextmanager
def _log_through_flower() -> Iterator[None]:
    """Send the log messages of fedmos to the handlers of Flower's logger."""
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
