"""The status of a deployment's server at one moment, and the file in the run folder that holds it."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from ...storage.files import StorageError
from ...storage.lock import SERVER_LOCK, is_held
from ...storage.run_folder import STATUS

State = Literal["starting", "training", "waiting", "finished", "stopped", "failed"]


@dataclass
class ClientStatus:
    """What the server knows of a client."""

    name: str
    connected: bool = False
    last_seen: float | None = None
    """When the client was last connected, in seconds since 1970; None if it was not, since the server app started."""
    asked: bool = False
    """Whether a request waits for the client's reply."""
    replies: int = 0
    late: int = 0
    refused: dict[str, int] = field(default_factory=dict)
    """How many of the client's replies were refused, by reason."""
    quarantined: bool = False
    problem: str = ""
    """Why the client was last refused or left out."""


@dataclass
class Waiting:
    """An outage: what waits for which clients."""

    purpose: str
    needed: int
    missing: list[str]
    since: float


@dataclass
class DeploymentStatus:
    """The status of a server app."""

    run: str
    state: State = "starting"
    pid: int = field(default_factory=os.getpid)
    updated: float = 0.0
    """When this status was written, in seconds since 1970."""
    rounds: int = 0
    """The number of rounds of the run."""
    completed: int = 0
    asking: str = ""
    """The kind of the last request."""
    waiting: Waiting | None = None
    bytes_down: int = 0
    """Bytes of vectors and numbers sent to clients since the server app started, of repeated messages too."""
    bytes_up: int = 0
    abandoned: int = 0
    """Rounds that were abandoned since the server app started."""
    refused_nodes: int = 0
    last: dict[str, Any] = field(default_factory=dict)
    """Values of the last round: round, seconds, cohort, late, and the metrics of the last evaluation."""
    clients: list[ClientStatus] = field(default_factory=list)
    error: str = ""
    """Why the run stopped, if it failed."""

    def to_json(self) -> dict[str, Any]:
        """Return the status as plain values."""
        return asdict(self)

    @classmethod
    def from_json(cls, given: dict[str, Any]) -> DeploymentStatus:
        """Return a status from plain values; fields of other versions of fedmos are left out."""
        known = _known(cls, given)
        known["clients"] = [ClientStatus(**_known(ClientStatus, client)) for client in known.get("clients", [])]
        if known.get("waiting") is not None:
            known["waiting"] = Waiting(**_known(Waiting, known["waiting"]))
        return cls(**known)

    def write(self, folder: Path) -> None:
        """Write the status to a run folder, unless it cannot be written: a run does not depend on it."""
        new = folder / f".{STATUS}.partial"
        with suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            new.write_text(json.dumps(self.to_json()), "utf-8")
            os.replace(new, folder / STATUS)

    @classmethod
    def read(cls, folder: Path) -> DeploymentStatus:
        """Read the status of a run folder.

        Raises:
            FileNotFoundError: If the folder has none.
            ValueError: If the file is damaged.
        """
        path = folder / STATUS
        try:
            return cls.from_json(json.loads(path.read_text("utf-8")))
        except FileNotFoundError:
            raise FileNotFoundError(
                f"Cannot show the status of {folder} because it has no {STATUS}: it is not the run folder of a "
                "deployment, or its server app has not started"
            ) from None
        except OSError as error:
            raise StorageError(
                f"Cannot show the status of {folder} because of an error: {error.strerror}; use the run folder, as the "
                "user of the server app"
            ) from None
        except (ValueError, TypeError, AttributeError):
            raise ValueError(f"Cannot show the status of {folder} because {path} is damaged; the run goes on") from None


def is_served(folder: Path) -> bool:
    """Return whether a server app has the run folder open."""
    return is_held(folder / SERVER_LOCK) or is_held(folder / "lock")


def finished(folder: Path) -> DeploymentStatus | None:
    """Return the status of the finished run in a folder; None if there is none, or it is not known to be finished."""
    with suppress(OSError, ValueError):
        status = DeploymentStatus.read(folder)
        return status if status.state == "finished" else None
    return None


def _known(kind: type[Any], given: dict[str, Any]) -> dict[str, Any]:
    names = {f.name for f in fields(kind)}
    return {name: value for name, value in given.items() if name in names}
