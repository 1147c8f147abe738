"""The codes by which clients report errors.

A client sends a code and never the text of an exception, which may quote its data. The full text is in the client's own
log. The server logs the code and its meaning from this table, whatever text a reply has.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum

from ..storage.files import StorageError


class ClientErrorCode(IntEnum):
    """Why a client does not answer a request."""

    INVALID_REQUEST = 110
    FORBIDDEN = 111
    DIFFERENT_REQUEST = 112
    REPLAYED = 113
    TOO_FEW_SAMPLES = 114
    SMALL_BATCHES = 115
    CONFIGURATION = 120
    DATA = 121
    STATE = 122
    NOT_FINITE = 123
    STORAGE = 130
    MEMORY = 131
    FAILED = 140


MEANINGS = {
    ClientErrorCode.INVALID_REQUEST: "it refuses the request as invalid",
    ClientErrorCode.FORBIDDEN: "its policy does not allow this question",
    ClientErrorCode.DIFFERENT_REQUEST: "it has answered a different request of this kind in the same round",
    ClientErrorCode.REPLAYED: "the request belongs to a round before its last ones",
    ClientErrorCode.TOO_FEW_SAMPLES: "it has fewer samples than its policy demands",
    ClientErrorCode.SMALL_BATCHES: "its batches are smaller than its policy demands",
    ClientErrorCode.CONFIGURATION: "its configuration is invalid",
    ClientErrorCode.DATA: "its data cannot be loaded",
    ClientErrorCode.STATE: "its stored state is missing or damaged",
    ClientErrorCode.NOT_FINITE: "its update is not finite",
    ClientErrorCode.STORAGE: "it cannot write its files",
    ClientErrorCode.MEMORY: "it is out of memory",
    ClientErrorCode.FAILED: "its app failed",
}
"""What each code means, in the server's log."""

TRANSIENT = frozenset({ClientErrorCode.STORAGE, ClientErrorCode.MEMORY})
"""Codes after which the request is repeated."""


class ClientError(ValueError):
    """An error of a client with a code. The text stays with the client."""

    def __init__(self, code: ClientErrorCode, text: str) -> None:
        super().__init__(text)
        self.code = code


def code_of(error: BaseException) -> ClientErrorCode:
    """Return the code that represents an exception."""
    found = getattr(error, "code", None)
    if isinstance(found, ClientErrorCode):
        return found
    if isinstance(error, StorageError | OSError):
        return ClientErrorCode.STORAGE
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return ClientErrorCode.MEMORY
    return ClientErrorCode.FAILED


@contextmanager
def coded_errors(code: ClientErrorCode) -> Iterator[None]:
    """Give errors of the block a code, unless they have one."""
    try:
        yield
    except Exception as error:
        if isinstance(getattr(error, "code", None), ClientErrorCode):
            raise
        raise ClientError(code, str(error) or type(error).__name__) from error
