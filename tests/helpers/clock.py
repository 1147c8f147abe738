"""Simulated time."""

import sys
import time

import pytest


class Clock:
    """A clock that only advances when a thread sleeps, and then at once."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def install(self, monkeypatch: pytest.MonkeyPatch, package: str) -> None:
        """Replace `monotonic` and `sleep` in all imported modules of a package."""
        for name, module in list(sys.modules.items()):
            if name == package or name.startswith(f"{package}."):
                for function in ("monotonic", "sleep"):
                    if vars(module).get(function) is getattr(time, function):
                        monkeypatch.setattr(module, function, getattr(self, function))
