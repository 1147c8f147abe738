"""Runs on disk: folders, locks and checkpoints that survive a kill, a full disk and a flipped bit."""

from .folder import RunFolder
from .snapshot import Snapshot

__all__ = ["RunFolder", "Snapshot"]
