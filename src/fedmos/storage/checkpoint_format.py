"""The format of a checkpoint: its manifest, and the names of the tensors of its state."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import torch
from torch import Tensor

from ..core.history import History
from ..engine.snapshot import BestModel, ClientScores, Snapshot
from .files import FileRecord
from .segments import ClientSegment, HistorySegment, StoredClients

FORMAT = 2


class DamagedError(ValueError):
    """A checkpoint is not as it was written, or a part of it is missing."""


def manifest_of(
    snapshot: Snapshot, state: FileRecord, history: list[HistorySegment], clients: list[ClientSegment]
) -> dict[str, Any]:
    """Return the manifest of a checkpoint."""
    return {
        "format": FORMAT,
        "info": dict(snapshot.info),
        "interrupted": snapshot.interrupted,
        "state": state,
        "history": [segment.files for segment in history],
        "clients": [segment.files for segment in clients],
    }


def state_tensors(snapshot: Snapshot) -> dict[str, Tensor]:
    """Return the tensors of a checkpoint's state by name."""
    tensors = {"params": snapshot.params, "last": snapshot.last}
    if snapshot.server_model is not None:
        tensors["x"] = snapshot.server_model
    tensors |= {f"server.{name}": v for name, v in snapshot.server_state.items()}
    tensors |= {f"selection.{name}": v for name, v in snapshot.selection.items()}
    tensors |= {f"queue.{name}": v for name, v in snapshot.queue.items()}
    if snapshot.best is not None:
        tensors |= {"best.round": torch.tensor(snapshot.best.round), "best.params": snapshot.best.params}
    if snapshot.client_evaluation is not None:
        tensors |= {"evaluation.round": torch.tensor(snapshot.client_evaluation.round)}
        tensors |= {f"evaluation.of.{name}": v for name, v in snapshot.client_evaluation.values.items()}
    return tensors


def decode_snapshot(
    manifest: dict[str, Any], tensors: dict[str, Tensor], history: History, clients: StoredClients
) -> Snapshot:
    """Return the snapshot of a manifest and the tensors of its state; inverts `state_tensors`."""
    return Snapshot(
        params=tensors.pop("params"),
        server_model=tensors.pop("x", None),
        last=tensors.pop("last"),
        server_state=_with_prefix("server.", tensors),
        selection=_with_prefix("selection.", tensors),
        queue=_with_prefix("queue.", tensors),
        history=history,
        clients=clients,
        info=manifest["info"],
        interrupted=manifest["interrupted"],
        best=_decode_best(tensors),
        client_evaluation=_decode_evaluation(tensors),
    )


def _decode_best(tensors: dict[str, Any]) -> BestModel | None:
    best = _with_prefix("best.", tensors)
    return BestModel(int(best["round"]), best["params"]) if best else None


def _decode_evaluation(tensors: dict[str, Any]) -> ClientScores | None:
    if "evaluation.round" not in tensors:
        return None
    return ClientScores(int(tensors["evaluation.round"]), _with_prefix("evaluation.of.", tensors))


def _with_prefix(prefix: str, tensors: dict[str, Any]) -> dict[str, Any]:
    return {name.removeprefix(prefix): v for name, v in tensors.items() if name.startswith(prefix)}


def seal(content: dict[str, Any]) -> bytes:
    """Encode a manifest together with the hash of its content."""
    text = json.dumps(content)
    return json.dumps({"sha256": hashlib.sha256(text.encode()).hexdigest(), "content": content}).encode()


def unseal(sealed: bytes) -> dict[str, Any]:
    """Decode a manifest and verify its hash."""
    try:
        content: dict[str, Any] = json.loads(sealed)["content"]
        intact = seal(content) == sealed
    except (ValueError, KeyError, TypeError, RecursionError):
        intact = False
    if not intact:
        raise DamagedError("its manifest is not what was written")
    return content
