"""The run folder of a deployment's server."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from ...engine.snapshot import Snapshot
from ...run.spec import RunSpec
from ...storage import RunFolder
from .membership import ClientMembership


class ServedFolder(RunFolder):
    """A run folder that lets changes of the clients take effect when a checkpoint is loaded.

    Args:
        path: The folder.
        config: The configuration to store in it, if there is one.
        members: The clients of the run.
        spec: The options of the run.
        initial: Returns the initial model.
    """

    def __init__(
        self,
        path: Path,
        config: Mapping[str, Any] | None,
        members: ClientMembership,
        spec: RunSpec,
        initial: Callable[[], Tensor],
    ) -> None:
        super().__init__(path, config)
        self._members, self._spec, self._initial = members, spec, initial

    def load_checkpoint(self, resume: bool) -> Snapshot | None:
        """Load the checkpoint to continue from, with the changes that were ordered since."""
        self.checkpoints.kept = self._members.keep_checkpoints
        snapshot = super().load_checkpoint(resume)
        return self._members.enter(snapshot, self.checkpoints, self._spec, self._initial())
