"""Watches calls of methods: arguments stay as they are, nothing is kept or drawn, and a second call repeats."""

from __future__ import annotations

import copy
import dataclasses
import inspect
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..algorithm import Context
from ..codecs.codec import Codec
from ..core.method_checks import changed_in_place
from ..engine.context import CohortContext
from ..engine.named_tensors import NamedTensors
from ..engine.selection_view import UndeclaredUpdates
from ..engine.watch import GeneratorStates, contract_of, draws_globally
from ..local.optimizer import LocalOptimizer
from ..selection.selector import Selector, View
from .findings import Findings

_CPU = torch.device("cpu")
_RETURNED = {
    "prepare": ("upload",),
    "start": ("y",),
    "begin": ("s",),
    "direction": ("direction", "s"),
    "step": ("y", "s"),
    "finish": ("upload", "own"),
}
"""By client method of an algorithm, the names of what it returns."""


class TraceKey(NamedTuple):
    """A call of a method for one client."""

    t: int
    client: int
    method: str
    k: int
    """The local step; −1 outside of steps."""


Trace = dict[TraceKey, dict[str, Tensor]]
"""What methods returned for each client, by the name of the value."""


class MethodWatcher:
    """Calls methods in place of the engine and adds to the findings what they must not do."""

    def __init__(self, findings: Findings) -> None:
        self._findings = findings
        self.trace: Trace = {}
        """What the client methods of an algorithm returned, in the order of the calls."""
        self.messages: dict[int, int] = {}
        """By round, how many numbers `broadcast` returned."""

    def __call__(self, obj: Any, method: str, call: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        names = list(inspect.signature(getattr(contract_of(type(obj)), method)).parameters)[1:]
        given = dict(zip(names, args, strict=False))
        again = tuple(map(_copied, args))
        before = {name: (v.clone(), v._version) for name, v in _tensors(given)}
        kept, generators = _attributes(obj), GeneratorStates.now(_CPU)
        result = call(*args)
        pure = self._draws_nothing(obj, method, generators)
        pure &= self._keeps_nothing(obj, method, kept)
        pure &= self._writes_nothing(obj, method, given, before)
        if pure:
            self._repeats(obj, method, result, call(*again))
        if method == "broadcast" and isinstance(result, Mapping):
            self.messages[int(given["ctx"].t)] = sum(v.numel() for v in result.values() if isinstance(v, Tensor))
        if method in _RETURNED and isinstance(given["c"], CohortContext):
            self._record(method, given["c"], int(given.get("k", -1)), result)
        return result

    def _draws_nothing(self, obj: Any, method: str, generators: GeneratorStates) -> bool:
        used = generators.changed(_CPU)
        for generator in used:
            self._findings.add(str(draws_globally(type(obj).__name__, method, generator)), "draws")
        if used:
            generators.restore()  # so that the run goes on
        return not used

    def _keeps_nothing(self, obj: Any, method: str, before: Mapping[str, Any]) -> bool:
        after = _attributes(obj)
        new = [name for name in after if name not in before or after[name] != before[name]]
        for name in new:
            self._findings.add(
                f"{type(obj).__name__}: '{method}' must not keep values on self, got a new 'self.{name}'; "
                f"{_declare(obj)}",
                "keeps",
            )
        return not new

    def _writes_nothing(
        self, obj: Any, method: str, given: Mapping[str, Any], before: Mapping[str, tuple[Tensor, int]]
    ) -> bool:
        changed = [
            name
            for name, v in _tensors(given)
            if name in before and (v._version != before[name][1] or not _same(v, before[name][0]))
        ]
        for name in changed:
            self._findings.add(str(changed_in_place(obj, method, name)), "writes")
        return not changed

    def _repeats(self, obj: Any, method: str, first: Any, second: Any) -> None:
        if not _equal(first, second):
            self._findings.add(
                f"{type(obj).__name__}: '{method}' must return the same for the same arguments, but a second call "
                f"differs; {_declare(obj)}, and draw random numbers from fedmos.rng",
                "varies",
            )

    def _record(self, method: str, c: CohortContext, k: int, result: Any) -> None:
        """Record what a method returned for each client of the cohort."""
        ids, single = c.gradient.chunk.ids.tolist(), c.K.ndim == 1
        for name, v in _returned(method, result):
            for row, i in enumerate(ids):
                part = v if single or v.ndim < 1 or v.shape[0] != len(ids) else v[row]
                self.trace.setdefault(TraceKey(int(c.t), i, method, k), {})[name] = part.detach().flatten()


def _declare(obj: Any) -> str:
    if isinstance(obj, Selector):
        return "declare what it remembers in 'state' and keep it in view.state"
    if isinstance(obj, LocalOptimizer):
        return "declare what it remembers in 'state'"
    if isinstance(obj, Codec):
        return "a codec has no state"
    return "declare what it remembers in 'server_state' or 'client_state'"


def _returned(method: str, result: Any) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors that a client method returned, by the name that a user knows them by."""
    for label, value in zip(_RETURNED[method], result if isinstance(result, tuple) else (result,), strict=False):
        if isinstance(value, Tensor):
            yield label, value
        elif isinstance(value, Mapping):
            yield from ((f"{label}['{name}']", v) for name, v in value.items() if isinstance(v, Tensor))


def _tensors(given: Mapping[str, Any]) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors among the arguments of a method, by the name that its body uses."""
    for name, value in given.items():
        if isinstance(value, Tensor):
            yield name, value
        elif isinstance(value, Mapping):
            own = value.assigned if isinstance(value, NamedTensors) else ()  # a method's own copy of the dictionary
            yield from ((f"{name}[{k!r}]", v) for k, v in value.items() if isinstance(v, Tensor) and k not in own)
        elif isinstance(value, Context):
            hidden = isinstance(value, CohortContext) and not value.receives_x
            parts = {f"{name}.{part}": getattr(value, part, None) for part in ("lr", "K", "p", "last", "msg", "own")}
            yield from _tensors(parts if hidden else parts | {f"{name}.x": getattr(value, "x", None)})
        elif isinstance(value, View):
            parts = {f"{name}.{part.name}": getattr(value, part.name) for part in dataclasses.fields(View)}
            unwatched = {f"{name}.state", f"{name}.memo"}
            if isinstance(value.updates, UndeclaredUpdates):
                unwatched.add(f"{name}.updates")
            yield from _tensors({part: v for part, v in parts.items() if part not in unwatched})


def _copied(v: Any) -> Any:
    """Return a copy of an argument that a method may change: a dictionary, or the state and the cache of a view."""
    if isinstance(v, Mapping):
        return copy.copy(v)
    if not isinstance(v, View):
        return v
    state = {name: tensor.clone() for name, tensor in v.state.items()}
    return dataclasses.replace(v, state=state, memo=dict(v.memo))


def _attributes(obj: Any) -> dict[str, Any]:
    """Return a fingerprint of each attribute of an object; cached properties are none of its state."""
    cached = {name for kind in type(obj).__mro__ for name, v in vars(kind).items() if isinstance(v, cached_property)}
    return {name: _fingerprint(v, 3) for name, v in getattr(obj, "__dict__", {}).items() if name not in cached}


def _fingerprint(v: Any, depth: int) -> Any:
    if isinstance(v, Tensor):
        return id(v), v._version
    if isinstance(v, Mapping):
        return tuple((repr(name), _fingerprint(item, depth)) for name, item in v.items())
    if isinstance(v, list | tuple | set | frozenset):
        return tuple(_fingerprint(item, depth) for item in v)
    if isinstance(v, str | bytes | int | float | complex | bool | None):
        return v
    if hasattr(v, "tobytes"):
        return v.tobytes()
    if depth and hasattr(v, "__dict__") and not isinstance(v, type) and not callable(v):
        return id(v), _fingerprint(vars(v), depth - 1)
    return id(v)


def _same(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors have the same values, NaN included."""
    return a.shape == b.shape and a.dtype == b.dtype and bool(((a == b) | ((a != a) & (b != b))).all())


def _equal(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return _same(a, b)
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        return a.keys() == b.keys() and all(_equal(v, b[name]) for name, v in a.items())
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return len(a) == len(b) and all(map(_equal, a, b))
    if hasattr(a, "tobytes") and hasattr(b, "tobytes"):
        return bool(a.tobytes() == b.tobytes())
    return type(a) is type(b) and bool(a == b)
