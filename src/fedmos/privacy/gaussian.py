"""The option `privacy`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..core.formatting import format_value
from ..core.validation import LARGE, Rule, boolean, check, non_negative, none, positive, require

_probability = Rule("in (0, 1)", lambda v: positive.test(v) and v < 1)


@dataclass(frozen=True)
class Gaussian:
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

    Raises:
        ValueError: If a value is out of range.

    Example:
        >>> fm.privacy.Gaussian(clip=1.0, noise_multiplier=1.0, delta=1e-5, budget=8.0).budget
        8.0
    """

    clip: float | Mapping[str, float]
    noise_multiplier: float
    delta: float
    budget: float | None = None
    adaptive: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "clip", _bounds(self.clip))
        check(
            self,
            noise_multiplier=non_negative.up_to(LARGE),
            delta=_probability,
            budget=positive | none,
            adaptive=boolean,
        )
        if self.adaptive and isinstance(self.clip, Mapping):
            raise ValueError("Gaussian: 'clip' must be a number where 'adaptive' is true, got bounds by name")


def _bounds(clip: Any) -> Any:
    """Return the validated option `clip`."""
    if not isinstance(clip, Mapping):
        require("Gaussian", "clip", clip, Rule("> 0, or bounds > 0 by upload", positive.test, LARGE))
        return clip
    if not clip or not all(isinstance(name, str) for name in clip):
        raise ValueError(f"Gaussian: 'clip' must map names of uploads to bounds, got {format_value(dict(clip))}")
    for name, bound in clip.items():
        require("Gaussian", f"clip[{name!r}]", bound, positive.up_to(LARGE))
    return {str(name): float(bound) for name, bound in clip.items()}
