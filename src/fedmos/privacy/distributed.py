"""Composition of an algorithm with distributed noise: clients round their uploads to a grid and add integer noise.

Uploads are numbers on the grid, so that secure aggregation adds their integers exactly. The server adds no noise. In a
run with k groups of uploads, of both phases, the noise of a group is z · √k times its bound.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from ..algorithm import Algorithm, ClientContext, Context, Field, Gradient, Vectors
from ..core.composition import is_pair_of_dicts, recast, subclass
from ..core.declared_fields import name_and_shape
from .client_noise import NoisyAtClients
from .clipping import norm
from .discrete import DiscreteGaussian, Grid, concentrated_loss, discrete_gaussian, rounded
from .noise import noise_key
from .noisy_sums import NoisySums
from .sums import PrivateSums, private_sums


class DistributedSums(NamedTuple):
    """The numbers of distributed noise for one run."""

    grids: tuple[Grid, ...]
    """The grid of each group of uploads."""
    clients: int
    """The largest cohort."""
    least: int
    """The least number of clients whose uploads are summed."""

    @property
    def loss(self) -> float:
        """The ρ of zero-concentrated privacy that one round costs a client."""
        return concentrated_loss(self.grids, self.clients, self.least)


def distributed_sums(
    sums: PrivateSums, sizes: Sequence[int], *, bits: int, clients: int, least: int
) -> DistributedSums:
    """Return the numbers of distributed noise.

    Args:
        sums: The groups of uploads and their noise.
        sizes: How many numbers each group has.
        bits: The bits of the ring.
        clients: The largest cohort.
        least: The least number of clients whose uploads are summed.
    """
    z = sums.noise_multiplier * math.sqrt(len(sums.groups))
    grids = [
        Grid.of(group.bound, z * group.bound, size, bits=bits, clients=clients, least=least)
        for group, size in zip(sums.groups, sizes, strict=True)
    ]
    return DistributedSums(tuple(grids), clients, least)


def with_distributed_noise(
    algorithm: Algorithm,
    privacy: DiscreteGaussian,
    *,
    parameters: int,
    layers: int,
    size: float,
    clients: int,
    steps: int | None,
    bits: int,
    least: int,
) -> Algorithm:
    """Return the algorithm with clipped, rounded and noisy uploads, and sums with constant factors.

    Args:
        algorithm: The algorithm, composed with everything else.
        privacy: The mechanism.
        parameters: The number of parameters of the model.
        layers: The number of its parameter tensors.
        size: The largest cohort, by which sums are divided.
        clients: The number of clients of the federation.
        steps: The number of local steps, if it is the same for all clients.
        bits: The bits of the ring.
        least: The least number of clients whose uploads are summed.

    Raises:
        ValueError: If the algorithm cannot be made private, or there are too few bits for the noise.
    """
    sums = private_sums(algorithm, privacy, size=size, clients=clients, steps=steps)
    shapes = {"train": _sizes(algorithm.up, parameters, layers)}
    shapes["prepare"] = _sizes(algorithm.prepare_up, parameters, layers)
    sizes = [sum(shapes[group.phase][name] for name in group.names) for group in sums.groups]
    noise = distributed_sums(sums, sizes, bits=bits, clients=round(size), least=least)
    return recast(algorithm, _distributed_class(type(algorithm), sums, noise))  # type: ignore[arg-type]


def distributed_noise(algorithm: Algorithm) -> DistributedSums | None:
    """Return the numbers of distributed noise of an algorithm; None if it has none."""
    return algorithm._privacy_distributed if isinstance(algorithm, _Distributed) else None


def grid_steps(algorithm: Algorithm) -> dict[str, float]:
    """Return by upload the step of its integers, where clients round them; empty for other algorithms."""
    noise = distributed_noise(algorithm)
    if noise is None:
        return {}
    groups = algorithm._privacy_sums.groups  # type: ignore[attr-defined]
    return {name: grid.step for group, grid in zip(groups, noise.grids, strict=True) for name in group.names}


@cache
def _distributed_class(kind: type[Algorithm], sums: PrivateSums, noise: DistributedSums) -> type[Algorithm]:
    """Return a subclass of `kind` with this mechanism: one for all runs that have it, so that runs can merge."""
    return subclass(kind, _Distributed, _privacy_sums=sums, _privacy_base=kind, _privacy_distributed=noise)


class _Distributed(NoisySums, NoisyAtClients):
    """An algorithm whose clients add the noise of the sums."""

    _privacy_distributed: ClassVar[DistributedSums]

    steps_without_updates = False  # without enough clients, there is not enough noise

    def prepare(self, c: ClientContext, grad: Gradient) -> Vectors:
        uploads = super().prepare(c, grad)
        return self._privacy_integers("prepare", uploads, c) if isinstance(uploads, dict) else uploads

    def finish(self, y: Tensor, s: Vectors, c: ClientContext, grad: Gradient) -> tuple[Vectors, Vectors]:
        finished = super().finish(y, s, c, grad)
        if not is_pair_of_dicts(finished):
            return finished
        return self._privacy_integers("train", finished[0], c), finished[1]

    def _privacy_noisy(self, phase: str, upload: str, total: Tensor, state: Vectors, ctx: Context) -> Tensor:
        return total  # with the noise of the clients

    def _privacy_integers(self, phase: str, uploads: Vectors, c: ClientContext) -> Vectors:
        """Return the uploads on the grid, with the noise of each client."""
        grids = dict(zip(self._privacy_sums.groups, self._privacy_distributed.grids, strict=True))
        found = dict(uploads)
        for group, vectors in self._privacy_vectors(phase, uploads, c):
            grid, integers = grids[group], {}
            scaled = {name: v.double().flatten(c.K.ndim - 1) / grid.step for name, v in vectors.items()}
            for name, v in scaled.items():
                integers[name] = rounded(v, noise_key(c.key, f"{phase}/rounding", name))
            long = (norm(integers, c.K) > grid.largest).unsqueeze(-1)
            for name, v in scaled.items():
                units = torch.where(long, v.trunc(), integers[name])
                if grid.scale > 0:
                    words = self._privacy_client_noise.words(c.key, phase, name, v.shape[-1])
                    units = units + discrete_gaussian(words, grid.scale)
                found[name] = (grid.step * units).view(vectors[name].shape).to(vectors[name])
        return found


def _sizes(declared: Sequence[Field], parameters: int, layers: int) -> dict[str, int]:
    """Return how many numbers each upload has."""
    return {
        name: layers if shape == "layers" else math.prod(parameters if n == "D" else int(n) for n in shape)
        for name, shape in map(name_and_shape, declared)
    }
