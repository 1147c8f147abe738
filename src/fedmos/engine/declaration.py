"""The declarations of an algorithm: names and shapes, their validation, and checks of what its methods return."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from ..algorithm import RULES, Algorithm, ClientContext, Field, Layers, Reduce, Vectors
from ..core.declared_fields import check_fields, is_int, name_and_shape, names_of
from ..core.formatting import format_value
from ..core.method_checks import kind_of, unchanged
from ..core.validation import suggest
from .job import Phase
from .row_rules import gathered, row_rule
from .watch import refusing_draws

Shapes = dict[str, tuple[int, ...]]
"""The shapes of named tensors. One number has the shape ()."""

_FIELDS = ("server_state", "client_state", "down", "up", "prepare_up")


class Declaration:
    """The declared names of an algorithm with their shapes for a model."""

    def __init__(self, algorithm: Algorithm, layers: Layers) -> None:
        self.algorithm, self.layers = algorithm, layers

    @cached_property
    def server_state(self) -> Shapes:
        declared = self.algorithm.server_state
        shapes = self._shapes(declared)
        matrices = [field[0] for field in declared if isinstance(field, tuple) and is_int(field[1])]
        return shapes | {name: (*shapes[name], self.layers.size) for name in matrices}

    @cached_property
    def client_state(self) -> Shapes:
        return self._shapes(self.algorithm.client_state)

    @cached_property
    def down(self) -> Shapes:
        plain = {f for f in self.algorithm.down if isinstance(f, str) and f != "x"}
        return self._shapes(self.algorithm.down) | {n: v for n, v in self.server_state.items() if n in plain}

    @cached_property
    def message(self) -> Shapes:
        """What `broadcast` returns: `down` without x."""
        return {name: shape for name, shape in self.down.items() if name != "x"}

    def up(self, phase: Phase) -> Shapes:
        """Return the uploads of a phase."""
        return self._up if phase == "train" else self._prepare_up

    @cached_property
    def _up(self) -> Shapes:
        return self._shapes(self.algorithm.up)

    @cached_property
    def _prepare_up(self) -> Shapes:
        return self._shapes(self.algorithm.prepare_up)

    def sums(self, phase: Phase) -> Shapes:
        """Return the sums of a phase; for the rule "each", the shape of a row."""
        return {name: self.up(phase)[upload] for name, (upload, _) in self.rules(phase).items()}

    def rules(self, phase: Phase) -> Reduce:
        """Return what a backend computes in a phase: the declared sums with their rules, or the rows for them."""
        declared = self.reduce(phase)
        return declared if row_rule(self.algorithm) is None else gathered(declared)

    def reduce(self, phase: Phase) -> Reduce:
        """Return the declared sums of a phase with their rules."""
        return self.algorithm.reduce if phase == "train" else self.algorithm.prepare_reduce

    def initial(self, declared: Shapes, x: Tensor) -> Vectors:
        """Return the initial value of declared state: zeros unless `init` gives another."""
        owner, known = type(self.algorithm).__name__, [*self.server_state, *self.client_state]
        with unchanged(self.algorithm, "init", {"x": x}), refusing_draws(owner, "init", x.device):
            given = self.algorithm.init(x)
        check_names(self.algorithm, "init", given, given if isinstance(given, dict) else ())
        for name in given:
            if name not in known:
                states = ", ".join(known) or "none is declared"
                raise ValueError(
                    f"{owner}: 'init' must return declared state ({states}), got {name}{suggest(name, known)}"
                )
        given = {name: v for name, v in given.items() if name in declared}
        check_shapes(self.algorithm, "init", given, declared)
        return {
            name: given[name].reshape(shape).to(x)
            if name in given
            else torch.zeros(shape, dtype=x.dtype, device=x.device)
            for name, shape in declared.items()
        }

    def _shapes(self, declared: Sequence[Field]) -> Shapes:
        return {name: self._shape(shape) for name, shape in map(name_and_shape, declared)}

    def _shape(self, shape: Any) -> tuple[int, ...]:
        if shape == "layers":
            return (len(self.layers),)
        return tuple(self.layers.size if n == "D" else n for n in shape)


def check_declaration(algorithm: Algorithm) -> None:
    """Check that the declarations of an algorithm are consistent."""
    owner = type(algorithm).__name__
    for field in _FIELDS:
        check_fields(owner, field, getattr(algorithm, field))
    for field, reduce, up in (
        ("reduce", algorithm.reduce, names_of(algorithm.up)),
        ("prepare_reduce", algorithm.prepare_reduce, names_of(algorithm.prepare_up)),
    ):
        for name, pair in reduce.items():
            upload, rule = _checked_rule(owner, field, name, pair)
            if upload not in up:
                raise ValueError(f"{owner}: the sum '{name}' must be of one of {', '.join(up)}, got {upload!r}")
            if rule not in RULES:
                raise ValueError(f"{owner}: the rule of sum '{name}' must be one of {', '.join(RULES)}, got {rule!r}")
            if rule == "each" and field == "prepare_reduce":
                raise ValueError(f"{owner}: the rule of sum '{name}' must be a sum, since it becomes server state")
    _check_tracked(owner, algorithm)
    _check_population_sums(owner, algorithm)
    known = names_of(algorithm.server_state)
    if type(algorithm).broadcast is Algorithm.broadcast and not set(known) >= set(names_of(algorithm.down)) - {"x"}:
        missing = ", ".join(sorted(set(names_of(algorithm.down)) - {"x"} - set(known)))
        raise ValueError(f"{owner}: 'down' must name server state unless 'broadcast' makes it, got {missing}")
    for name in algorithm.prepare_reduce:
        if name not in known:
            raise ValueError(f"{owner}: 'prepare_reduce' must name server state, got {name!r}")


def _check_tracked(owner: str, algorithm: Algorithm) -> None:
    check_fields(owner, "tracked", algorithm.tracked)
    up = names_of(algorithm.up)
    for name in algorithm.tracked:
        if name not in up:
            raise ValueError(f"{owner}: 'tracked' must name uploads ({', '.join(up)}), got {format_value(name)}")


def _check_population_sums(owner: str, algorithm: Algorithm) -> None:
    server, own = names_of(algorithm.server_state), names_of(algorithm.client_state)
    sums = algorithm.population_sums
    if not isinstance(sums, Mapping) or not all(c in server and c_i in own for c, c_i in sums.items()):
        raise ValueError(f"{owner}: 'population_sums' must map server state to client state, got {format_value(sums)}")


def _checked_rule(owner: str, field: str, name: str, pair: Any) -> tuple[str, str]:
    """Return the upload and the rule of a sum."""
    if not (isinstance(pair, tuple | list) and len(pair) == 2 and all(isinstance(part, str) for part in pair)):
        raise ValueError(
            f"{owner}: '{field}' must map '{name}' to (upload, rule), e.g. ('delta', 'w'), got {format_value(pair)}"
        )
    return pair[0], pair[1]


# Checks of what methods return.


def check_model(algorithm: Algorithm, method: str, got: Any, shape: torch.Size) -> None:
    """Check that a method returned a model of this shape."""
    if not isinstance(got, Tensor) or got.shape != shape:
        raise ValueError(
            f"{type(algorithm).__name__}: '{method}' must return a model of shape {tuple(shape)}, got {kind_of(got)}"
        )


def check_start(algorithm: Algorithm, got: Any, c: ClientContext) -> None:
    """Check that `start` returned a model: (D,), or with a row for each client of the cohort."""
    rows = c.K.shape[:-1]
    D = c.layers.size
    if not isinstance(got, Tensor) or got.shape not in ((D,), (*rows, D)):
        raise ValueError(
            f"{type(algorithm).__name__}: 'start' must return a model of shape {(*rows, D)}, got {kind_of(got)}"
        )


def check_shapes(
    algorithm: Algorithm, method: str, got: Any, declared: Mapping[str, tuple[int, ...]], some: bool = True
) -> None:
    """Check that a method of the server returned tensors of the declared names and shapes.

    With `some`, names may be missing. A number can have the shape () or (1,).
    """
    check_names(algorithm, method, got, declared, some)
    for name, v in got.items():
        shape = declared[name]
        if not isinstance(v, Tensor) or (v.shape != shape and not (shape == () and v.shape == (1,))):
            raise wrong_shape(algorithm, method, name, shape, v)


def check_names(algorithm: Algorithm, method: str, got: Any, names: Iterable[str], some: bool = False) -> None:
    """Check that a method returned a dictionary with exactly the declared names or, with `some`, a subset of them."""
    names = list(names)
    if not isinstance(got, dict):
        raise ValueError(
            f"{type(algorithm).__name__}: '{method}' must return a dictionary of tensors by name, got {kind_of(got)}"
        )
    if not (all(name in names for name in got) and (some or all(name in got for name in names))):
        raise ValueError(
            f"{type(algorithm).__name__}: '{method}' must return {'some of ' if some else ''}"
            f"{', '.join(names) or 'nothing'}, got {', '.join(map(str, got)) or 'nothing'}"
        )


def wrong_shape(algorithm: Algorithm, method: str, name: str, shape: tuple[int, ...], got: Any) -> ValueError:
    """Return the error for a tensor whose shape is not the declared one."""
    return ValueError(
        f"{type(algorithm).__name__}: '{method}' must return '{name}' of shape {tuple(shape)}, got {kind_of(got)}"
    )


def client_rows(
    declaration: Declaration, method: str, got: Vectors, declared: Shapes, unrows: Callable[[Tensor], Tensor], M: int
) -> Vectors:
    """Return what clients send or keep with a row per client, (M, *shape), checked against the declaration.

    A vector of the model's size without the cohort's axis counts for every client, as x does. Other tensors need the
    axis: without it they are most likely norms or sums over the whole cohort.
    """
    algorithm, D = declaration.algorithm, declaration.layers.size
    found = {}
    for name, v in got.items():
        shape = declared[name]
        column = shape or (1,)
        rows = unrows(v) if isinstance(v, Tensor) else None
        if rows is not None and shape and shape[-1] == D and rows.shape in (shape, (1, *shape)):
            rows = rows.expand(M, *shape)
        elif rows is None or rows.shape != (M, *column):
            alone = unrows(torch.empty(0)).ndim > 1  # the engine of one client adds the axis itself
            whole = column if alone else (M, *column)
            hint = "; use dim=-1, keepdim=True" if shape == () else ""
            raise ValueError(f"{wrong_shape(algorithm, method, name, whole, v)}{hint}")
        found[name] = rows.reshape(M, *shape)
    return found
