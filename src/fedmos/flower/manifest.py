"""The file deployment.json, which identifies the run of a deployment."""

from __future__ import annotations

import hashlib
import json
import re
import secrets
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ..storage.files import replace_file
from .client_folder import RUN_ID

_FILE = "deployment.json"
_SECRET = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class DeploymentManifest:
    """Data that a restarted server needs before it reads a checkpoint."""

    run: str
    """The run's id. Clients store their state under it."""
    samples: list[int]
    """Number of samples of each client; empty before the clients have reported it."""
    cohorts: str = field(default_factory=lambda: secrets.token_hex(32))
    """The secret from which a private run draws its cohorts, which nobody may compute from the run's seed."""

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
        return cls(**content)

    def write(self, folder: Path) -> None:
        """Write the manifest atomically into a run folder."""
        replace_file(folder / _FILE, json.dumps(asdict(self)).encode())

    def cohort_seed(self, t: int) -> int:
        """Return the seed of the cohort of a private run's round. Those of other rounds do not follow from it."""
        return int.from_bytes(hashlib.sha256(f"{self.cohorts}/{t}".encode()).digest()[:8], "little")


def _is_valid(content: Any) -> bool:
    if not isinstance(content, dict) or not isinstance(content.get("samples"), list):
        return False
    return (
        set(content) in ({"run", "samples"}, {"run", "samples", "cohorts"})
        and _SECRET.fullmatch(str(content.get("cohorts", "0" * 64))) is not None
        and isinstance(content["run"], str)
        and RUN_ID.fullmatch(content["run"]) is not None
        and all(type(n) is int and n > 0 for n in content["samples"])
    )
