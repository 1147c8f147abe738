"""Initial weights that depend only on a seed, and validation of the arguments of model functions."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, ParamSpec

import torch
from torch import nn

from ..core.validation import Rule, boolean, count, none, positive, require
from ..core.validation import seed as seed_rule

P = ParamSpec("P")

_MAX_PARAMETERS = 2 * 10**9
_RULES: dict[str, Rule] = {
    "seed": seed_rule,
    "dropout": boolean,
    "layers": count.up_to(1000),
    "depth_multiplier": positive.up_to(100),
}
_UNCHECKED = ("stem", "weights")
"""Arguments that the functions validate themselves."""
_SIZE = count.up_to(10**6)


def seeded(make: Callable[[], nn.Module], seed: int) -> nn.Module:
    """Build a module with PyTorch's initialisers under a seed, and restore the global generator."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(int(seed))  # torch.manual_seed would reseed the GPUs as well
        return make()


def checked(make: Callable[P, nn.Module]) -> Callable[P, nn.Module]:
    """Decorate a model function to validate its arguments and the number of parameters before it builds the model."""
    owner, signature = make.__name__, inspect.signature(make)

    @functools.wraps(make)
    def checking(*args: P.args, **kwargs: P.kwargs) -> nn.Module:
        given: dict[str, Any] = signature.bind(*args, **kwargs).arguments
        for name, value in given.items():
            if name not in _UNCHECKED:
                rule = _RULES.get(name, _SIZE)
                require(owner, name, value, rule | none if signature.parameters[name].default is None else rule)
        large = [v for name, v in given.items() if name not in ("seed", *_UNCHECKED) and (v or 0) > 256]
        if large and given.get("weights") is None:
            with torch.device("meta"):  # counts parameters without allocating them
                size = sum(p.numel() for p in make(*args, **kwargs).parameters())
            if size > _MAX_PARAMETERS:
                raise ValueError(f"{owner}: a model must have at most {_MAX_PARAMETERS:,} parameters, got {size:,}")
        return make(*args, **kwargs)

    return checking
