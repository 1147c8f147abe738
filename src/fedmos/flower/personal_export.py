"""Export of a client's own model at the client: from the state on its disk, and the global model."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

import safetensors
import safetensors.torch
import torch

from ..algorithm import Algorithm, ClientContext
from ..core.formatting import format_value
from ..core.module_copy import copied
from ..engine.personal_models import with_statistics
from ..engine.state import initial_client_state
from ..run.build import flat_model
from ..storage.files import replace_file, storage_errors
from .client_folder import RUN_ID, ClientFolder
from .deployment import Deployment, Given


class PersonalExport(NamedTuple):
    """What was exported."""

    round: int
    """The last round of the client, from 1, after which it had this model."""
    run: str
    """The run's name."""


def export_personal(
    config: Given,
    client: str,
    *,
    state: str | os.PathLike[str],
    model: str | os.PathLike[str],
    out: str | os.PathLike[str],
    run: str | None = None,
) -> PersonalExport:
    """Write a client's own model to a file, on the client's machine. Nothing is sent.

    The client's part is read from its folder; the shared part is the global model, as the server exports it with
    `fedmos export RUN`.

    Args:
        config: The configuration of the deployment, as given to `client_app`.
        client: The name of the client.
        state: The folder `state` of the client's node.
        model: The global model: a file of the format state_dict.
        out: The file to write: the `state_dict` of the client's model as safetensors, with the metadata of `model`.
        run: The run's name, if the folder has several; by default the one that was used last.

    Returns:
        The round and the run of the client's state.

    Raises:
        ValueError: If the method has no personal models, the client has no state, or a file does not fit.

    Example:
        >>> from fedmos.flower import export_personal
        >>> export_personal(
        ...     "run.toml", "hospital-a", state="/var/lib/fedmos", model="model.safetensors", out="own.safetensors"
        ... )  # doctest: +SKIP
    """
    deployment = Deployment.of(config)
    spec, algorithm = deployment.spec, deployment.spec.composed_algorithm
    if type(algorithm).personal is Algorithm.personal:
        raise ValueError(
            f"Cannot export a model of client {client} because {type(algorithm).__name__} has no personal models; use "
            "personal=, or a method such as Ditto"
        )
    if client not in deployment.names:
        known = ", ".join(deployment.names[:20])
        raise ValueError(f"export: 'client' must be one of {known}, got {format_value(client)}")
    flat = flat_model(spec, torch.device("cpu"))
    folder = _folder(Path(state), client, run)
    last = folder.newest()
    if last is None:
        raise ValueError(f"Cannot export a model of client {client} because {state} holds no state of it")
    own = folder.load_state(last, initial_client_state(algorithm, flat))
    module = copied(spec.trained_model, "cpu", spec.dtype)
    metadata = _load_global(module, Path(model))
    named = dict(module.named_parameters())
    x = torch.cat([named[name].detach().reshape(-1) for name in flat.layers])
    one = torch.ones(1, dtype=x.dtype)
    c = ClientContext(
        t=last + 1,
        lr=torch.tensor(algorithm.lr, dtype=x.dtype),
        N=len(deployment.names),
        S=1,
        W=1.0,
        layers=flat.layers,
        x=algorithm.received(x, own),
        msg={},
        own={name: v.reshape(1) if v.ndim == 0 else v for name, v in own.items()},
        K=one,
        p=one / len(deployment.names),
        last=one * last,
    )
    vector = algorithm.personal(c)
    assert vector is not None
    made = flat.module_with(with_statistics(vector, own))
    content = {name: v.detach().contiguous().clone() for name, v in made.state_dict().items()}
    with storage_errors(f"write {os.fspath(out)}", "use another name"):
        replace_file(Path(out), safetensors.torch.save(content, metadata))
    return PersonalExport(last + 1, folder.run)


def _folder(root: Path, client: str, run: str | None) -> ClientFolder:
    """Return the client's folder of a run, or of the run that it has taken part in last."""
    if run is None:
        found = [path for path in (root / client).glob("*") if RUN_ID.fullmatch(path.name)]
        if not found:
            raise ValueError(f"Cannot export a model of client {client} because {root} holds no state of it")
        run = max(found, key=lambda path: path.stat().st_mtime).name
    return ClientFolder(root, client, run)


def _load_global(module: torch.nn.Module, path: Path) -> dict[str, str]:
    """Load the global model into the module, and return the metadata of its file."""
    try:
        with safetensors.safe_open(path, "pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        module.load_state_dict(tensors)
    except (OSError, safetensors.SafetensorError, RuntimeError) as error:
        reason = str(error).split("\n")[0]
        raise ValueError(f"Cannot load the global model from {path}: {reason}; use fedmos export RUN") from None
    return metadata
