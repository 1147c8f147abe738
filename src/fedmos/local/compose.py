"""Composition of an algorithm with local optimisers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any, ClassVar, NamedTuple, NoReturn

from torch import Tensor

from ..algorithm import Algorithm, ClientContext, Context, Field, Gradient, Layers, Reduce, Vectors
from ..core.composition import is_pair, recast, subclass, without
from ..core.declared_fields import name_and_shape, names_of
from ..core.method_checks import check_direction, check_pair, unchanged
from ..core.validation import suggest
from .chain import Local, check_chain, optimizers_of
from .optimizer import LocalOptimizer

PREFIX = "local."
"""The names of the optimisers' state begin with this."""


def with_local(algorithm: Algorithm, local: Local | None) -> Algorithm:
    """Return the algorithm with the local steps of the optimisers.

    The result has the class name and the fields of the algorithm, and also declares the optimisers' state. An algorithm
    is returned unchanged where no optimiser changes its step: without any, with SAM, and with the plain `SGD()`. Where
    clients send nothing (local training alone), they keep the state that the server would average.

    Args:
        algorithm: The algorithm, whose `direction` the optimisers transform.
        local: The optimisers.

    Raises:
        ValueError: If the algorithm defines its own local step, or an optimiser is invalid.
    """
    check_chain(local)
    optimizers = optimizers_of(local)
    if not optimizers:
        return algorithm
    if not algorithm.up:
        optimizers = tuple(replace(one, keep=True, average=False) if one.average else one for one in optimizers)
    kind, text = type(algorithm), ", ".join(map(repr, optimizers))
    if kind.step is not Algorithm.step:
        raise ValueError(
            f"Cannot use local={text} with {kind.__name__} because {kind.__name__} defines its own local step; use "
            "local=fm.local.SAM(...) or an algorithm such as FedAvg"
        )
    try:
        hash(optimizers)
    except TypeError:
        raise ValueError(
            f"Cannot use local={text} because its fields may change during the run; use @dataclass(frozen=True) with "
            "fields that are hashable"
        ) from None
    return recast(algorithm, _composed_class(kind, optimizers))  # type: ignore[arg-type]  # a class is hashable


def chain_of(kind: type[Algorithm]) -> tuple[OptimizerLink, ...]:
    """Return the optimisers that a class of algorithms is composed with."""
    return getattr(kind, "_local_chain", ())


def composed_optimizers(algorithm: Algorithm) -> tuple[LocalOptimizer, ...]:
    """Return the optimisers whose steps an algorithm takes; none if it is composed with none."""
    return tuple(link.optimizer for link in chain_of(type(algorithm)))


@cache
def _composed_class(kind: type[Algorithm], optimizers: tuple[LocalOptimizer, ...]) -> type[Algorithm]:
    """Return a subclass of `kind` with these optimisers: one for all runs that have them, so that runs can merge."""
    prefixes = [PREFIX] if len(optimizers) == 1 else [f"{PREFIX}{number}." for number in range(len(optimizers))]
    links = tuple(map(OptimizerLink, optimizers, prefixes))
    return subclass(kind, _Composed, _local_chain=links, _local_base=kind)


class OptimizerState(dict[str, Tensor]):
    """The argument `s` of `update`. Reading an unknown name is an error that lists the declared ones."""

    def __init__(self, optimizer: LocalOptimizer, tensors: Mapping[str, Tensor]) -> None:
        super().__init__(tensors)
        self._owner = type(optimizer).__name__

    def __missing__(self, name: Any) -> NoReturn:
        declared = f"{', '.join(self) or 'nothing'}{suggest(str(name), self)}"
        raise ValueError(f"{self._owner}: there is no s[{name!r}]; 'state' declares {declared}")


class OptimizerLink(NamedTuple):
    """An optimiser in a chain, and the prefix of its state's names in the algorithm."""

    optimizer: LocalOptimizer
    prefix: str

    @property
    def fields(self) -> list[tuple[str, Any]]:
        """The declaration of the state as the algorithm's."""
        return [(self.prefix + name, shape) for name, shape in map(name_and_shape, self.optimizer.state)]

    @property
    def stored(self) -> bool:
        """Whether the state outlives a round."""
        return self.optimizer.keep or self.optimizer.average

    def initial(self, y: Tensor, layers: Layers, given: Vectors | None) -> Vectors:
        """Return the state before the first step of a round, with a row for each client.

        Args:
            y: The parameters.
            layers: The parameter tensors.
            given: The stored state; None for zeros.
        """
        s = {}
        for name, shape in self.fields:
            rows = (*y.shape[:-1], *_column(shape, layers))
            s[name] = y.new_zeros(rows) if given is None else given[name].expand(rows)
        return s

    def update(self, d: Tensor, y: Tensor, s: Vectors, lr: Tensor, layers: Layers) -> tuple[Tensor, Vectors]:
        """Transform the direction; the state has the algorithm's names."""
        own = OptimizerState(self.optimizer, {name: s[self.prefix + name] for name in names_of(self.optimizer.state)})
        with unchanged(self.optimizer, "update", {"d": d, "y": y, "s": own}):
            got = self.optimizer.update(d, y, own, lr, layers)
        _check_update(self.optimizer, got, y, own)
        return got[0], {self.prefix + name: v for name, v in got[1].items()}


class _Composed(Algorithm):
    """The methods and declarations in which an algorithm with local optimisers differs from the algorithm alone."""

    _local_chain: ClassVar[tuple[OptimizerLink, ...]]
    _local_base: ClassVar[type[Algorithm]]
    """The class of the algorithm alone."""

    @property
    def client_state(self) -> Sequence[Field]:
        return (*self._local_alone().client_state, *self._local_kept())

    @property
    def server_state(self) -> Sequence[Field]:
        return (*self._local_alone().server_state, *self._local_averaged())

    @property
    def down(self) -> Sequence[Field]:
        return (*self._local_alone().down, *self._local_averaged())

    @property
    def up(self) -> Sequence[Field]:
        return (*self._local_alone().up, *self._local_averaged())

    @property
    def reduce(self) -> Reduce:
        return {**self._local_alone().reduce, **{name: (name, "avg") for name, _ in self._local_averaged()}}

    def broadcast(self, x: Tensor, state: Vectors, ctx: Context) -> Vectors:
        message = super().broadcast(x, state, ctx)
        if not isinstance(message, dict):
            return message  # the engine refuses it
        return message | _select(state, self._local_averaged())

    def begin(self, y: Tensor, c: ClientContext, grad: Gradient) -> Vectors:
        s = super().begin(y, c, grad)
        if not isinstance(s, dict):
            return s  # the engine refuses it
        for link in self._local_chain:
            given = c.own if link.optimizer.keep else c.msg if link.optimizer.average else None
            s = s | link.initial(y, c.layers, given)
        return s

    def step(self, y: Tensor, s: Vectors, c: ClientContext, grad: Gradient, k: int) -> tuple[Tensor, Vectors]:
        alone = without(s, PREFIX)
        with unchanged(self, "direction", {"y": y, "s": alone}):
            got: Any = self.direction(y, alone, c, grad, k)
        check_pair(self, "direction", got)
        check_direction(self, got[0], y)
        d, s_next = got[0].expand_as(y), got[1]
        for link in self._local_chain:
            d, state = link.update(d, y, s, c.lr, c.layers)
            s_next = s_next | state
        return y - c.lr * d, s_next

    def finish(self, y: Tensor, s: Vectors, c: ClientContext, grad: Gradient) -> tuple[Vectors, Vectors]:
        got: Any = super().finish(y, without(s, PREFIX), c, grad)
        check_pair(self, "finish", got)
        uploads, own = got
        if not isinstance(uploads, dict):
            return got  # type: ignore[no-any-return]  # the engine refuses it
        return uploads | _select(s, self._local_averaged()), own | _select(s, self._local_kept())

    def server(self, x: Tensor, state: Vectors, agg: Vectors, ctx: Context) -> tuple[Tensor, Vectors]:
        got: Any = super().server(x, state, agg, ctx)
        check_pair(self, "server", got)
        return got[0], got[1] | _select(agg, self._local_averaged())

    def gradient_estimate(self, x: Tensor, state: Vectors, ctx: Context, K: float) -> Tensor | None:
        return None  # the algorithm's own estimate takes steps for gradients times η

    def _local_alone(self) -> Algorithm:
        """Return the algorithm alone. Its declarations may depend on each other."""
        return recast(self, self._local_base)

    def _local_kept(self) -> list[tuple[str, Any]]:
        """Return the names and shapes of the state that clients keep."""
        return [pair for link in self._local_chain if link.optimizer.keep for pair in link.fields]

    def _local_averaged(self) -> list[tuple[str, Any]]:
        """Return the names and shapes of the state that the server averages."""
        return [pair for link in self._local_chain if link.optimizer.average for pair in link.fields]


def _select(vectors: Vectors, fields: list[tuple[str, Any]]) -> Vectors:
    return {name: vectors[name] for name, _ in fields}


def _column(shape: Any, layers: Layers) -> tuple[int, ...]:
    """Return the shape of a client's state; a number is a column."""
    if shape == "layers":
        return (len(layers),)
    return tuple(layers.size if n == "D" else n for n in shape) or (1,)


def _check_update(optimizer: LocalOptimizer, got: Any, y: Tensor, s: Vectors) -> None:
    """Check what `update` returned."""
    owner = type(optimizer).__name__
    if not (is_pair(got) and isinstance(got[0], Tensor)):
        kind = type(got).__name__
        raise ValueError(f"{owner}: 'update' must return a direction and a dictionary of state, got {kind}")
    d, new = got
    if d.shape != y.shape:
        raise ValueError(f"{owner}: 'update' must return a direction of shape {tuple(y.shape)}, got {tuple(d.shape)}")
    if set(new) != set(s):
        names, returned = (", ".join(v) or "nothing" for v in (s, new))
        raise ValueError(f"{owner}: 'update' must return the state {names}, got {returned}")
    for name, v in new.items():
        if v.shape != s[name].shape:
            raise ValueError(
                f"{owner}: 'update' must return '{name}' of shape {tuple(s[name].shape)}, got {tuple(v.shape)}"
            )
