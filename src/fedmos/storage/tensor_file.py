"""Files of named tensors with metadata, in the safetensors format, with a hash by which damage is detected."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from .files import replace_file

_HASH = "sha256"


class TensorFile(NamedTuple):
    """The content of a file."""

    tensors: dict[str, Tensor]
    metadata: dict[str, str]


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str], writer: str = "") -> None:
    """Replace a file atomically.

    Args:
        path: The file.
        tensors: The tensors by name, also if they share memory.
        metadata: Further texts by name.
        writer: A name that distinguishes concurrent writers of one file.
    """
    content = {name: v.detach().cpu().contiguous().clone() for name, v in tensors.items()}
    replace_file(path, safetensors.torch.save(content, {**metadata, _HASH: _hash(content)}), writer)


def read_tensors(path: Path) -> TensorFile:
    """Read a file that `write_tensors` has written.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If it cannot be used; the text continues a sentence on it: "is damaged".
    """
    try:
        with safetensors.safe_open(path, "pt") as file:
            metadata: dict[str, str] = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except FileNotFoundError:
        raise
    except (OSError, safetensors.SafetensorError) as error:
        raise ValueError(f"cannot be read: {error}") from None
    if metadata.pop(_HASH, None) != _hash(tensors):
        raise ValueError("is damaged")
    return TensorFile(tensors, metadata)


def _hash(tensors: Mapping[str, Tensor]) -> str:
    digest = hashlib.sha256()
    for name in sorted(tensors):
        digest.update(name.encode())
        values: Any = tensors[name].reshape(-1).view(torch.uint8).numpy()
        digest.update(values)
    return digest.hexdigest()
