"""Runs on disk: folders, locks and checkpoints that survive a kill, a full disk and a flipped bit."""

from ..engine.snapshot import Snapshot
from .run_folder import RunFolder

__all__ = ["RunFolder", "Snapshot"]
