"""The Flower app of the server: executes the rounds of a simulation with clients behind a Flower grid."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from torch import Tensor

from ..core.callback import Callback
from ..core.history import Record
from ..engine.declaration import check_declaration
from ..engine.secure_sums import secure_rule
from ..privacy.client_noise import has_client_noise
from ..privacy.noise import SecretStreams, SystemNoise
from ..run.backends import BackendSetting
from ..run.build import flat_model
from ..run.early_stopping import EarlyStopping
from ..run.preflight import find_device
from ..run.result import Result
from ..run.spec import RunSpec
from ..selection.selector import thins
from . import wire
from .backend import FlowerBackend
from .buffered_backend import BufferedFlowerBackend
from .channel import MessageChannel
from .client_setup import own_test, test_samples
from .deployment import Deployment, Given
from .flower_log import log_through_flower
from .graceful_stop import GracefulStop
from .input_columns import InputColumns
from .manifest import DeploymentManifest
from .members.changes import MembersChangedError
from .members.folder import ServedFolder
from .members.membership import ClientMembership
from .members.refusals import RefusalLog
from .monitoring.endpoint import metrics_endpoint
from .monitoring.monitor import Monitor, MonitorCallback
from .node_identities import NodeIdentities
from .node_registry import NodeRegistry
from .outages import OutageWatch, PatientGrid
from .private_files import make_private_folder, private_files
from .releases import Releases
from .reply_collector import ReplyCollector
from .requests import ReplyPolicy
from .sample_counts import SampleCounts
from .secure_backend import SecureFlowerBackend
from .served_data import resized, server_data, wait_for_clients
from .served_run import ServedRun, served

_log = logging.getLogger("fedmos")

_DEFAULT_DEADLINE = 600.0
"""Seconds that clients have to reply to a request if the run has no deadline."""


def server_app(config: Given, *, test: tuple[Any, Any] | None = None) -> ServerApp:
    """Create the Flower app that runs on the server.

    The run folder is `out` in the configuration or in Flower's run configuration. If the app is started again with the
    same folder, the run continues after the last committed round. `test` in Flower's run configuration is the path of
    the server's file, whose table `[test]` takes precedence over `test`.

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
        deployment = Deployment.of(config)
        with log_through_flower(deployment.deploy.log), private_files():
            file = context.run_config.get("test")
            own = own_test(file, deployment.agreed)
            inputs = "" if own is None else own.inputs_hash()
            samples = test_samples(file, deployment.agreed) or test
            serve(grid, deployment, context.run_config.get("out"), samples, inputs)

    app = ServerApp()
    app.main()(main)
    return app


def serve(
    grid: Grid, deployment: Deployment, out: Any = None, test: tuple[Any, Any] | None = None, inputs: str = ""
) -> Result:
    """Execute a whole run with the clients of a Flower grid; `inputs` is the hash of the columns of `test`."""
    spec, deploy = deployment.spec, deployment.deploy
    folder = out or spec.out
    if not folder:
        raise ValueError("server_app: 'out' must be a folder, in the configuration or in Flower's run configuration")
    _check_measured(spec, deploy.train_metrics)
    check_declaration(spec.composed_algorithm)
    with served(Path(folder)):
        return _serve_parts(grid, deployment, Path(folder), test, inputs)


def _serve_parts(grid: Grid, deployment: Deployment, folder: Path, test: tuple[Any, Any] | None, inputs: str) -> Result:
    """Execute a run in parts, between which the operator changes its clients."""
    known_sizes = [] if deployment.data is None else deployment.data.sizes.tolist()
    manifest, wait = DeploymentManifest.load_or_create(folder, known_sizes), deployment.deploy.wait
    stop, monitor = GracefulStop(), Monitor(deployment.names, manifest.run, folder)
    serving = _Serving(grid, deployment, folder, test, inputs, monitor, stop)
    with stop.deferred(), metrics_endpoint(deployment.deploy.metrics, monitor), monitor.until_end():
        while True:
            try:
                return _serve_part(serving, manifest, wait)
            except MembersChangedError:
                manifest, wait = DeploymentManifest.load_or_create(folder, known_sizes), 0.0


class _Serving(NamedTuple):
    """What all parts of a run have in common, between which the operator changes its clients."""

    grid: Grid
    deployment: Deployment
    folder: Path
    test: tuple[Any, Any] | None
    """Samples to evaluate the model on, if the configuration has none."""
    inputs: str
    """The hash of the columns of `test`; empty if it has none."""
    monitor: Monitor
    stop: GracefulStop


def _serve_part(serving: _Serving, manifest: DeploymentManifest, wait: float) -> Result:
    """Execute a run until it ends, or until the operator changes its clients.

    Args:
        serving: What all parts have in common.
        manifest: The manifest of the run.
        wait: Seconds to wait for all clients; 0 for none, after a change.

    Raises:
        MembersChangedError: If the operator changes the clients.
    """
    deployment, folder = serving.deployment, serving.folder
    spec, limit = deployment.spec, deployment.deploy.outage_limit
    members = ClientMembership.open(folder, deployment, manifest)
    serving.monitor.know(members.names)
    collector = _connect(serving, manifest, members)
    seconds = None if isinstance(limit, str) else limit
    outages = OutageWatch(collector, seconds, members.ends_waiting, members.member_list.limits.can_retire)
    if wait:
        wait_for_clients(outages, wait, needs_sizes=deployment.data is None)
    base = server_data(deployment, collector.registry, manifest.samples, serving.test)
    data = members.weighted(resized(base, members, collector.registry, serving.test))
    policy = _reply_policy(deployment, members)

    def make_backend(setting: BackendSetting) -> FlowerBackend:
        kind = FlowerBackend if secure_rule(setting.algorithm) is None else SecureFlowerBackend
        return (kind if spec.buffer is None else BufferedFlowerBackend)(setting, outages, policy)

    manifest = replace(manifest, samples=base.sizes.tolist())

    def initial() -> Tensor:
        return flat_model(spec, find_device(spec.device), shares=True).initial()

    served = replace(
        spec,
        data=data,
        engine=deployment.engine,
        out=ServedFolder(folder, deployment.config, members, spec, initial),
        resume=True,
        checkpoint_every=1,
        update_norms=spec.update_norms or _sees_updates(spec),
        callbacks=[
            *spec.callbacks,
            _DeploymentCallback(manifest, folder, collector.registry.identities),
            MonitorCallback(serving.monitor),
        ],
    )
    secret = _secret_streams(spec, manifest, folder)
    run = ServedRun(served, members, collector, base, make_backend=make_backend, secret=secret)
    try:
        return run.play()
    finally:
        _log.info(
            "Messages carried %.3f MB of vectors and numbers, and %.3f MB of headers",
            collector.payload / 1e6,
            collector.overhead / 1e6,
        )


def _sees_updates(spec: RunSpec) -> bool:
    """Whether the server may know the norms of single updates."""
    hidden = spec.privacy is not None or secure_rule(spec.composed_algorithm) is not None
    return not hidden and spec.buffer is None and not thins(spec.selection)


def _connect(serving: _Serving, manifest: DeploymentManifest, members: ClientMembership) -> ReplyCollector:
    """Set up the exchange of messages with the clients of a grid."""
    spec, deploy = serving.deployment.spec, serving.deployment.deploy
    model = flat_model(spec, find_device(spec.device), shares=True)
    large = model.size * model.dtype.itemsize >= wire.LARGE
    channel = MessageChannel(PatientGrid(serving.grid), one_by_one=large)
    member_list, names = members.member_list, members.names
    keys = deploy.keys
    if member_list.keys and keys != "off":
        keys = ({} if isinstance(keys, str) else dict(keys)) | member_list.keys
    agreed = dict(deploy.samples or {}) | {names[i]: n for i, n in member_list.samples.items()}
    registry = NodeRegistry(
        channel,
        names,
        member_list.run,
        serving.deployment.compatibility_hash(model),
        dict(enumerate(manifest.samples)) | member_list.samples,
        NodeIdentities.load(serving.folder, keys),
        SampleCounts(agreed, deploy.max_samples, deploy.samples_factor),
        InputColumns(serving.inputs),
        retired=frozenset(member_list.retired),
    )
    collector = ReplyCollector(channel, registry, deploy.poll, deploy.rejoin, refusals=RefusalLog(names))
    collector.monitor, collector.stop = serving.monitor, serving.stop
    return collector


def _secret_streams(spec: RunSpec, manifest: DeploymentManifest, folder: Path) -> SecretStreams | None:
    """Return the random numbers of a run with noise on sums, which do not follow from its seed; None for others.

    Where clients add the noise, no amplification is assumed and cohorts need not be secret.
    """
    if spec.privacy is None or has_client_noise(spec.composed_algorithm):
        return None
    return SecretStreams(Releases(folder / "releases", manifest.run, SystemNoise()), manifest.cohort_seed)


def _reply_policy(deployment: Deployment, members: ClientMembership) -> ReplyPolicy:
    spec, deploy = deployment.spec, deployment.deploy
    system = spec.system
    return ReplyPolicy(
        run=members.member_list.run,
        deadline=_DEFAULT_DEADLINE if system is None or system.deadline is None else system.deadline,
        norm_bound=None if isinstance(deploy.norm_bound, str) else deploy.norm_bound,
        norm_factor=deploy.norm_factor if deploy.norm_bound == "adaptive" else None,
        reports=spec.selection.reports,
        train_metrics=deploy.train_metrics,
        compress=deploy.compress,
        quorum=0.0 if system is None else system.quorum,
        sources=members.sources(spec.composed_algorithm),
    )


class _DeploymentCallback(Callback):
    """Writes the manifest when the run starts, and logs every round."""

    def __init__(self, manifest: DeploymentManifest, folder: Path, identities: NodeIdentities) -> None:
        self._manifest, self._folder, self._identities = manifest, folder, identities

    def on_start(self, rounds: int, done: int) -> None:
        make_private_folder(self._folder)
        self._manifest.write(self._folder)  # not earlier: the run folder is locked now
        self._identities.keep_in(self._folder)

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


def _check_measured(spec: RunSpec, train_metrics: bool) -> None:
    """Refuse options that need metrics of the training data, if clients do not report them."""
    stopping = [callback.metric for callback in spec.callbacks if isinstance(callback, EarlyStopping)]
    for verb, names in (("stop at", [*(spec.target or {}), *stopping]), ("keep the best", [spec.keep_best])):
        training = [name for name in names if str(name).startswith("train_")]
        if training and not train_metrics:
            raise ValueError(f"Cannot {verb} {training[0]} because clients do not report it; use train_metrics = true")
