"""The base class of the option `privacy`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..core.equality import EqualByFields
from ..core.formatting import format_value
from ..core.validation import LARGE, Rule, check, non_negative, none, positive, require

_probability = Rule("in (0, 1)", lambda v: positive.test(v) and v < 1)


@dataclass(frozen=True)
class Mechanism(EqualByFields):
    """What all mechanisms have in common: uploads are clipped, and noise is added.

    Args:
        clip: The bound of the norm of all uploads of a client as one vector; or a bound for each upload by name.
        noise_multiplier: The standard deviation of the noise over `clip`. 0 adds no noise; ε is then infinite.
        delta: The δ at which ε is computed; less than 1/(number of clients).
        budget: The largest ε. The run ends before the round that would exceed it. None for no limit.

    Raises:
        ValueError: If a value is out of range.
    """

    clip: float | Mapping[str, float]
    noise_multiplier: float
    delta: float
    budget: float | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "clip", _bounds(type(self).__name__, self.clip))
        check(self, noise_multiplier=non_negative.up_to(LARGE), delta=_probability, budget=positive | none)


def _bounds(owner: str, clip: Any) -> Any:
    """Return the validated option `clip`."""
    if not isinstance(clip, Mapping):
        require(owner, "clip", clip, Rule("> 0, or bounds > 0 by upload", positive.test, LARGE))
        return clip
    if not clip or not all(isinstance(name, str) for name in clip):
        raise ValueError(f"{owner}: 'clip' must map names of uploads to bounds, got {format_value(dict(clip))}")
    for name, bound in clip.items():
        require(owner, f"clip[{name!r}]", bound, positive.up_to(LARGE))
    return {str(name): float(bound) for name, bound in clip.items()}
