"""Algorithms with noisy sums: clients clip what they upload, and the server adds noise to the sums.

With adaptive clipping (Andrew et al., NeurIPS 2021), clients also upload whether their update is within the bound. The
noisy share of those who are moves the bound towards the median: C ← C exp(−0.2 (share − 0.5)). With noise z_b on the
count, the noise of the updates is (z⁻² − z_b⁻²)^(−1/2), so that both together have z.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from ..algorithm import ClientContext, Context, Field, Reduce, Vectors
from ..core.composition import is_pair
from .clipping import Clipped, norm
from .matrix_factorization import next_noise, stored_shapes
from .noise import Noise, SeededNoise, add_noise
from .sums import BELOW, BOUND, NOISE, Group

_ADAPTATION = 0.2
"""The step size of the logarithm of the bound."""


class NoisySums(Clipped):
    """The methods and declarations in which an algorithm with noisy sums differs from the algorithm alone."""

    _privacy_noise: ClassVar[Noise] = SeededNoise()

    steps_without_updates = True  # that no client took part must stay unknown

    @property
    def reduce(self) -> Reduce:
        return {upload: (upload, "sum") for upload, _ in self._privacy_alone().reduce.values()}

    @property
    def prepare_reduce(self) -> Reduce:
        return {name: (upload, "sum") for name, (upload, _) in self._privacy_alone().prepare_reduce.items()}

    def broadcast(self, x: Tensor, state: Vectors, ctx: Context) -> Vectors:
        return super().broadcast(x, self._privacy_state(state, ctx), ctx)

    def server(self, x: Tensor, state: Vectors, agg: Vectors, ctx: Context) -> tuple[Tensor, Vectors]:
        state = self._privacy_state(state, ctx)
        rules = self._privacy_alone().reduce
        noisy = {upload: self._privacy_noisy("train", upload, v, state, ctx) for upload, v in agg.items()}
        sums = {name: self._privacy_sums.factor(rule) * noisy[upload] for name, (upload, rule) in rules.items()}
        returned: Any = super().server(x, state, _replaced(agg, sums), ctx)
        if not is_pair(returned):
            return returned  # type: ignore[no-any-return]  # the engine refuses it
        kept = {name: state[name] for name in self.prepare_reduce} if self.prepares(ctx.t) else {}
        return returned[0], kept | returned[1]

    def _privacy_state(self, state: Vectors, ctx: Context) -> Vectors:
        """Return the server state with noise on the sums of the extra phase. The noise is the same in every call."""
        if not self.prepares(ctx.t):
            return state
        private, noisy = self._privacy_sums, dict(state)
        for name, (upload, rule) in self._privacy_alone().prepare_reduce.items():
            noisy[name] = private.factor(rule) * self._privacy_noisy("prepare", upload, state[name], state, ctx)
        return _replaced(state, noisy)

    def _privacy_noisy(self, phase: str, upload: str, total: Tensor, state: Vectors, ctx: Context) -> Tensor:
        """Return a sum of uploads with its noise."""
        groups = self._privacy_sums.in_round(self.prepares(ctx.t))
        group = next(one for one in groups if one.phase == phase and upload in one.names)
        if (multiplier := self._privacy_sums.multiplier(group, groups)) == 0:
            return total
        std = multiplier * self._privacy_bound_in(group, state)
        return add_noise(self._privacy_noise, total, std, ctx, phase, upload)

    def _privacy_bound_in(self, group: Group, state: Vectors) -> Tensor | float:
        """Return the bound of a group at the server."""
        return group.bound


class OtherNoise(NoisySums):
    """A private algorithm with a source of noise of its own; see `with_noise`."""


class AdaptiveSums(NoisySums):
    """A private algorithm whose bound follows the median norm of the updates."""

    @property
    def server_state(self) -> Sequence[Field]:
        return (*self._privacy_alone().server_state, (BOUND, ()))

    @property
    def down(self) -> Sequence[Field]:
        return (*self._privacy_alone().down, BOUND)

    @property
    def up(self) -> Sequence[Field]:
        return (*self._privacy_alone().up, (BELOW, ()))

    @property
    def reduce(self) -> Reduce:
        return {**super().reduce, BELOW: (BELOW, "sum")}

    def init(self, x: Tensor) -> Vectors:
        return self._privacy_alone().init(x) | {BOUND: x.new_full((), self._privacy_sums.groups[0].bound)}

    def broadcast(self, x: Tensor, state: Vectors, ctx: Context) -> Vectors:
        return self._privacy_alone().broadcast(x, state, ctx) | {BOUND: state[BOUND]}

    def server(self, x: Tensor, state: Vectors, agg: Vectors, ctx: Context) -> tuple[Tensor, Vectors]:
        within = self._privacy_noisy("train", BELOW, agg[BELOW], state, ctx) / self._privacy_sums.size
        bound = state[BOUND] * torch.exp(-_ADAPTATION * within)  # share − 0.5, since ±0.5 is uploaded
        x, new = super().server(x, state, _replaced(agg, {n: v for n, v in agg.items() if n != BELOW}), ctx)
        return x, new | {BOUND: bound} if isinstance(new, dict) else new

    def _privacy_more(self, uploads: Vectors, c: ClientContext) -> Vectors:
        for _, vectors in self._privacy_vectors("train", uploads, c):
            within = norm(vectors, c.K).unsqueeze(-1) <= c.msg[BOUND]
            return {BELOW: within.to(c.K.dtype) - 0.5}
        return {}

    def _privacy_bound(self, group: Group, c: ClientContext) -> Tensor | float:
        return c.msg[BOUND].squeeze(-1)

    def _privacy_bound_in(self, group: Group, state: Vectors) -> Tensor | float:
        return group.bound if group.names == (BELOW,) else state[BOUND]


class CorrelatedSums(NoisySums):
    """A private algorithm whose noise is correlated over rounds: row t of W = C⁻¹ Z; see `next_noise`.

    The server stores the last rows of W for each upload.
    """

    @property
    def server_state(self) -> Sequence[Field]:
        alone, rows = self._privacy_alone(), self._privacy_sums.bands - 1
        kept: list[Field] = []
        for phase, declared in (("train", alone.up), ("prepare", alone.prepare_up)):
            shapes = stored_shapes(type(self).__name__, declared, rows)
            kept += [(_stored(phase, name), shape) for name, shape in shapes.items()]
        return (*alone.server_state, *kept)

    def server(self, x: Tensor, state: Vectors, agg: Vectors, ctx: Context) -> tuple[Tensor, Vectors]:
        now = self._privacy_rows_now(state, ctx)
        returned = super().server(x, _replaced(state, {**state, **_renamed(now, _NOW)}), agg, ctx)
        if not is_pair(returned):
            return returned
        return returned[0], returned[1] | self._privacy_advanced(state, now)

    def idle(self, x: Tensor, state: Vectors, ctx: Context) -> Vectors:
        now = self._privacy_rows_now(state, ctx)
        return super().idle(x, state, ctx) | self._privacy_advanced(state, now)

    def _privacy_noisy(self, phase: str, upload: str, total: Tensor, state: Vectors, ctx: Context) -> Tensor:
        groups, name = self._privacy_sums.groups, _stored(phase, upload)
        group = next(one for one in groups if one.phase == phase and upload in one.names)
        std = self._privacy_sums.multiplier(group, groups) * group.bound

        def noisy() -> Tensor:
            noise = state[_NOW + name] if _NOW + name in state else self._privacy_row(phase, upload, state, ctx)
            return total + std * noise.view(total.shape).to(total)

        return self._privacy_noise.once(noisy, ctx, phase, upload).to(total.device)

    def _privacy_row(self, phase: str, upload: str, state: Vectors, ctx: Context) -> Tensor:
        """Return the noise on a sum in this round, with Z of variance one."""
        before, source = state[_stored(phase, upload)], self._privacy_noise
        Z = source.once(lambda: source.normal(before[0].numel(), ctx, phase, upload), ctx, f"Z {phase}", upload)
        return next_noise(before, Z.to(before.device))

    def _privacy_rows_now(self, state: Vectors, ctx: Context) -> Vectors:
        """Return the noise of this round on all sums, whether they are released in it or not."""
        sums = [(group.phase, upload) for group in self._privacy_sums.groups for upload in group.names]
        return {_stored(phase, upload): self._privacy_row(phase, upload, state, ctx) for phase, upload in sums}

    def _privacy_advanced(self, state: Vectors, now: Vectors) -> Vectors:
        """Return the stored rows after this round, newest first."""
        return {name: torch.cat([row[None], state[name][:-1]]) for name, row in now.items()}


_NOW = "now."
"""The names of the noise of this round, which the server computes once, begin with this."""


def _stored(phase: str, upload: str) -> str:
    """Return the name of the stored noise on a sum."""
    return f"{NOISE}{upload}" if phase == "train" else f"{NOISE}{phase}.{upload}"


def _renamed(vectors: Vectors, prefix: str) -> Vectors:
    return {prefix + name: v for name, v in vectors.items()}


def _replaced(vectors: Vectors, by: Vectors) -> Vectors:
    """Return a dictionary of the same kind with other tensors; the engine's names unknown tensors in errors."""
    other = copy.copy(vectors)
    other.clear()
    other.update(by)
    return other
