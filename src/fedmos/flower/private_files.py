"""Files and folders that only their owner can read."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def private_files() -> Iterator[None]:
    """Give files that are created meanwhile the mode 0600, and folders 0700. Acts on the whole process."""
    before = os.umask(0o077)
    try:
        yield
    finally:
        os.umask(before)


def make_private_folder(path: Path) -> None:
    """Create a folder with the mode 0700, or take the access of others away from an existing one."""
    path.mkdir(parents=True, exist_ok=True, mode=0o700)
    mode = path.stat().st_mode
    if mode & 0o077 and os.access(path, os.W_OK):
        path.chmod(mode & 0o700)
