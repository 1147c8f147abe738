"""The test samples of each client."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..core.input_layout import InputLayout
from .arrays import Pair, client_number, is_index, offsets_of

TestPair = tuple[Any, Tensor]
"""The inputs and targets of a client's test samples; several inputs are a dictionary of tensors."""


@dataclass(frozen=True, eq=False, repr=False)
class ClientTests:
    """The test samples of every client: one store of samples, and an index into it with a slice per client.

    It is a sequence of pairs (x, y), one per client, which can also be given by its name; a client without test samples
    has empty tensors.

    Example:
        >>> clients = [(torch.zeros(4, 2), torch.zeros(4, dtype=torch.int64)) for _ in range(2)]
        >>> tests = [(torch.ones(3, 2), torch.zeros(3, dtype=torch.int64)), None]
        >>> data = fm.FederatedData.from_arrays(clients, tests=tests)
        >>> [len(y) for x, y in data.tests]
        [3, 0]
    """

    x: Tensor
    """The inputs of all samples of the store."""
    y: Tensor
    """Their targets."""
    index: Tensor | None
    """Positions in x and y, client after client; None if x and y are in that order already."""
    offsets: Tensor
    """Client i has the entries offsets[i] … offsets[i+1]−1 of the index."""
    layout: InputLayout | None = None
    """The inputs of samples that have several."""
    names: Sequence[str] | None = None
    """The names of the clients, if they have names."""

    @classmethod
    def of(cls, pairs: Sequence[Pair | None], layout: InputLayout | None) -> ClientTests | None:
        """Create it from one pair of arrays, or None, per client; None if no client has test samples."""
        given = [pair for pair in pairs if pair is not None]
        if not given:
            return None
        x, y = (torch.from_numpy(np.concatenate(arrays)) for arrays in zip(*given, strict=True))
        sizes = torch.tensor([0 if pair is None else len(pair[1]) for pair in pairs])
        return cls(x, y, None, offsets_of(sizes), layout)

    @cached_property
    def sizes(self) -> Tensor:
        """Number of test samples of each client."""
        return self.offsets.diff()

    @property
    def targets(self) -> Tensor:
        """The targets of all clients' test samples."""
        return self.y if self.index is None else self.y[self.index]

    def moved(self, x: Tensor, y: Tensor) -> ClientTests:
        """Return the test samples with the store in x and y, on another device or of another dtype."""
        return replace(self, x=x, y=y, index=None if self.index is None else self.index.to(y.device))

    def subset(self, chosen: Tensor) -> ClientTests | None:
        """Return the test samples of some clients; None if they have none."""
        entries, offsets = slice_entries(self.offsets, chosen)
        if not len(entries):
            return None
        index = entries if self.index is None else self.index[entries]
        names = None if self.names is None else [self.names[i] for i in chosen.tolist()]
        return replace(self, index=index, offsets=offsets, names=names)

    def fits(self, x: Tensor, y: Tensor, clients: int) -> bool:
        """Return whether these are valid test samples of so many clients, like the training samples x and y."""
        counted = len(self.offsets) == clients + 1 and int(self.offsets[0]) == 0 and bool((self.sizes >= 0).all())
        alike = self.x.shape[1:] == x.shape[1:] and self.y.shape[1:] == y.shape[1:] and len(self.x) == len(self.y)
        stored = len(self.x) if self.index is None else len(self.index)
        return counted and alike and stored >= int(self.offsets[-1]) and self._is_indexed()

    def _is_indexed(self) -> bool:
        return self.index is None or is_index(self.index, len(self.x))

    def fingerprint(self) -> bytes:
        """Return a hash of the division among clients, all targets, and about a thousand inputs."""
        n = len(self.targets)
        some = torch.arange(0, n, max(1, n // 1000))
        inputs = self.x[(some if self.index is None else self.index[some]).to(self.x.device)]
        digest = hashlib.sha256(b"tests")
        for part in (self.offsets, self.index, self.targets, inputs):
            if part is not None:
                digest.update(part.contiguous().cpu().numpy().tobytes())
        return digest.digest()

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __repr__(self) -> str:
        return f"ClientTests({len(self)} clients, {int(self.offsets[-1])} samples)"

    def __iter__(self) -> Iterator[TestPair]:
        return (self[i] for i in range(len(self)))

    def __getitem__(self, i: int | str) -> TestPair:
        i = client_number(i, len(self), self.names, negative=True)
        span = slice(int(self.offsets[i]), int(self.offsets[i + 1]))
        where: Any = span if self.index is None else self.index[span]
        return (self.x[where] if self.layout is None else self.layout.unpack(self.x[where])), self.y[where]


def slice_entries(offsets: Tensor, chosen: Tensor) -> tuple[Tensor, Tensor]:
    """Return the entries of some clients, client after client, and the offset of each among them."""
    sizes = offsets.diff()[chosen]
    new = offsets_of(sizes)
    return torch.arange(int(new[-1])) + (offsets[chosen] - new[:-1]).repeat_interleave(sizes), new
