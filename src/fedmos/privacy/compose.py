"""Composition of an algorithm with the Gaussian mechanism: clients clip what they upload, the server adds noise.

The engine sums the clipped uploads as they are, Σ_S u_i. The server adds noise to each of these sums once and computes
all sums that the algorithm declares from the result, with constant factors in place of the weights: 1/(expected size of
a cohort), or 1/N for importances.

Uploads are divided into groups, each clipped to a bound of its own: one group per phase, or one per upload. In a round
with k groups the noise of a group is z · √k times its bound. The uploads of a client, each group divided by its bound,
have a norm of √k at most, so the noise is z times the most that a client contributes.
"""

from __future__ import annotations

import math
from functools import cache

import torch

from ..algorithm import Algorithm, Vectors
from ..core.composition import recast, subclass
from .clipping import norm
from .mechanism import Mechanism
from .noise import Noise
from .noisy_sums import AdaptiveSums, CorrelatedSums, NoisySums, OtherNoise
from .reads import reads_attribute
from .sums import BELOW, PrivateSums, private_sums

_ROUNDING = 1e-4
"""By how much the norm of a clipped upload may be over its bound, which is computed with rounding, maybe on a GPU."""


def with_privacy(
    algorithm: Algorithm, privacy: Mechanism | None, *, size: float, clients: int, steps: int | None
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
    sums = private_sums(algorithm, privacy, size=size, clients=clients, steps=steps)
    return recast(algorithm, _private_class(type(algorithm), sums))  # type: ignore[arg-type]  # a class is hashable


def is_stateful(algorithm: Algorithm) -> bool:
    """Return whether what clients upload may depend on the rounds in which they took part before."""
    return len(algorithm.client_state) > 0 or reads_attribute(type(algorithm), "last")


def clipping_bounds(algorithm: Algorithm) -> dict[str, float] | None:
    """Return the bound of each upload of a private algorithm; None where bounds are adaptive."""
    sums = algorithm._privacy_sums if isinstance(algorithm, NoisySums) else None
    if sums is None or sums.count_multiplier is not None:
        return None
    return {name: group.bound for group in sums.groups for name in group.names}


def with_noise(algorithm: Algorithm, noise: Noise) -> Algorithm:
    """Return a private algorithm that takes its noise from elsewhere than from the run's seed."""
    return recast(algorithm, subclass(type(algorithm), OtherNoise, _privacy_noise=noise))


def is_private(algorithm: Algorithm) -> bool:
    """Return whether an algorithm is the result of `with_privacy`."""
    return isinstance(algorithm, NoisySums)


def clip_decoded(algorithm: Algorithm, phase: str, uploads: Vectors, msg: Vectors) -> Vectors:
    """Return one client's uploads as it clips them in a simulation, where the server decodes them.

    Args:
        algorithm: A private algorithm.
        phase: The phase of the uploads.
        uploads: The uploads of one client, by name.
        msg: The message that the client received, which has the bound if it is adaptive.
    """
    assert isinstance(algorithm, NoisySums)
    clipped = dict(uploads)
    for group in algorithm._privacy_sums.groups:
        if group.phase == phase and group.names != (BELOW,):
            vectors = {name: uploads[name] for name in group.names}
            factor = (algorithm._privacy_bound_in(group, msg) / norm(vectors, torch.ones(1))).clamp(max=1)
            clipped |= {name: v * factor for name, v in vectors.items()}
    return clipped


def follows_deliveries(algorithm: Algorithm) -> bool:
    """Return whether the state of clients depends on what the server gets of their uploads."""
    return isinstance(algorithm, NoisySums) and algorithm._privacy_base.delivered is not Algorithm.delivered


def exceeded_bound(algorithm: Algorithm, phase: str, uploads: Vectors, msg: Vectors) -> tuple[float, float] | None:
    """Return the norm of one client's uploads and their bound, if an honest client cannot have sent them.

    Args:
        algorithm: A private algorithm.
        phase: The phase of the uploads.
        uploads: The uploads of one client, by name.
        msg: The message that the client received, which has the bound if it is adaptive.
    """
    assert isinstance(algorithm, NoisySums)
    for group in algorithm._privacy_sums.groups:
        if group.phase == phase:
            length = math.sqrt(sum(float(uploads[name].double().square().sum()) for name in group.names))
            bound = float(algorithm._privacy_bound_in(group, msg))
            if length > (1 + _ROUNDING) * bound:
                return length, bound
    return None


@cache
def _private_class(kind: type[Algorithm], sums: PrivateSums) -> type[Algorithm]:
    """Return a subclass of `kind` with this mechanism: one for all runs that have it, so that runs can merge."""
    mixin = AdaptiveSums if sums.count_multiplier is not None else CorrelatedSums if sums.bands > 1 else NoisySums
    return subclass(kind, mixin, _privacy_sums=sums, _privacy_base=kind)
