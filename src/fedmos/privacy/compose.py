"""Composition of an algorithm with the Gaussian mechanism: clients clip what they upload, the server adds noise.

The engine sums the clipped uploads as they are, Σ_S u_i. The server adds noise to each of these sums once and computes
all sums that the algorithm declares from the result, with constant factors in place of the weights: 1/(expected size of
a cohort), or 1/N for importances.

Uploads are divided into groups, each clipped to a bound of its own: one group per phase, or one per upload. In a round
with k groups the noise of a group is z · √k times its bound. The uploads of a client, each group divided by its bound,
have a norm of √k at most, so the noise is z times the most that a client contributes.
"""

from __future__ import annotations

import copy
import hashlib
import math
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from .. import rng
from ..algorithm import Algorithm, ClientContext, Context, Field, Gradient, Reduce, Vectors
from ..core.composition import recast, subclass
from ..core.validation import suggest
from .gaussian import Gaussian


class Group(NamedTuple):
    """Uploads of one phase that are clipped as one vector."""

    phase: str
    names: tuple[str, ...]
    bound: float


class PrivateSums(NamedTuple):
    """The numbers of the mechanism for one run."""

    groups: tuple[Group, ...]
    noise_multiplier: float
    size: float
    """The expected number of clients of a cohort."""
    clients: int
    """The number of clients N of the federation."""
    steps: int | None
    """The number of local steps K, where it is the same for all clients."""

    def in_round(self, prepares: bool) -> list[Group]:
        """Return the groups that are uploaded in a round with or without the extra phase."""
        return [group for group in self.groups if prepares or group.phase == "train"]

    def factor(self, rule: str) -> float:
        """Return the factor of a sum of uploads in place of the weights."""
        match rule:
            case "p":
                return 1 / self.clients
            case "sum":
                return 1.0
            case "avg/K":
                assert self.steps is not None
                return 1 / (self.size * self.steps)
            case _:
                return 1 / self.size


def with_privacy(
    algorithm: Algorithm, privacy: Gaussian | None, *, size: float, clients: int, steps: int | None
) -> Algorithm:
    """Return the algorithm with clipped uploads and noisy sums.

    The result has the class name and the fields of the algorithm. Without `privacy`, the algorithm is returned
    unchanged.

    Args:
        algorithm: The algorithm, composed with everything else.
        privacy: The option `privacy`.
        size: The expected number of clients of a cohort.
        clients: The number of clients of the federation.
        steps: The number of local steps, if it is the same for all clients.

    Raises:
        ValueError: If the algorithm cannot be made private, or a bound is given for something that is not uploaded.
    """
    if privacy is None:
        return algorithm
    if privacy.adaptive:
        raise ValueError("Cannot clip adaptively because this version does not account for it; use adaptive=False")
    _check_rules(algorithm, steps)
    sums = PrivateSums(_groups(algorithm, privacy), float(privacy.noise_multiplier), size, clients, steps)
    return recast(algorithm, _private_class(type(algorithm), sums))  # type: ignore[arg-type]  # a class is hashable


def remembers(algorithm: Algorithm) -> bool:
    """Return whether what clients upload may depend on the rounds in which they took part before."""
    methods = (v for kind in type(algorithm).__mro__ for v in vars(kind).values() if hasattr(v, "__code__"))
    return len(algorithm.client_state) > 0 or any("last" in method.__code__.co_names for method in methods)


def _check_rules(algorithm: Algorithm, steps: int | None) -> None:
    owner = type(algorithm).__name__
    for name, (_, rule) in (*algorithm.reduce.items(), *algorithm.prepare_reduce.items()):
        if rule == "each":
            raise ValueError(
                f"Cannot use privacy= with {owner} because its server needs the uploads {name!r} of single clients, "
                "and only sums can be made private; use a method that declares sums"
            )
        if rule == "avg/K" and steps is None:
            raise ValueError(
                f"Cannot use privacy= with {owner} and local_epochs because its sum {name!r} divides by K_i, which "
                "depends on a client's data; use local_steps"
            )


def _groups(algorithm: Algorithm, privacy: Gaussian) -> tuple[Group, ...]:
    """Return the groups of uploads that are clipped together."""
    uploads = {"train": _names(algorithm.up), "prepare": _names(algorithm.prepare_up)}
    if not isinstance(privacy.clip, Mapping):
        return tuple(Group(phase, names, float(privacy.clip)) for phase, names in uploads.items() if names)
    owner, known = type(algorithm).__name__, (*uploads["train"], *uploads["prepare"])
    for name in privacy.clip:
        if name not in known:
            got = f"{name!r}{suggest(name, known)}"
            raise ValueError(f"Gaussian: 'clip' must name uploads of {owner} ({', '.join(known)}), got {got}")
    for name in known:
        if name not in privacy.clip:
            raise ValueError(f"Gaussian: 'clip' must have a bound for each upload of {owner}, got none for {name!r}")
    return tuple(Group(phase, (name,), privacy.clip[name]) for phase, names in uploads.items() for name in names)


def _names(declared: Sequence[Field]) -> tuple[str, ...]:
    return tuple(field if isinstance(field, str) else field[0] for field in declared)


@cache
def _private_class(kind: type[Algorithm], sums: PrivateSums) -> type[Algorithm]:
    """Return a subclass of `kind` with this mechanism: one for all runs that have it, so that runs can merge."""
    return subclass(kind, _Private, _privacy_sums=sums, _privacy_base=kind)


class _Private(Algorithm):
    """The methods and declarations in which a private algorithm differs from the algorithm alone."""

    _privacy_sums: ClassVar[PrivateSums]
    _privacy_base: ClassVar[type[Algorithm]]
    """The class of the algorithm alone."""

    steps_without_updates = True  # that nobody took part must stay unknown

    @property
    def reduce(self) -> Reduce:
        return {upload: (upload, "sum") for upload, _ in self._privacy_alone().reduce.values()}

    @property
    def prepare_reduce(self) -> Reduce:
        return {name: (upload, "sum") for name, (upload, _) in self._privacy_alone().prepare_reduce.items()}

    def prepare(self, c: ClientContext, grad: Gradient) -> Vectors:
        uploads = super().prepare(c, grad)
        return self._privacy_clip("prepare", uploads, c) if isinstance(uploads, dict) else uploads

    def finish(self, y: Tensor, s: Vectors, c: ClientContext, grad: Gradient) -> tuple[Vectors, Vectors]:
        finished: Any = super().finish(y, s, c, grad)
        if not _is_pair(finished):
            return finished  # type: ignore[no-any-return]  # the engine refuses it
        uploads, own = finished
        clipped = self._privacy_clip("train", uploads, c)
        if type(self).delivered is Algorithm.delivered or any(not isinstance(v, Tensor) for v in clipped.values()):
            return clipped, own
        # The client's state follows what the server gets. Numbers are computed again, so the norm is bounded again.
        delivered = self.delivered(clipped, own, c)
        if not _is_pair(delivered):
            return delivered
        return self._privacy_clip("train", delivered[0], c), own | delivered[1]

    def broadcast(self, x: Tensor, state: Vectors, ctx: Context) -> Vectors:
        return super().broadcast(x, self._privacy_state(state, ctx), ctx)

    def server(self, x: Tensor, state: Vectors, agg: Vectors, ctx: Context) -> tuple[Tensor, Vectors]:
        state = self._privacy_state(state, ctx)
        rules = self._privacy_alone().reduce
        noisy = {upload: self._privacy_noisy("train", upload, v, ctx) for upload, v in agg.items()}
        sums = {name: self._privacy_sums.factor(rule) * noisy[upload] for name, (upload, rule) in rules.items()}
        returned: Any = super().server(x, state, _replaced(agg, sums), ctx)
        if not (isinstance(returned, tuple) and len(returned) == 2 and isinstance(returned[1], dict)):
            return returned  # type: ignore[no-any-return]  # the engine refuses it
        kept = {name: state[name] for name in self.prepare_reduce} if self.prepares(ctx.t) else {}
        return returned[0], kept | returned[1]

    def _privacy_clip(self, phase: str, uploads: Vectors, c: ClientContext) -> Vectors:
        """Scale the uploads of each client down to the bounds of their groups."""
        axes = _axes(self.up if phase == "train" else self.prepare_up)
        if not set(axes) <= set(uploads):
            return uploads  # the engine refuses it
        clipped: Vectors = dict(uploads)
        for group in self._privacy_sums.groups:
            if group.phase == phase:
                vectors = {name: self._privacy_rows(name, uploads[name], axes[name], c) for name in group.names}
                clipped |= _scaled_down(vectors, group.bound, c.K)
        return clipped

    def _privacy_rows(self, name: str, v: Any, axes: int, c: ClientContext) -> Tensor:
        """Return an upload with a row for each client."""
        clients = c.K.shape[:-1]
        if isinstance(v, Tensor) and v.ndim == axes:  # one for all clients
            return v.expand(*clients, *v.shape).to(c.K.dtype)
        if isinstance(v, Tensor) and v.ndim == axes + 1 and v.shape[0] in (1, *clients):
            return v.expand(*clients, *v.shape[1:]).to(c.K.dtype) if clients else v[0].to(c.K.dtype)
        raise ValueError(f"{type(self).__name__}: the upload {name!r} must be a tensor with a row for each client")

    def _privacy_state(self, state: Vectors, ctx: Context) -> Vectors:
        """Return the server state with noise on the sums of the extra phase. The noise is the same in every call."""
        if not self.prepares(ctx.t):
            return state
        private, noisy = self._privacy_sums, dict(state)
        for name, (upload, rule) in self._privacy_alone().prepare_reduce.items():
            noisy[name] = private.factor(rule) * self._privacy_noisy("prepare", upload, state[name], ctx)
        return _replaced(state, noisy)

    def _privacy_noisy(self, phase: str, upload: str, total: Tensor, ctx: Context) -> Tensor:
        """Return a sum of uploads with its noise."""
        groups = self._privacy_sums.in_round(self.prepares(ctx.t))
        bound = next(group.bound for group in groups if group.phase == phase and upload in group.names)
        deviation = self._privacy_sums.noise_multiplier * math.sqrt(len(groups)) * bound
        if deviation == 0:
            return total
        noise = rng.normal(noise_key(ctx.key, phase, upload), total.numel()).view(total.shape)
        return total + (deviation * noise).to(total)

    def _privacy_alone(self) -> Algorithm:
        """Return the algorithm alone. Its declarations may depend on each other."""
        return recast(self, self._privacy_base)


def noise_key(key: Tensor, phase: str, upload: str) -> Tensor:
    """Return the stream of the noise on a sum.

    Args:
        key: The server's stream in this round.
        phase: The phase of the upload.
        upload: The name of the upload.
    """
    number = int.from_bytes(hashlib.sha256(f"privacy/{phase}/{upload}".encode()).digest()[:7], "little")
    return rng.fold(key, number)


def _scaled_down(vectors: Vectors, bound: float, like: Tensor) -> Vectors:
    """Scale vectors with a row for each client so that their joint norm is at most `bound`."""
    first = like.ndim - 1
    norms = [torch.linalg.vector_norm(v.flatten(first), dim=-1) for v in vectors.values()]
    norm: Tensor = norms[0] if len(norms) == 1 else torch.linalg.vector_norm(torch.stack(norms), dim=0)
    factor = (bound / norm).clamp(max=1)
    return {name: v * factor.view(*factor.shape, *[1] * (v.ndim - first)) for name, v in vectors.items()}


def _axes(declared: Sequence[Field]) -> dict[str, int]:
    """Return the number of axes of each upload of one client. A number is a column."""
    return {
        name: max(1, len(shape)) if isinstance(shape, tuple) else 1
        for name, shape in ((field, "D") if isinstance(field, str) else field for field in declared)
    }


def _replaced(vectors: Vectors, by: Vectors) -> Vectors:
    """Return a dictionary of the same kind with other tensors; the engine's names unknown tensors in errors."""
    other = copy.copy(vectors)
    other.clear()
    other.update(by)
    return other


def _is_pair(v: Any) -> bool:
    return isinstance(v, tuple) and len(v) == 2 and all(isinstance(part, dict) for part in v)
