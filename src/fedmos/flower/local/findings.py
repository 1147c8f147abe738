"""What `fedmos deploy doctor` says about one thing that it has checked."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Severity(Enum):
    """How a check ended."""

    OK = "ok"
    NOTE = "note"
    """Not wrong, but something to know."""
    FAULT = "FAULT"


@dataclass(frozen=True)
class Finding:
    """The result of a check, in a sentence."""

    severity: Severity
    text: str

    @property
    def wrong(self) -> bool:
        """Whether something is wrong."""
        return self.severity is Severity.FAULT

    @property
    def line(self) -> str:
        """The line that is printed."""
        return f"{self.severity.value}: {self.text}"


def ok(text: str) -> Finding:
    """Return a check that found nothing wrong."""
    return Finding(Severity.OK, text)


def note(text: str) -> Finding:
    """Return a check that found something to know."""
    return Finding(Severity.NOTE, text)


def fault(text: str) -> Finding:
    """Return a check that found a fault."""
    return Finding(Severity.FAULT, text)
