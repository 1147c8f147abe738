"""What a machine's own file says: the data and the policy of a client, and the test samples of the server.

Samples that were read once are kept in this process, and in those that are forked from it, until their file changes.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from ..config.client_policy import ClientPolicy
from ..config.installation import read_client, read_server
from ..config.own_data import OwnDataConfig
from ..data.federated import FederatedData
from ..storage.files import storage_errors
from .client_errors import ClientErrorCode, coded_errors
from .client_samples import LoadClientData

Samples = tuple[Tensor, Tensor] | FederatedData
_READ: dict[tuple[object, ...], Samples] = {}
"""Samples by what describes them."""


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
    table = own.data.with_agreed(agreed)
    return (lambda client: read_samples(table, beside, client)), chosen


def test_samples(file: Any, agreed: Mapping[str, Any]) -> tuple[Tensor, Tensor] | None:
    """Return the test samples of the server's file, or None if there is no file or it has no table `[test]`."""
    if not file:
        return None
    own, beside = read_server(Path(str(file)))
    if own.test is None:
        return None
    read = read_samples(own.test.with_agreed(agreed), beside)
    return read.stored(0) if isinstance(read, FederatedData) else read


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
    paths = ", ".join(map(str, table.files(beside))) or f"of {table.function}"
    readable = storage_errors(f"read the data {paths}", "see the path in the machine's own file")
    with coded_errors(ClientErrorCode.DATA), readable:
        files = [file for path in table.files(beside) for file in (path, *sorted(path.rglob("*")))]
        state = tuple((str(file), file.stat().st_mtime_ns, file.stat().st_size) for file in files)
        key = (table.model_dump_json(), str(beside), client, state)
        if key not in _READ or table.function is not None:  # a function may read anything
            _READ[key] = table.load(beside, client)
        return _READ[key]
