"""A flag that is set for the duration of a context."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar


class Switch:
    """A flag that is off by default. Each thread and each asyncio task has its own value."""

    def __init__(self, name: str) -> None:
        self._on = ContextVar(name, default=False)

    def __bool__(self) -> bool:
        return self._on.get()

    @contextmanager
    def on(self) -> Iterator[None]:
        """Turn the switch on in a `with` block."""
        token = self._on.set(True)
        try:
            yield
        finally:
            self._on.reset(token)
