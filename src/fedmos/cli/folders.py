"""Default folders of commands: runs/NAME, runs/NAME-2, …"""

from __future__ import annotations

from pathlib import Path


def free_folder(folder: Path) -> Path:
    """Return the folder, or its first numbered sibling that does not exist."""
    number, free = 1, folder
    while free.exists():
        number += 1
        free = folder.with_name(f"{folder.name}-{number}")
    return free


def latest_folder(folder: Path) -> Path:
    """Return the folder, or its numbered sibling, that `free_folder` gave last."""
    number = 2
    while folder.with_name(f"{folder.name}-{number}").exists():
        number += 1
    return folder if number == 2 else folder.with_name(f"{folder.name}-{number - 1}")
