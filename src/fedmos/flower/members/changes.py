"""Changes that the operator orders: one file each, in the folder `changes` of the run folder.

A command of `fedmos deploy` writes a file as a whole, under the next free number. The server reads the files between
rounds and never writes them, so neither needs to wait for the other, and a file that is damaged has no effect.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from ...config.deploy import FINGERPRINT, NAME
from ...core.formatting import format_value
from ...core.validation import count
from ...storage.files import create_file, storage_errors
from ..private_files import make_private_folder

FOLDER = "changes"
_FILE = re.compile(r"(\d{6})\.json")
_FIELDS: dict[str, tuple[str, ...]] = {
    "retire": ("client",),
    "admit": ("client", "samples", "key"),
    "reset": ("client",),
    "samples": ("client", "samples"),
    "release": ("client",),
    "rollback": ("round",),
}
"""The kinds of changes, and the fields of each. `key` may be left out."""


class MembersChangedError(Exception):
    """The operator has ordered changes. They take effect before the next round."""


@dataclass(frozen=True, kw_only=True)
class Change:
    """One change, as the operator ordered it.

    Args:
        kind: "retire", "admit", "reset", "samples", "release" or "rollback".
        client: The name of the client.
        samples: Its number of samples.
        key: The fingerprint of its public key.
        round: The round whose result the run goes back to.
        ordered: When it was ordered, in ISO format.

    Raises:
        ValueError: If a field is missing, superfluous or invalid.
    """

    kind: str
    client: str | None = None
    samples: int | None = None
    key: str | None = None
    round: int | None = None
    ordered: str = ""

    def __post_init__(self) -> None:
        if self.kind not in _FIELDS:
            raise ValueError(f"change: 'kind' must be one of {', '.join(_FIELDS)}, got {format_value(self.kind)}")
        for name, valid, sentence in (
            ("client", isinstance(self.client, str) and bool(NAME.fullmatch(self.client)), "the name of a client"),
            ("samples", count.test(self.samples), "an integer ≥ 1"),
            ("key", self.key is None or bool(FINGERPRINT.fullmatch(str(self.key))), "a fingerprint SHA256:…"),
            ("round", count.test(self.round), "an integer ≥ 1"),
        ):
            value = getattr(self, name)
            if name in _FIELDS[self.kind] and not valid:
                raise ValueError(f"{self.kind}: '{name}' must be {sentence}, got {format_value(value)}")
            if name not in _FIELDS[self.kind] and value is not None:
                raise ValueError(f"{self.kind}: '{name}' must be left out, got {format_value(value)}")

    @classmethod
    def decode(cls, content: Any) -> Change:
        """Return the change in the decoded JSON of a file.

        Raises:
            ValueError: If it is not a change.
        """
        names = set(cls.__dataclass_fields__)
        if not isinstance(content, Mapping) or not set(content) <= names or not isinstance(content.get("kind"), str):
            raise ValueError("change: the file must hold the fields of a change")
        return cls(**content)

    def encode(self) -> dict[str, Any]:
        """Return the fields that are set, to be written as JSON."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    def __str__(self) -> str:
        if self.kind == "rollback":
            return f"rolled back to round {self.round}"
        done = {"retire": "retired", "admit": "admitted", "reset": "reset", "release": "released from quarantine"}
        return f"{self.client}: {done.get(self.kind, f'has {self.samples} samples')}"


class Order(NamedTuple):
    """A change and the number of its file."""

    number: int
    change: Change


def write_order(run: Path, change: Change) -> int:
    """Write a change for the server of a run folder; returns the number of its file."""
    folder = run / FOLDER
    content = json.dumps(replace(change, ordered=datetime.now(UTC).isoformat(timespec="seconds")).encode()).encode()
    with storage_errors(f"write to {folder}", "make room, and run the command as the user of the server"):
        make_private_folder(folder)
        while True:
            number = max((n for n, _ in _files(folder)), default=0) + 1
            if create_file(folder / f"{number:06}.json", content, secrets.token_hex(8)):
                return number  # otherwise, another command took the number


def read_orders(run: Path, known: Iterable[int] = ()) -> tuple[list[Order], dict[int, str]]:
    """Read the changes in a run folder that are not known yet.

    Returns:
        The changes in the order of their numbers, and why other files have no effect.
    """
    orders, damaged = [], {}
    skipped = set(known)
    try:
        files = _files(run / FOLDER)
    except OSError as error:
        return [], {0: f"No change has an effect because {run / FOLDER} cannot be read: {error.strerror or error}"}
    for number, path in files:
        if number in skipped:
            continue
        try:
            orders.append(Order(number, Change.decode(json.loads(path.read_text("utf-8")))))
        except (OSError, ValueError, TypeError, RecursionError) as error:
            damaged[number] = f"{path} has no effect because it cannot be read: {error}"
    return orders, damaged


def _files(folder: Path) -> list[tuple[int, Path]]:
    if not folder.is_dir():
        return []
    matches = [(_FILE.fullmatch(path.name), path) for path in folder.iterdir()]
    return sorted((int(match[1]), path) for match, path in matches if match)
