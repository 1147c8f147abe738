"""Which key each client has: a client's name is bound to the public key of its SuperNode.

A SuperLink with `--enable-supernode-auth` verifies that every request of a node is signed with the private key of a
registered public key, and gives the server app that public key with the node's number (`Grid.get_nodes`). The server
trusts the SuperLink, which runs beside it. A key is written as `ssh-keygen -lf KEY.pub` prints it.

A client's key is the one that the configuration names, or else the first that claims its name in the run. Bound keys
are in the file identities.json of the run folder.
"""

from __future__ import annotations

import base64
import hashlib
import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from ..core.formatting import one_line
from ..storage.files import replace_file, storage_errors
from .wire import RefusedError

_log = logging.getLogger("fedmos")
_FILE = "identities.json"


class NodeIdentities:
    """The keys of the clients.

    Args:
        keys: The fingerprint of each client's key; "learn" to bind each name to the first key that claims it, also for
            clients that a mapping does not name; "off" to trust the names.
        bound: Keys that were bound before. Those in `keys` take precedence.
    """

    def __init__(
        self, keys: Mapping[str, str] | Literal["learn", "off"] = "learn", bound: Mapping[str, str] | None = None
    ) -> None:
        self._off = keys == "off"
        self._agreed = {} if isinstance(keys, str) else dict(keys)
        self._bound = dict(bound or {}) | self._agreed
        self._folder: Path | None = None

    @classmethod
    def load(cls, folder: Path, keys: Mapping[str, str] | Literal["learn", "off"]) -> NodeIdentities:
        """Read the keys that were bound in a run folder.

        Raises:
            ValueError: If the file is damaged.
        """
        path = folder / _FILE
        try:
            bound = json.loads(path.read_text())
        except FileNotFoundError:
            bound = {}
        except ValueError:
            bound = None
        if not isinstance(bound, dict) or not all(isinstance(key, str) for key in bound.values()):
            raise ValueError(
                f"Cannot resume the run in {folder} because {path} is damaged; name the keys of the clients in "
                "[deploy] keys and remove the file"
            )
        return cls(keys, bound)

    def keep_in(self, folder: Path) -> None:
        """Write the keys into a run folder, now and whenever one is bound."""
        self._folder = folder
        self._write()

    def check(self, name: str, public_key: bytes) -> None:
        """Check that a client's name is not bound to another key.

        Args:
            name: The client that a node claims to be.
            public_key: The node's public key; empty if the network has no node authentication.

        Raises:
            RefusedError: If the name belongs to another key, or the key to another name.
        """
        if self._off or (not public_key and name not in self._agreed):
            return
        key = fingerprint(public_key) if public_key else "none"
        owner = self._bound.get(name)
        if owner is not None and owner != key:
            raise RefusedError(
                f"it claims to be client '{name}', but its key {key} is not that client's key {owner}; if the key was "
                "replaced, name the new one in [deploy] keys"
            )
        other = next((client for client, bound in self._bound.items() if bound == key and client != name), None)
        if other is not None:
            raise RefusedError(f"it claims to be client '{name}', but its key {key} is that of client '{other}'")

    def owner(self, public_key: bytes) -> str | None:
        """Return the name to which a public key is bound; None if there is none."""
        try:
            key = None if self._off or not public_key else fingerprint(public_key)
        except RefusedError:
            return None
        return next((name for name, bound in self._bound.items() if bound == key), None)

    def bind(self, name: str, public_key: bytes) -> None:
        """Bind a client's name to a key that was checked, unless it is bound."""
        if public_key and name not in self._bound and not self._off:
            self._bound[name] = fingerprint(public_key)
            _log.info("Client '%s' has the key %s", name, self._bound[name])
            self._write()

    def _write(self) -> None:
        if self._folder is not None and self._bound:
            replace_file(self._folder / _FILE, json.dumps(self._bound, indent=1, sort_keys=True).encode())


def read_key(path: Path) -> bytes:
    """Return the content of the file of a public key.

    Raises:
        ValueError: If it is not one, for example because it is the private key.
        StorageError: If it cannot be read.
    """
    with storage_errors(f"read the public key {path}", "name a client's file NAME.pub"):
        content = path.read_bytes()
    try:
        fingerprint(content)
    except RefusedError:
        raise ValueError(f"Cannot use {path} because it is not a public key; use a client's file NAME.pub") from None
    return content


def fingerprint(public_key: bytes) -> str:
    """Return the fingerprint of a public key, PEM or OpenSSH, as `ssh-keygen -lf` prints it: "SHA256:…".

    Raises:
        RefusedError: If it is not a public key.
    """
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.serialization import (
        Encoding,
        PublicFormat,
        load_pem_public_key,
        load_ssh_public_key,
    )

    load = load_pem_public_key if public_key.startswith(b"-----") else load_ssh_public_key
    try:
        blob = load(public_key).public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).split()[1]
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise RefusedError(f"its public key cannot be read: {one_line(str(error), 100)}") from None
    digest = hashlib.sha256(base64.b64decode(blob)).digest()
    return "SHA256:" + base64.b64encode(digest).decode().rstrip("=")
