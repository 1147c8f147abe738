"""The log of fedmos in a process of Flower: lines of text by Flower's handlers, or one JSON object per line."""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import cache

from ..core.formatting import format_value

_log, _flower = logging.getLogger("fedmos"), logging.getLogger("flwr")

VARIABLE = "FEDMOS_LOG"
"""The environment variable that chooses the form of a process's log: "text" or "json"."""


@contextmanager
def log_through_flower(style: str | None = None) -> Iterator[None]:
    """Send the log messages of fedmos to the handlers of Flower's logger.

    Args:
        style: "text" or "json", with which messages of Flower are JSON too; by default that of the environment
            variable FEDMOS_LOG, or text.
    """
    as_json = (style or _checked(os.environ.get(VARIABLE, ""))) == "json"
    before, level = list(_flower.handlers), _log.level
    handlers = [_json_handler(before)] if as_json else before
    if as_json:
        _flower.handlers[:] = handlers
    for handler in handlers:
        _log.addHandler(handler)
    _log.setLevel(logging.INFO)
    try:
        yield
    finally:
        _log.setLevel(level)
        for handler in handlers:
            _log.removeHandler(handler)
        if as_json:
            _flower.handlers[:] = before


@cache
def _checked(given: str) -> str:
    """Return the form of the log that the environment asks for; a mistake there must not end the work of a client."""
    style = given.strip().lower() or "text"
    if style not in ("text", "json"):
        _log.warning("%s must be 'text' or 'json', got %s; the log is text", VARIABLE, format_value(given))
    return style


class JsonFormatter(logging.Formatter):
    """Formats a message as one line: a JSON object with time, level, logger, process and message."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of a message."""
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        line = {"time": time, "level": record.levelname, "logger": record.name, "process": record.process}
        line["message"] = record.getMessage()
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line)


def _json_handler(handlers: list[logging.Handler]) -> logging.Handler:
    """Return a handler that writes to where the first handler with a stream does."""
    streams = [handler.stream for handler in handlers if isinstance(handler, logging.StreamHandler)]
    handler = logging.StreamHandler(streams[0] if streams else sys.stderr)
    handler.setLevel(min((other.level for other in handlers), default=logging.INFO))
    handler.setFormatter(JsonFormatter())
    return handler
