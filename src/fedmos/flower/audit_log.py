"""The audit log of a client: what it was asked, what it sent, and what it refused and why.

One JSON object per line, in UTC, in a file of the client that is never sent. A request whose line cannot be written is
not answered.
"""

from __future__ import annotations

import json
import math
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, RecordDict

from ..algorithm import Vectors
from ..core.formatting import one_line
from ..storage.files import AppendOnlyFile
from . import wire
from .client_errors import code_of
from .private_files import make_private_folder

AUDIT_LOG = "audit.jsonl"
_MAX_TEXT = 200


class AuditLog:
    """The audit log of one client.

    Args:
        folder: The client's folder, in which the file audit.jsonl is.
        client: The client's name.
    """

    def __init__(self, folder: Path, client: str) -> None:
        self._folder, self._client = folder, client

    def sent(self, kind: str, asked: RecordDict, vectors: Vectors, numbers: Vectors, reply: RecordDict) -> None:
        """Write the line of a request that is answered."""
        described = {"vectors": _described(vectors), "numbers": _described(numbers), "bytes": wire.payload(reply)}
        self._write(kind, asked, {"outcome": "answered", "sent": described})

    def refused(self, kind: str, asked: RecordDict, error: Exception) -> None:
        """Write the line of a request that is not answered."""
        outcome = "refused" if isinstance(error, wire.RefusedError) else "failed"
        reason = one_line(f"{error}" or type(error).__name__, 1000)
        self._write(kind, asked, {"outcome": outcome, "code": int(code_of(error)), "reason": reason})

    def _write(self, kind: str, asked: RecordDict, outcome: dict[str, Any]) -> None:
        now = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        line = {"time": now, "client": self._client, "asked": kind} | _request(asked) | outcome
        make_private_folder(self._folder)
        file = AppendOnlyFile(self._folder / AUDIT_LOG)
        try:
            file.append(json.dumps(line))
        finally:
            file.close()


def _request(asked: RecordDict) -> dict[str, Any]:
    """Describe a request, which may be malformed."""
    fields: dict[str, Any] = {}
    received: dict[str, Any] = {}
    for record in asked.values():
        if isinstance(record, ConfigRecord):
            fields |= {one_line(str(name), _MAX_TEXT): _plain(value) for name, value in record.items()}
        elif isinstance(record, ArrayRecord):
            shapes = {name: {"dtype": array.dtype, "shape": list(array.shape)} for name, array in record.items()}
            received |= {one_line(str(name), _MAX_TEXT): shape for name, shape in shapes.items()}
    for name in ("protocol", "client"):
        fields.pop(name, None)
    known = {name: fields.pop(name, None) for name in ("run", "round")}
    return known | {"fields": fields, "received": {"vectors": received, "bytes": wire.payload(asked)}}


def _described(tensors: Vectors) -> dict[str, Any]:
    """Return shapes, types and norms, or the value of a single number."""
    lines: dict[str, Any] = {}
    for name, v in tensors.items():
        lines[name] = {"dtype": str(v.dtype).removeprefix("torch."), "shape": list(v.shape)}
        if v.is_floating_point():
            lines[name]["norm"] = _finite(wire.norm_of(v))
    return lines


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return _finite(value)
    if isinstance(value, str):
        return one_line(value, _MAX_TEXT)
    return value if isinstance(value, bool | int) else one_line(repr(value), _MAX_TEXT)


def _finite(value: float) -> float | str:
    """JSON has no NaN and no infinity."""
    return value if math.isfinite(value) else str(value)
