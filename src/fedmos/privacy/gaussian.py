"""Independent noise on the sums of every round."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from ..core.validation import boolean, check, one_of
from .mechanism import Mechanism


@dataclass(frozen=True)
class Gaussian(Mechanism):
    """The Gaussian mechanism on the sums of clients' uploads: (ε, δ)-differential privacy of each client.

    The uploads of a client in a round are scaled down to norm `clip`. Each sum of uploads gets noise of standard
    deviation `noise_multiplier` times the most by which one client can change it. All clients of a cohort have the
    weight 1/(expected size of a cohort). See docs/privacy.md.

    Args:
        clip: The bound of the norm of all uploads of a client as one vector; or a bound for each upload by name, e.g.
            `{"delta": 1.0, "change": 0.1}`, between which the privacy budget is split equally.
        noise_multiplier: The standard deviation of the noise, relative to the sensitivity. 0 adds no noise; ε is then
            infinite.
        delta: The δ at which ε is computed; less than 1/(number of clients).
        budget: The largest ε. The run ends before the round that would exceed it. None for no limit.
        adaptive: Whether the bound follows the median norm of the updates (Andrew et al., 2021), from `clip` on. The
            noise on the share of clipped clients is a part of `noise_multiplier`, and ε stays the same.
        accountant: How ε is computed: "rdp" composes Rényi divergences; "pld" composes privacy loss distributions,
            whose ε is smaller, for all selectors but those that draw cohorts of a fixed size (`Uniform`).

    Raises:
        ValueError: If a value is out of range.

    Example:
        >>> fm.privacy.Gaussian(clip=1.0, noise_multiplier=1.0, delta=1e-5, budget=8.0).budget
        8.0

        >>> result = fm.run(
        ...     model, data, fm.FedAvg(lr=0.1), fm.Bernoulli(rate=0.3), rounds=2, local_steps=2, batch_size=8,
        ...     privacy=fm.privacy.Gaussian(clip=1.0, noise_multiplier=2.0, delta=1e-3, accountant="pld"),
        ... )
        >>> [round(record.epsilon, 2) for record in result.history]  # 0.66 and 0.87 with "rdp"
        [0.49, 0.68]
    """

    adaptive: bool = False
    accountant: Literal["rdp", "pld"] = field(default="rdp", metadata={"added": True})

    def __post_init__(self) -> None:
        super().__post_init__()
        check(self, adaptive=boolean, accountant=one_of("rdp", "pld"))
        if self.adaptive and isinstance(self.clip, Mapping):
            raise ValueError("Gaussian: 'clip' must be a number where 'adaptive' is true, got bounds by name")
