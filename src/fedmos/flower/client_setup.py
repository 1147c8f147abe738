"""What a machine's own file says: the data and the policy of a client, and the test samples of the server.

Samples that were read once are kept in this process, and in those that are forked from it, until their file changes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from ..config.client_policy import ClientPolicy
from ..config.installation import read_client, read_server
from ..config.own_data import InputColumn, OwnDataConfig, OwnSamples
from ..data.federated import FederatedData
from ..storage.files import storage_errors
from .client_errors import ClientErrorCode, coded_errors
from .client_samples import LoadClientData

Samples = tuple[Tensor, Tensor] | FederatedData
_READ: dict[tuple[object, ...], OwnSamples] = {}
"""Samples by what describes them."""


@dataclass(frozen=True)
class OwnData:
    """The samples that a machine's own file names; a `LoadClientData`."""

    table: OwnDataConfig
    """The table, with what all clients agree on."""
    beside: Path
    """The folder to which relative paths refer."""
    names_inputs: bool
    """Whether the machine's own file names the inputs, so that its columns may have names of their own."""

    @classmethod
    def of(cls, own: OwnDataConfig, beside: Path, agreed: Mapping[str, Any]) -> OwnData:
        """Create it from the table of a machine's own file."""
        return cls(own.with_agreed(agreed), beside, own.inputs is not None)

    def __call__(self, client: str) -> Samples:
        return read_samples(self.table, self.beside, client)

    def columns(self, client: str = "") -> list[InputColumn]:
        """Return the columns of the table in the order of the model's inputs; none for samples that are no table."""
        return list(_read(self.table, self.beside, client).columns)

    def inputs_hash(self, client: str = "") -> str:
        """Hash of the columns and of how many inputs each becomes; empty if others need not have the same."""
        columns = [] if self.names_inputs else self.columns(client)
        text = json.dumps([[column.name, column.values] for column in columns])
        return hashlib.sha256(text.encode()).hexdigest()[:32] if columns else ""


def own_setup(
    file: Any, agreed: Mapping[str, Any], data: LoadClientData | None = None, policy: ClientPolicy | None = None
) -> tuple[LoadClientData | None, ClientPolicy | None]:
    """Return the data and the policy of a client: those of its own file, or else those of its app.

    Args:
        file: The path of client.toml, or None.
        agreed: What all clients agree on of their own data.
        data: The app's function that loads the client's samples.
        policy: The app's policy.
    """
    if not file:
        return data, policy
    own, beside = read_client(Path(str(file)))
    chosen = own.make_policy() if own.policy else policy
    if own.data is None:
        return data, chosen
    return OwnData.of(own.data, beside, agreed), chosen


def test_samples(file: Any, agreed: Mapping[str, Any]) -> tuple[Tensor, Tensor] | None:
    """Return the test samples of the server's file, or None if there is no file or it has no table `[test]`."""
    own = own_test(file, agreed)
    if own is None:
        return None
    read = own("")
    return read.stored(0) if isinstance(read, FederatedData) else read


def own_test(file: Any, agreed: Mapping[str, Any]) -> OwnData | None:
    """Return what the table `[test]` of the server's file names; None if there is no file or it has no such table."""
    if not file:
        return None
    own, beside = read_server(Path(str(file)))
    return None if own.test is None else OwnData.of(own.test, beside, agreed)


def preload_client(file: Path, agreed: Mapping[str, Any]) -> None:
    """Read a client's own samples before its apps need them."""
    own, beside = read_client(file)
    if own.data is not None:
        read_samples(own.data.with_agreed(agreed), beside, own.client)


def read_samples(table: OwnDataConfig, beside: Path, client: str = "") -> Samples:
    """Read samples, or return those that were read before if their file is the same.

    Raises:
        ClientError: If they cannot be read. The text may quote the data.
    """
    return _read(table, beside, client).samples


def _read(table: OwnDataConfig, beside: Path, client: str) -> OwnSamples:
    paths = ", ".join(map(str, table.files(beside))) or f"of {table.function}"
    readable = storage_errors(f"read the data {paths}", "see the path in the machine's own file")
    with coded_errors(ClientErrorCode.DATA), readable:
        files = [file for path in table.files(beside) for file in (path, *sorted(path.rglob("*")))]
        state = tuple((str(file), file.stat().st_mtime_ns, file.stat().st_size) for file in files)
        key = (table.model_dump_json(), str(beside), client, state)
        if key not in _READ or table.function is not None:  # a function may read anything
            _READ[key] = table.read(beside, client)
        return _READ[key]
