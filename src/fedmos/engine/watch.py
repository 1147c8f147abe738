"""Wrappers around the methods of a user's class, and checks of the global random generators that they may use."""

from __future__ import annotations

import copy
import functools
import inspect
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from ..algorithm import Algorithm
from ..codecs.codec import Codec
from ..local.optimizer import LocalOptimizer
from ..selection.selector import Selector

T = TypeVar("T", Algorithm, Selector, LocalOptimizer, Codec)

Around = Callable[[Any, str, Callable[..., Any], tuple[Any, ...]], Any]
"""Called in place of a method with the object, the method's name, the method itself, and the arguments."""

_BASES: tuple[type[Any], ...] = (Algorithm, Selector, LocalOptimizer, Codec)
_GENERATORS = {"torch": "PyTorch's", "numpy": "NumPy's", "random": "Python's"}
_KEYS: dict[str, str | None] = {
    **dict.fromkeys(("broadcast", "server", "evaluated", "idle", "gradient_estimate"), "ctx.key"),
    **dict.fromkeys(("select", "select_ahead", "thin"), "view.key"),
    **dict.fromkeys(("init", "prepares", "update", "aggregate"), None),
    **dict.fromkeys(("forge", "poison"), "key"),
}
"""By method, the random stream that it gets; those that are not listed get that of the client."""


def contract_of(kind: type[Any]) -> type[Any]:
    """Return the base class that declares the methods of a class, for example `Algorithm`."""
    return next((base for base in _BASES if issubclass(kind, base)), kind)


def defined_methods(kind: type[Any]) -> list[str]:
    """Return the methods of the contract that a class overrides."""
    base = contract_of(kind)
    names = [name for name, value in vars(base).items() if callable(value) and not name.startswith("_")]
    return [n for n in names if callable(getattr(kind, n, None)) and getattr(kind, n) is not getattr(base, n)]


def watched(obj: T, around: Around) -> T:
    """Return a copy of an object in which the methods of the contract that its class defines are called by `around`.

    Args:
        obj: The object, which stays as it is.
        around: What is called in place of each method.
    """
    kind = type(obj)

    def through(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def called(self: Any, *args: Any, **kwargs: Any) -> Any:
            given = inspect.signature(method).bind(self, *args, **kwargs).args if kwargs else (self, *args)
            return around(self, name, functools.partial(method, self), given[1:])

        return called

    body: dict[str, Any] = {name: through(name, getattr(kind, name)) for name in defined_methods(kind)}
    body |= {"__slots__": (), "__module__": kind.__module__, "__qualname__": kind.__qualname__, "__doc__": kind.__doc__}
    if issubclass(kind, Selector):
        owner = next(base for base in kind.__mro__ if "select" in vars(base))  # the engine looks where `select` is
        body |= {n: vars(owner)[n] for n in ("prefetchable", "select_ahead") if n in vars(owner) and n not in body}
        if "select_ahead" not in vars(owner):
            body.pop("select_ahead", None)
    copied = copy.copy(obj)
    object.__setattr__(copied, "__class__", type(kind.__name__, (kind,), body))  # a frozen dataclass refuses `=`
    return copied


class GeneratorStates(NamedTuple):
    """The states of the global random generators."""

    of_torch: list[Tensor]
    of_numpy: tuple[Any, ...]
    of_python: tuple[Any, ...]

    @classmethod
    def now(cls, device: torch.device) -> GeneratorStates:
        """Return the states of the CPU's generators and of the device's."""
        kind, keys, *rest = np.random.get_state(legacy=True)  # noqa: NPY002  # read only
        states = [torch.get_rng_state(), *([torch.cuda.get_rng_state(device)] if device.type == "cuda" else [])]
        return cls(states, (kind, bytes(memoryview(keys)), *rest), random.getstate())  # type: ignore[arg-type]

    def restore(self) -> None:
        """Set the generators of the CPU back to these states."""
        torch.set_rng_state(self.of_torch[0])
        kind, keys, *rest = self.of_numpy
        np.random.set_state((kind, np.frombuffer(keys, dtype=np.uint32), *rest))  # noqa: NPY002
        random.setstate(self.of_python)

    def changed(self, device: torch.device) -> list[str]:
        """Return the generators that have been used since: "torch", "numpy", "random"."""
        after = GeneratorStates.now(device)
        used = {
            "torch": any(not torch.equal(a, b) for a, b in zip(self.of_torch, after.of_torch, strict=True)),
            "numpy": self.of_numpy != after.of_numpy,
            "random": self.of_python != after.of_python,
        }
        return [name for name, yes in used.items() if yes]


@contextmanager
def refusing_draws(owner: str, method: str, device: torch.device) -> Iterator[None]:
    """Refuse a method of an algorithm or selector that draws from a global generator."""
    before = GeneratorStates.now(device)
    yield
    for generator in before.changed(device):
        raise draws_globally(owner, method, generator)


def draws_globally(owner: str, method: str, generator: str) -> ValueError:
    """Return the error for a method that draws from a global generator."""
    key = _KEYS.get(method, "c.key")
    use = "a generator with a seed of its own" if key is None else f"fedmos.rng with {key}, e.g. rng.draws({key}, n)"
    if method in ("encode", "decode"):
        use = "the key, e.g. fm.codecs.uniform(key, v)"
    return ValueError(
        f"{owner}: '{method}' must not draw from {_GENERATORS[generator]} global generator because its runs would not "
        f"repeat; use {use}"
    )
