"""Loading that must be refused, and headers of npy files."""

import os
import struct
from pathlib import Path

import pytest

import fedmos as fm
from helpers.work import counting_calls

MOST_CALLS = 100_000
"""Function calls within which a bad file must be refused."""


def refused(name: str, root: Path, sentence: str) -> str:
    """Loading fails with the sentence, after little work, and leaves nothing behind."""
    with pytest.raises(ValueError) as error:
        counting_calls(lambda: fm.datasets.load(name, root), MOST_CALLS)
    assert str(error.value).startswith(f"Cannot load {root}")
    assert sentence in str(error.value)
    shelf = Path(os.environ["FEDMOS_DATA"]) / "store"
    assert not shelf.exists() or not list(shelf.iterdir())
    return str(error.value)


def npy(shape: str, payload: bytes = b"", descr: str = "|u1", version: int = 1) -> bytes:
    """An array file with any header."""
    header = f"{{'descr': {descr!r}, 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    return (
        b"\x93NUMPY" + bytes((version, 0)) + struct.pack("<H" if version == 1 else "<I", len(header)) + header + payload
    )
