"""The part of `ray_executor` that runs on the workers of a Ray cluster.

A worker has copies of the folders of its runs. It sends what changes in them to a mailbox, from which the process that
started the task fetches it: metrics for the progress, and checkpoints, with which the task continues on another worker.
"""

from __future__ import annotations

import json
import platform
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from ..core.version import __version__
from ..storage.copies import FolderCopy, FolderReader, read_folder, write_folder

SECONDS = 2.0
"""Time between two messages of a worker."""

Key = tuple[int, int]
"""The number of a task, and of the attempt at it."""


def versions() -> dict[str, str]:
    """Return the versions on which the bits of results depend."""
    return {"fedmos": __version__, "torch": torch.__version__}


class Mailbox:
    """Keeps the newest state of folders until it is fetched. Runs as an actor of Ray."""

    def __init__(self) -> None:
        self._new: dict[tuple[Key, int], FolderCopy] = {}

    def put(self, key: Key, number: int, copy: FolderCopy) -> None:
        """Add changes in the folder `number` of a task."""
        before = self._new[key, number].files if (key, number) in self._new else {}
        self._new[key, number] = FolderCopy(copy.names, before | copy.files)

    def fetch(self) -> dict[tuple[Key, int], FolderCopy]:
        """Return everything that is new."""
        new, self._new = self._new, {}
        return new


def run_task(
    name: str, given: str, copies: Sequence[FolderCopy], expected: dict[str, str], mailbox: Any, key: Key
) -> tuple[str, list[FolderCopy]]:
    """Run a task on copies of its folders.

    Args:
        name: The function, "module:name".
        given: Its text.
        copies: The states of its folders.
        expected: The versions that this worker must have.
        mailbox: The actor that takes changes of the folders.
        key: Number and attempt of the task.

    Returns:
        The value of the function as JSON, and the new states of the folders.
    """
    if versions() != expected:
        raise RuntimeError(
            f"Cannot train on {platform.node()} because it has {_listed(versions())}, and the process that started the "
            f"task has {_listed(expected)}; install the same versions"
        )
    torch.set_num_threads(1)
    module, _, function = name.partition(":")
    with tempfile.TemporaryDirectory(prefix="fedmos-") as root:
        folders = [Path(root) / str(number) for number in range(len(copies))]
        for folder, copy in zip(folders, copies, strict=True):
            write_folder(folder, copy)
        with _sent(folders, mailbox, key):
            value = getattr(import_module(module), function)(given, folders)
        return json.dumps(value), [read_folder(folder) for folder in folders]


@contextmanager
def _sent(folders: Sequence[Path], mailbox: Any, key: Key) -> Iterator[None]:
    """Send changes of folders from time to time, from another thread, while the block runs."""
    readers, ended = [FolderReader(folder) for folder in folders], threading.Event()
    for reader in readers:
        reader.changes()  # the starter has these files

    def send() -> None:
        import ray

        while not ended.wait(SECONDS):
            for number, reader in enumerate(readers):
                if (copy := reader.changes()) is not None:
                    with suppress(ray.exceptions.RayError):  # the result does not depend on it
                        ray.get(mailbox.put.remote(key, number, copy))

    thread = threading.Thread(target=send, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _listed(found: dict[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in found.items())
