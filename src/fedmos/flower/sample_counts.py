"""The numbers of samples that clients claim, which determine their weight: agreed by the operator, or bounded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .wire import RefusedError

_FEWEST = 3
"""The number of clients from which on a claim is compared with the others'."""


class SampleCounts:
    """The rules for claimed numbers of samples.

    Args:
        agreed: The number of samples of clients, by name, that the operator has agreed to.
        most: The largest number that is accepted without agreement.
        factor: How many times the median of all numbers one may be without agreement.
    """

    def __init__(self, agreed: Mapping[str, int] | None = None, most: int = 10**7, factor: float = 100.0) -> None:
        self.agreed, self._most, self._factor = dict(agreed or {}), most, factor

    def check(self, name: str, claimed: int, known: int | None) -> None:
        """Check what a client claims when it connects.

        Args:
            name: The client.
            claimed: The number of samples that it claims.
            known: Its number of samples in the run, if the run has begun or the client was connected before.

        Raises:
            RefusedError: If the claim is not accepted.
        """
        agreed = self.agreed.get(name)
        if claimed < 1:
            raise RefusedError(f"client '{name}' cannot have {claimed} samples")
        if known is not None:
            check_unchanged(name, claimed, known)
        if agreed is not None and claimed != agreed:
            raise RefusedError(
                f"client '{name}' has {claimed} samples, and {agreed} are agreed in [deploy] samples; it is left out "
                "until both are equal"
            )
        if agreed is None and known is None and claimed > self._most:
            raise RefusedError(
                f"client '{name}' claims {claimed} samples, more than [deploy] max_samples = {self._most}; if that is "
                f"right, agree to it: samples = {{ {name} = {claimed} }}"
            )

    def check_all(self, names: Sequence[str], counts: Sequence[int]) -> None:
        """Check the numbers of all clients before the first round, in proportion to each other.

        Raises:
            ValueError: If one is out of proportion and not agreed.
        """
        median = sorted(counts)[(len(counts) - 1) // 2]
        for name, claimed in zip(names, counts, strict=True):
            if len(counts) >= _FEWEST and claimed > self._factor * median and name not in self.agreed:
                raise ValueError(
                    f"Cannot start because client '{name}' claims {claimed} samples, more than {self._factor:g} times "
                    f"the median of all clients, {median}, and would have most of the weight; agree to it in [deploy] "
                    f"samples = {{ {name} = {claimed} }}, or leave the client out"
                )


def check_unchanged(name: str, claimed: int, known: int) -> None:
    """Refuse a message of a client whose number of samples is not that of the run."""
    if claimed != known:
        raise RefusedError(
            f"client '{name}' has {claimed} samples now instead of {known}, the number in this run: its data has "
            "changed; it is left out until the operator accepts the new number "
            f"(fedmos deploy samples {name} {claimed})"
        )
