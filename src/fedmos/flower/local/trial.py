"""A trial of a client: its data, one step of local training, and what would be sent. Nothing is sent or kept."""

from __future__ import annotations

import json
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from ...aggregation import Secure
from ...data.federated import FederatedData
from ...engine.declaration import Declaration
from .. import wire
from ..audit_log import AUDIT_LOG
from ..client_guard import needed_kinds
from ..client_runtime import ClientRuntime
from ..client_setup import OwnData, own_setup
from ..deployment import Deployment
from .app_template import CONFIGURATION
from .doctor_files import app
from .installations import ClientInstallation
from .pinned_app import hash_of

_RUN = "0" * 32
_MOST_LISTED = 20
_QUESTIONS = {
    wire.LOSSES: "its losses at a model that the server sends",
    wire.GRADIENTS: "its gradient at a model that the server sends",
    wire.EVALUATE: "its training metrics",
    wire.SCORES: "its metrics on its own test samples",
}


def try_client(file: Path) -> Iterator[str]:
    """Yield the lines of a trial.

    Raises:
        ValueError: If the data cannot be loaded, or does not fit the app's configuration.
    """
    installed = ClientInstallation.read(file)
    if (found := app(installed)).wrong:
        raise ValueError(found.text)
    with tempfile.TemporaryDirectory() as folder:
        given = Deployment.of(_configuration(installed, Path(folder)))
        deployment = _plain(given)
        yield f"App {installed.app.name}, hash {hash_of(installed.app)}"
        load, policy = own_setup(installed.file, deployment.agreed)
        own = installed.settings
        runtime = ClientRuntime(deployment, own.client, folder, load, policy, number=own.number)
        spec = given.spec
        work = f"{spec.local_epochs} epochs" if spec.local_steps is None else f"{spec.local_steps} steps"
        batch = "all samples" if spec.batch_size is None else spec.batch_size
        yield f"It trains {type(spec.composed_algorithm).__name__}: {work} in batches of {batch}"
        yield from _describe(runtime.data)
        if isinstance(load, OwnData) and (features := [f for c in load.columns(own.client) for f in c.features]):
            yield f"Inputs: {_listed(features)}"
        yield from _answers(deployment, runtime)
        initial = runtime.metrics(runtime.model.initial())
        yield f"The initial model: {', '.join(f'{name} {float(v):.4g}' for name, v in initial.items())}"
        yield from _train(runtime, deployment, Path(folder) / runtime.name / AUDIT_LOG)
        if isinstance(spec.aggregation, Secure):
            yield "Secure aggregation masks these vectors before they are sent."
    yield "Nothing was sent, and nothing was kept."


def _configuration(installed: ClientInstallation, folder: Path) -> Path:
    """Unpack the app's configuration and its own code; returns the path of the configuration."""
    with zipfile.ZipFile(installed.app) as archive:
        names = [name for name in archive.namelist() if Path(name).name == CONFIGURATION and name.count("/") == 1]
        if len(names) != 1:
            raise ValueError(
                f"Cannot try {installed.app} because it has no file {CONFIGURATION}; only apps of fedmos deploy init "
                "can be tried"
            )
        archive.extractall(folder / "app")
    return folder / "app" / names[0]


def _plain(deployment: Deployment) -> Deployment:
    """Return the deployment with one local step and without secure aggregation, whose messages need other clients."""
    spec = replace(deployment.spec, local_steps=1, local_epochs=None)
    if isinstance(spec.aggregation, Secure):
        spec = replace(spec, aggregation=None)
    return replace(deployment, spec=spec)


def _describe(data: FederatedData) -> Iterator[str]:
    x, y = data.x, data.y
    shapes = {"x": x} if isinstance(x, torch.Tensor) else dict(x)
    listed = ", ".join(
        f"{name} {tuple(v.shape[1:])} {str(v.dtype).removeprefix('torch.')}" for name, v in shapes.items()
    )
    yield f"{len(y)} samples: {listed}; targets {tuple(y.shape[1:])} {str(y.dtype).removeprefix('torch.')}"
    if not y.is_floating_point() and y.ndim == 1:
        classes, counts = y.unique(return_counts=True)
        shown = [f"{c}: {n}" for c, n in zip(classes.tolist(), counts.tolist(), strict=True)]
        yield f"Classes and their samples: {_listed(shown)}"


def _listed(names: Sequence[str]) -> str:
    """Return the first of some names, and how many more there are."""
    more = f", and {len(names) - _MOST_LISTED} more" if len(names) > _MOST_LISTED else ""
    return ", ".join(names[:_MOST_LISTED]) + more


def _answers(deployment: Deployment, runtime: ClientRuntime) -> Iterator[str]:
    for kind, what in _QUESTIONS.items():
        needed = kind in needed_kinds(deployment, deployment.spec.composed_algorithm)
        yield f"{'Answers' if runtime.allows(kind) else 'Refuses'} '{kind}', {what}" + (
            "; the run needs it" if needed else ""
        )


def _train(runtime: ClientRuntime, deployment: Deployment, audit: Path) -> Iterator[str]:
    """Train one step from the initial model, and describe the replies."""
    algorithm = deployment.spec.composed_algorithm
    declaration = Declaration(algorithm, runtime.model.layers)
    kinds = needed_kinds(deployment, algorithm)
    n, size = runtime.samples, len(deployment.names)
    job = {"lr": algorithm.lr, "N": size, "S": size, "W": 1.0, "p": 1 / size, "last": -1, "width": n}
    for kind in (kind for kind in (wire.PREPARE, wire.TRAIN, wire.REPORT, wire.UPLOAD) if kind in kinds):
        message = {} if kind in (wire.PREPARE, wire.UPLOAD) else declaration.message
        down = {name: torch.zeros(shape, dtype=runtime.model.dtype) for name, shape in message.items()}
        if kind != wire.UPLOAD and ("x" in declaration.down or kind == wire.PREPARE):
            down["x"] = runtime.model.initial().cpu()
        reports = ",".join(deployment.spec.selection.reports) if kind in (wire.TRAIN, wire.REPORT) else ""
        header = {"run": _RUN, "round": 0, "client": runtime.number, "reports": reports}
        header |= {} if kind == wire.UPLOAD else job | {"keep": False, "restart": "", "stored": ""}
        runtime.handle(kind, wire.compose(header, wire.pack(down)))
        yield from _sent(kind, audit)


def _sent(kind: str, audit: Path) -> Iterator[str]:
    """Describe the last reply, as the audit log does."""
    sent = json.loads(audit.read_text("utf-8").splitlines()[-1])["sent"]
    yield f"One local step, '{kind}': would send {sent['bytes']} bytes, and the number of samples"
    for name, v in (sent["vectors"] | sent["numbers"]).items():
        norm = f", norm {v['norm']:.4g}" if isinstance(v.get("norm"), float) else ""
        yield f"  {name}: {v['dtype']} {tuple(v['shape'])}{norm}"
