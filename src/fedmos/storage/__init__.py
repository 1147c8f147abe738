"""Runs on disk: folders, locks, and checkpoints that survive a killed process, a full disk and damaged files."""

from ..engine.snapshot import Snapshot
from .run_folder import RunFolder

__all__ = ["RunFolder", "Snapshot"]
