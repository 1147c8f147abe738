"""The folder of a client's installation: its key, its secret, its app and its file client.toml."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ...config.installation import ClientFile
from ...config.schema import parse
from ...core.formatting import format_value
from ...storage.toml import dumps
from ..node_identities import fingerprint
from ..private_files import make_private_folder
from .certificates import KeyPair, client_key, make_secret
from .pinned_app import build_app, hash_of

CLIENT_FILE = "client.toml"
_HEAD = """\
# The installation of this client: fedmos deploy node|apps|try|doctor CLIENT.toml. This file is never sent.
"""
_TAIL = """
# What this client answers beyond or below what the app needs; see docs/deploy/security.md.
# [policy]
# min_batch = 8
# clip_norm = 1.0
# noise_multiplier = 0.1
"""
_DATA = """
# This client's own data; without it, its part of the data that the app's configuration names.
# [data]
# file = "/srv/data/patients.csv"   # or a .parquet file, or: folder = "/srv/data/images"
# target = "outcome"
"""


class PreparedClient(NamedTuple):
    """What `prepare_client` has made."""

    file: Path
    public_key: Path
    fingerprint: str
    app_hash: str


def prepare_client(
    folder: Path, name: str, server: str, authority: Path, app: Path, state: str, port: int, data: Mapping[str, Any]
) -> PreparedClient:
    """Write a client's installation into a folder that has none. A key pair that is there is kept.

    Args:
        folder: The folder.
        name: The client's name.
        server: Where clients reach the server, HOST:PORT.
        authority: The certificate of the authority of the server.
        app: The folder of the app, or its file NAME.fab.
        state: The folder of the client's state.
        port: The port of loopback for the client's apps.
        data: The table `[data]`; empty for none.

    Raises:
        FileExistsError: If the folder has an installation.
        FileNotFoundError: If the authority or the app does not exist.
        ConfigError: If a value is invalid.
    """
    file = folder / CLIENT_FILE
    if file.exists():
        raise FileExistsError(
            f"Cannot make {file} because it exists; change that file, for example 'app' for another app, or use "
            "another folder"
        )
    table = {"client": name, "server": server, "key": name, "state": state, "app": "?.fab", "port": port}
    table |= {"data": dict(data)} if data else {}
    parse(ClientFile, table, "deploy client")
    for path, option in ((authority, "authority"), (app, "app")):
        if not path.exists():
            raise FileNotFoundError(
                f"deploy client: '--{option}' must be an existing path, got {format_value(str(path))}"
            )
    if app.suffix != ".fab" and not (app / "pyproject.toml").exists():
        raise ValueError(
            "deploy client: '--app' must be the folder of an app, with pyproject.toml, or a file NAME.fab, got "
            f"{str(app)!r}"
        )
    make_private_folder(folder)
    if (folder / "ca.pem").absolute() != authority.absolute():
        shutil.copyfile(authority, folder / "ca.pem")
    (folder / "ca.pem").chmod(0o644)
    fab = build_app(app, folder) if app.is_dir() else Path(shutil.copy(app, folder / app.name))
    fab.chmod(0o600)
    pair = KeyPair(folder / name)
    if not (pair.private.exists() and pair.public.exists()):
        client_key(folder, name)
    make_secret(folder)
    text = _HEAD + dumps(table | {"app": fab.name}) + ("" if data else _DATA) + _TAIL
    file.write_text(text, "utf-8")
    file.chmod(0o600)
    return PreparedClient(file, pair.public, fingerprint(pair.public.read_bytes()), hash_of(fab))
