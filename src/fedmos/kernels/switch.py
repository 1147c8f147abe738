"""Something that is off but for a while."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar


class Switch:
    """Each thread and each task has its own."""

    def __init__(self, name: str) -> None:
        self._on = ContextVar(name, default=False)

    def __bool__(self) -> bool:
        return self._on.get()

    @contextmanager
    def on(self) -> Iterator[None]:
        """For a while."""
        token = self._on.set(True)
        try:
            yield
        finally:
            self._on.reset(token)
