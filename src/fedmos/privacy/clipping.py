"""The clients' part of a mechanism: the uploads of each client are scaled down to bounds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from ..algorithm import Algorithm, ClientContext, Field, Gradient, Vectors
from ..core.composition import is_pair_of_dicts, recast
from ..core.declared_fields import name_and_shape
from .sums import BELOW, Group, PrivateSums

_BLOCK = 4096
"""The length of vectors whose norm is exact enough in float32, whatever the order in which numbers are added."""


class Clipped(Algorithm):
    """The methods of clients in which an algorithm with clipped uploads differs from the algorithm alone."""

    _privacy_sums: ClassVar[PrivateSums]
    _privacy_base: ClassVar[type[Algorithm]]
    """The class of the algorithm alone."""

    def prepare(self, c: ClientContext, grad: Gradient) -> Vectors:
        uploads = super().prepare(c, grad)
        return self._privacy_clip("prepare", uploads, c) if isinstance(uploads, dict) else uploads

    def finish(self, y: Tensor, s: Vectors, c: ClientContext, grad: Gradient) -> tuple[Vectors, Vectors]:
        finished: Any = super().finish(y, s, c, grad)
        if not is_pair_of_dicts(finished):
            return finished  # type: ignore[no-any-return]  # the engine refuses it
        uploads, own = finished
        clipped, more = self._privacy_clip("train", uploads, c), self._privacy_more(uploads, c)
        follows = self._privacy_base.delivered is not Algorithm.delivered
        if not follows or any(not isinstance(v, Tensor) for v in clipped.values()):
            return clipped | more, own
        # The client's state follows what the server gets. Numbers are computed again, so the norm is bounded again.
        delivered = super().delivered(clipped, own, c)
        if not is_pair_of_dicts(delivered):
            return delivered
        return self._privacy_clip("train", delivered[0], c) | more, own | delivered[1]

    def _privacy_clip(self, phase: str, uploads: Vectors, c: ClientContext) -> Vectors:
        """Scale the uploads of each client down to the bounds of their groups."""
        clipped: Vectors = dict(uploads)
        for group, vectors in self._privacy_vectors(phase, uploads, c):
            factor = (self._privacy_bound(group, c) / norm(vectors, c.K)).clamp(max=1)
            clipped |= {
                name: v * factor.view(*factor.shape, *[1] * (v.ndim - factor.ndim)) for name, v in vectors.items()
            }
        return clipped

    def _privacy_vectors(self, phase: str, uploads: Vectors, c: ClientContext) -> Iterator[tuple[Group, Vectors]]:
        """Return the uploads of each group of a phase, with a row for each client."""
        alone = self._privacy_alone()
        axes = _axes(alone.up if phase == "train" else alone.prepare_up)
        if not set(axes) <= set(uploads):
            return  # the engine refuses it
        for group in self._privacy_sums.groups:
            if group.phase == phase and group.names != (BELOW,):
                yield group, {name: self._privacy_rows(name, uploads[name], axes[name], c) for name in group.names}

    def _privacy_more(self, uploads: Vectors, c: ClientContext) -> Vectors:
        """Return what clients upload besides, from their uploads before clipping."""
        return {}

    def _privacy_bound(self, group: Group, c: ClientContext) -> Tensor | float:
        """Return the bound of a group at the clients."""
        return group.bound

    def _privacy_rows(self, name: str, v: Any, axes: int, c: ClientContext) -> Tensor:
        """Return an upload with a row for each client."""
        clients = c.K.shape[:-1]
        if isinstance(v, Tensor) and v.ndim == axes:  # one for all clients
            return v.expand(*clients, *v.shape).to(c.K.dtype)
        if isinstance(v, Tensor) and v.ndim == axes + 1 and v.shape[0] in (1, *clients):
            return v.expand(*clients, *v.shape[1:]).to(c.K.dtype) if clients else v[0].to(c.K.dtype)
        raise ValueError(f"{type(self).__name__}: the upload {name!r} must be a tensor with a row for each client")

    def _privacy_alone(self) -> Algorithm:
        """Return the algorithm alone. Its declarations may depend on each other."""
        return recast(self, self._privacy_base)


def norm(vectors: Vectors, K: Tensor) -> Tensor:
    """Return the joint norm of the vectors of each client: (), or (M,) for a cohort, as K without its column."""
    norms = [_row_norm(v.flatten(K.ndim - 1)) for v in vectors.values()]
    joint: Tensor = norms[0] if len(norms) == 1 else torch.linalg.vector_norm(torch.stack(norms), dim=0)
    return joint


def _row_norm(v: Tensor) -> Tensor:
    """Return the norm of each row. On a CPU in blocks: of 10⁷ float32 numbers, it would else be up to 1 % too small."""
    n = v.shape[-1]
    if v.device.type != "cpu" or n <= _BLOCK:
        return torch.linalg.vector_norm(v, dim=-1)  # type: ignore[no-any-return]
    whole = n - n % _BLOCK
    blocks = torch.linalg.vector_norm(v[..., :whole].unflatten(-1, (-1, _BLOCK)), dim=-1)
    rest = torch.linalg.vector_norm(v[..., whole:], dim=-1, keepdim=True)
    return torch.linalg.vector_norm(torch.cat([blocks, rest], dim=-1), dim=-1)  # type: ignore[no-any-return]


def _axes(declared: Sequence[Field]) -> dict[str, int]:
    """Return the number of axes of each upload of one client. A number is a column."""
    return {
        name: max(1, len(shape)) if isinstance(shape, tuple) else 1 for name, shape in map(name_and_shape, declared)
    }
