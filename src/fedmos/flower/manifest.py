"""The file deployment.json, which identifies the run of a deployment."""

from __future__ import annotations

import json
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..storage.files import replace_file
from .client_folder import RUN_ID

_FILE = "deployment.json"


@dataclass(frozen=True)
class DeploymentManifest:
    """Data that a restarted server needs before it reads a checkpoint."""

    run: str
    """The run's id. Clients store their state under it."""
    samples: list[int]
    """Number of samples of each client; empty before the clients have reported it."""

    @classmethod
    def load_or_create(cls, folder: Path, samples: list[int]) -> DeploymentManifest:
        """Read the manifest of a run folder, or create one with a new run id if the folder holds no run.

        Args:
            folder: The run folder.
            samples: The `samples` of a new manifest.

        Raises:
            ValueError: If the folder holds a simulated run, or the file is damaged.
        """
        path = folder / _FILE
        try:
            content = json.loads(path.read_text())
        except FileNotFoundError:
            if any((folder / "checkpoints").glob("[0-9]*")):
                raise ValueError(
                    f"Cannot resume the run in {folder} because it is not a deployment; use a new folder"
                ) from None
            return cls(secrets.token_hex(16), samples)
        except ValueError:
            content = None
        if not _is_valid(content):
            raise ValueError(f"Cannot resume the run in {folder} because {path} is damaged; use a new folder")
        return cls(content["run"], content["samples"])

    def write(self, folder: Path) -> None:
        """Write the manifest atomically into a run folder."""
        replace_file(folder / _FILE, json.dumps({"run": self.run, "samples": self.samples}).encode())


def _is_valid(content: Any) -> bool:
    if not isinstance(content, dict) or set(content) != {"run", "samples"} or not isinstance(content["samples"], list):
        return False
    return (
        isinstance(content["run"], str)
        and RUN_ID.fullmatch(content["run"]) is not None
        and all(type(n) is int and n > 0 for n in content["samples"])
    )
