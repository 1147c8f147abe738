"""The groups of uploads that are clipped together, and their share of the noise."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ..algorithm import Algorithm
from ..core.declared_fields import names_of
from ..core.validation import suggest
from .gaussian import Gaussian
from .matrix_factorization import MatrixFactorization
from .mechanism import Mechanism

BOUND = "privacy.clip"
"""The name of an adaptive bound, which is server state and is sent to clients."""
BELOW = "privacy.below"
"""The name of the upload of ½ for an update within the adaptive bound and −½ for one that is clipped."""
NOISE = "privacy.noise."
"""The names of the stored noise of correlated sums, which is server state, begin with this."""


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
    count_multiplier: float | None = None
    """z_b, where the bound is adaptive."""
    bands: int = 1
    """The number of coefficients of correlated noise; 1 for independent noise."""

    def multiplier(self, group: Group, groups: Sequence[Group]) -> float:
        """Return the noise multiplier of one of the groups of a round; the sum of their z⁻² is that of the round."""
        z, z_b = self.noise_multiplier, self.count_multiplier
        if z == 0 or z_b is None:
            return z * math.sqrt(len(groups))
        return z_b if group.names == (BELOW,) else (z**-2 - z_b**-2) ** -0.5

    def in_round(self, prepares: bool) -> list[Group]:
        """Return the groups that share the noise of a round: those that are uploaded, with the extra phase or not.

        Correlated noise has the same size in all rounds, so all groups share it.
        """
        return [group for group in self.groups if prepares or self.bands > 1 or group.phase == "train"]

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


def private_sums(
    algorithm: Algorithm, privacy: Mechanism, *, size: float, clients: int, steps: int | None
) -> PrivateSums:
    """Return the numbers of the mechanism for an algorithm; see `fedmos.privacy.compose.with_privacy`."""
    _check_rules(algorithm, steps)
    sums = PrivateSums(upload_groups(algorithm, privacy), float(privacy.noise_multiplier), size, clients, steps)
    if isinstance(privacy, MatrixFactorization) and privacy.noise_multiplier > 0:
        return sums._replace(bands=privacy.bands)
    if not isinstance(privacy, Gaussian) or not privacy.adaptive:
        return sums
    if algorithm.prepare_up:
        raise ValueError(
            f"Cannot clip adaptively with {type(algorithm).__name__} because in its extra phase clients do not know "
            "the bound yet; use adaptive=False"
        )
    count = Group("train", (BELOW,), 0.5)
    return sums._replace(groups=(*sums.groups, count), count_multiplier=max(size / 10, 3 * sums.noise_multiplier))


def check_uploads(algorithm: Algorithm) -> None:
    """Refuse an algorithm whose clients upload nothing."""
    if not algorithm.up and not algorithm.prepare_up:
        owner = type(algorithm).__name__
        raise ValueError(f"Cannot use privacy= with {owner} because its clients send nothing; leave privacy= out")


def _check_rules(algorithm: Algorithm, steps: int | None) -> None:
    check_uploads(algorithm)
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


def upload_groups(algorithm: Algorithm, privacy: Mechanism) -> tuple[Group, ...]:
    """Return the groups of uploads that are clipped together."""
    uploads = {"train": tuple(names_of(algorithm.up)), "prepare": tuple(names_of(algorithm.prepare_up))}
    if not isinstance(privacy.clip, Mapping):
        return tuple(Group(phase, names, float(privacy.clip)) for phase, names in uploads.items() if names)
    mechanism = type(privacy).__name__
    owner, known = type(algorithm).__name__, (*uploads["train"], *uploads["prepare"])
    for name in privacy.clip:
        if name not in known:
            got = f"{name!r}{suggest(name, known)}"
            raise ValueError(f"{mechanism}: 'clip' must name uploads of {owner} ({', '.join(known)}), got {got}")
    for name in known:
        if name not in privacy.clip:
            raise ValueError(f"{mechanism}: 'clip' must have a bound for each upload of {owner}, got none for {name!r}")
    return tuple(Group(phase, (name,), privacy.clip[name]) for phase, names in uploads.items() for name in names)
