"""Conversion and validation of the arrays of a `FederatedData`."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..core.formatting import format_value, one_line
from ..core.input_layout import InputLayout
from ..core.validation import suggest

Pair = tuple[np.ndarray, np.ndarray]
"""Inputs and targets of the same samples."""


def offsets_of(sizes: Tensor) -> Tensor:
    """Return where the samples of each client begin, and the total, (clients + 1,)."""
    return torch.cat([torch.zeros(1, dtype=torch.int64), sizes.cumsum(0)])


def importance_of(sizes: Tensor, importance: Any = None) -> Tensor:
    """Return the importances p, float64, with sum one.

    Args:
        sizes: Number of samples of each client.
        importance: One number ≥ 0 per client, which is scaled unless the sum is one already (default: `sizes`).

    Raises:
        ValueError: If `importance` is not one number ≥ 0 per client, or all are zero.
    """
    if importance is None:
        return sizes.to(torch.float64) / int(sizes.sum())
    try:
        given = plain(importance)
        if given.dtype.kind not in "biuf":
            raise TypeError(str(given.dtype))
        p = torch.as_tensor(given.astype(np.float64))
    except (TypeError, ValueError, RuntimeError, OverflowError, MemoryError):
        raise ValueError("FederatedData: 'importance' must be a number ≥ 0 for each client") from None
    if p.shape != sizes.shape:
        raise ValueError(f"FederatedData: 'importance' must hold {len(sizes)} numbers, got shape {tuple(p.shape)}")
    if not bool(((p >= 0) & p.isfinite()).all()) or float(p.sum()) <= 0:
        raise ValueError("FederatedData: 'importance' must be numbers ≥ 0, not all zero")
    p = p / p.max() if float(p.max()) > 1 else p
    total = float(p.sum())
    return p if abs(total - 1) < 1e-12 else p / total


def is_offsets(offsets: Tensor) -> bool:
    """Return whether `offsets` is a valid result of `offsets_of` with at least one sample per client."""
    well_formed = offsets.dtype == torch.int64 and offsets.ndim == 1 and len(offsets) > 1
    return well_formed and int(offsets[0]) == 0 and bool((offsets.diff() > 0).all())


def is_index(index: Tensor, samples: int) -> bool:
    """Return whether `index` is a vector of positions in 0 … samples−1."""
    well_formed = index.dtype == torch.int64 and index.ndim == 1 and len(index) > 0
    return well_formed and int(index.min()) >= 0 and int(index.max()) < samples


class SampleArrays(NamedTuple):
    """The samples of a federation as arrays."""

    clients: list[Pair]
    test: Pair | None
    """The common test set."""
    tests: list[Pair | None]
    """The test samples of each client; None for a client without any."""
    layout: InputLayout | None
    """The inputs of samples that have several."""


def sample_arrays(clients: list[Any], test: Any, tests: list[Any]) -> SampleArrays:
    """Convert the pairs (x, y) of the clients, of the test set and of the clients' own test sets to arrays.

    Raises:
        ValueError: If they are invalid, or of different shapes or kinds of numbers.
    """
    owned = [(i, pair) for i, pair in enumerate(tests) if pair is not None]
    sources = [(f"client {i}", pair) for i, pair in enumerate(clients)]
    sources += [(f"the test set of client {i}", pair) for i, pair in owned]
    sources += [] if test is None else [("the test set", test)]
    layout = None
    if sources and _has_several(sources[0][1]):
        layout, pairs = _several_inputs(sources)
    else:
        pairs = _pairs(sources)
    own: list[Pair | None] = [None] * len(tests)
    for (i, _), pair in zip(owned, pairs[len(clients) :], strict=False):
        own[i] = pair
    return SampleArrays(pairs[: len(clients)], None if test is None else pairs[-1], own, layout)


def _pairs(sources: Sequence[tuple[str, Any]], name: str = "x") -> list[Pair]:
    """Convert pairs (x, y), each given with its owner, to arrays; `name` is that of x in errors."""
    pairs = [_pair(pair, owner, name) for owner, pair in sources]
    for (owner, _), pair in zip(sources, pairs, strict=True):
        _check_alike(pair, pairs[0], owner, name)
    return pairs


def _has_several(pair: Any) -> bool:
    return isinstance(pair, tuple | list) and len(pair) == 2 and isinstance(pair[0], Mapping)


def _several_inputs(sources: Sequence[tuple[str, Any]]) -> tuple[InputLayout, list[Pair]]:
    """Convert pairs (dictionary of inputs, y) to pairs (one row per sample, y).

    Returns:
        The layout of a row, and the pairs.

    Raises:
        ValueError: If the inputs are invalid, or differ between clients.
    """
    names = list(sources[0][1][0])
    if not names or not all(isinstance(name, str) for name in names):
        raise ValueError(f"FederatedData: the names of inputs must be strings, got {format_value(names)}")
    for owner, pair in sources:
        if not _has_several(pair):
            raise ValueError(f"FederatedData: {owner} must be a pair (inputs by name, y), like client 0")
        if set(pair[0]) != set(names):
            got = ", ".join(map(str, pair[0]))
            raise ValueError(f"FederatedData: {owner} must have the inputs {', '.join(names)} of client 0, got {got}")
    arrays: list[dict[str, np.ndarray]] = [{} for _ in sources]
    for name in names:
        pairs = _pairs([(owner, (x[name], y)) for owner, (x, y) in sources], f"x[{name!r}]")
        kind = np.result_type(*(x for x, _ in pairs))
        for own, (x, _) in zip(arrays, pairs, strict=True):
            own[name] = x.astype(kind)
    layout = InputLayout.of(arrays[0])
    return layout, [(layout.pack(own), y) for own, (_, y) in zip(arrays, pairs, strict=True)]


def listed_clients(clients: Any) -> list[Any]:
    """Return the clients as a list. Raises ValueError if there is none."""
    if not isinstance(clients, Iterable):
        raise ValueError(f"FederatedData: 'clients' must be a list of pairs (x, y), got {format_value(clients)}")
    listed = list(clients)
    if not listed:
        raise ValueError("FederatedData: 'clients' must hold at least one client, got none")
    return listed


def listed_tests(tests: Any, clients: int, names: Sequence[str] | None) -> list[Any]:
    """Return the test samples of each client, None for clients without any; an empty list without `tests`.

    Raises:
        ValueError: If there is not one pair or None for each client, or a name is unknown.
    """
    if tests is None:
        return []
    if isinstance(tests, Mapping):
        tests = {str(name): pair for name, pair in tests.items()}
        unknown = [name for name in tests if name not in (names or ())]
        if unknown:
            hint = suggest(unknown[0], names or ())
            raise ValueError(f"FederatedData: 'tests' must name clients, got {format_value(unknown[0])}{hint}")
        tests = [tests.get(name) for name in names or ()]
    if isinstance(tests, str | Tensor) or not isinstance(tests, Iterable):
        raise ValueError(f"FederatedData: 'tests' must be a pair (x, y) for each client, got {type(tests).__name__}")
    listed = [None if _is_empty(pair) else pair for pair in tests]
    if len(listed) != clients:
        raise ValueError(f"FederatedData: 'tests' must have one entry for each of {clients} clients, got {len(listed)}")
    return listed


def _is_empty(pair: Any) -> bool:
    """Whether a pair (x, y) has no samples."""
    two = isinstance(pair, tuple | list) and len(pair) == 2
    return pair is not None and two and hasattr(pair[1], "__len__") and len(pair[1]) == 0


def client_names(names: Any, clients: int) -> list[str] | None:
    """Return the names of the clients. Raises ValueError unless there is a different one for each client."""
    if names is None:
        return None
    given = list(names) if isinstance(names, Sequence | np.ndarray) and not isinstance(names, str) else None
    if given is None or len(given) != clients or not all(isinstance(name, str) for name in given):
        raise ValueError(f"FederatedData: 'names' must be {clients} strings, got {format_value(names)}")
    twice = next((name for i, name in enumerate(given) if name in given[:i]), None) if clients < 1000 else None
    if twice is not None or len(set(given)) < clients:
        raise ValueError(f"FederatedData: 'names' must differ, got {twice!r} twice")
    return [str(name) for name in given]


def client_number(client: Any, clients: int, names: Sequence[str] | None, negative: bool = False) -> int:
    """Return the number of a client that is given by number or name.

    Args:
        client: The number or name.
        clients: The number of clients.
        names: Their names, if they have names.
        negative: Whether negative numbers count from the last client, as in a sequence.

    Raises:
        KeyError: If there is no client of that name.
        IndexError: If there is no client of that number.
        ValueError: If it is neither a number nor a name.
    """
    if isinstance(client, str):
        known = list(names or ())
        if client not in known:
            raise KeyError(f"FederatedData: there is no client {client!r}{suggest(client, known)}")
        return known.index(client)
    try:
        number = operator.index(client)
    except TypeError:
        raise ValueError(
            f"FederatedData: a client must be the number or the name of one, got {format_value(client)}"
        ) from None
    if not (-clients if negative else 0) <= number < clients:
        raise IndexError(f"FederatedData: client must be in 0 … {clients - 1}, got {number}")
    return number % clients


def chosen_clients(ids: Any, clients: int, names: Sequence[str] | None) -> list[int]:
    """Return the numbers of clients that are given by number or name.

    Raises:
        ValueError: If `ids` is no sequence of different clients, or is empty.
    """
    if isinstance(ids, str | int) or not isinstance(ids, Iterable) or getattr(ids, "ndim", 1) != 1:
        raise ValueError(f"subset: 'ids' must be numbers or names of clients, got {format_value(ids)}")
    number = {} if names is None else {name: i for i, name in enumerate(names)}
    chosen: dict[int, None] = {}
    for one in ids:
        i = one.item() if hasattr(one, "item") else one
        if isinstance(i, str):
            if i not in number:
                raise ValueError(f"subset: there is no client {format_value(i)}{suggest(i, number)}")
            i = number[i]
        elif not isinstance(i, int) or isinstance(i, bool) or not 0 <= i < clients:
            raise ValueError(
                f"subset: 'ids' must be numbers in 0 … {clients - 1} or names of clients, got {format_value(i)}"
            )
        if i in chosen:
            raise ValueError(f"subset: 'ids' must be different clients, got {i} twice")
        chosen[i] = None
    if not chosen:
        raise ValueError("subset: 'ids' must name at least one client, got none")
    return list(chosen)


def _pair(pair: Any, owner: str, name: str) -> Pair:
    """Convert a pair (x, y) of array-likes to arrays. Raises ValueError that names `owner` if it is invalid."""
    if not isinstance(pair, tuple | list) or len(pair) != 2:
        raise ValueError(f"FederatedData: {owner} must be a pair (x, y), got {type(pair).__name__}")
    x, y = _array(pair[0], name, owner), _array(pair[1], "y", owner)
    if len(x) != len(y):
        raise ValueError(f"FederatedData: {name} and y of {owner} must be equally long, got {len(x)} and {len(y)}")
    if len(x) == 0:
        raise ValueError(f"FederatedData: {owner} must have at least one sample, got none")
    return x, y


def plain(value: Any) -> np.ndarray:
    """Convert an array-like to a NumPy array."""
    if isinstance(value, Tensor):
        value = value.detach().cpu().resolve_conj().resolve_neg()
        value = value.float() if value.dtype == torch.bfloat16 else value
    if isinstance(value, np.ma.MaskedArray) and np.ma.is_masked(value):
        raise ValueError("some of it is masked")
    a = np.asarray(value)
    with np.errstate(over="ignore"):
        return a.astype(np.float64) if a.dtype == np.longdouble else a


def _array(value: Any, name: str, owner: str) -> np.ndarray:
    what = f"FederatedData: {name} of {owner} must"
    lengths = {len(v) for v in value if hasattr(v, "__len__")} if isinstance(value, list | tuple) else set()
    if len(lengths) > 1:
        raise ValueError(
            f"{what} be an array of numbers, got sequences of length {min(lengths)} to {max(lengths)}; use padding=0"
        )
    try:
        a = plain(value)
        if a.ndim == 0 or a.dtype.kind not in "biuf":
            raise ValueError(f"{what} be an array of numbers, got {a.dtype} of shape {a.shape}")
        if 0 in a.shape[1:]:
            raise ValueError(f"{what} have numbers in each sample, got shape {a.shape}")
        if a.dtype.kind == "f" and not np.isfinite(a).all():
            raise ValueError(f"{what} be finite, got NaN or infinity")
        if a.dtype.kind == "u" and a.dtype.itemsize > 1:  # of unsigned dtypes, torch computes with uint8 only
            if a.size and int(a.max()) >= 2**63:
                raise ValueError(f"{what} be integers of 64 bits with a sign, got {int(a.max())}")
            a = a.astype(np.int64)
        return np.ascontiguousarray(a.astype(a.dtype.newbyteorder("="), copy=False))
    except MemoryError:
        raise ValueError(f"{what} fit into memory") from None
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        text = str(error)
        raise ValueError(
            text if text.startswith(what) else one_line(f"{what} be an array of numbers: {text}")
        ) from None


def _check_alike(pair: Pair, first: Pair, owner: str, x_name: str) -> None:
    """Raise ValueError unless the samples of `pair` have the shape and kind of number of client 0's."""
    for name, a, b in zip((x_name, "y"), pair, first, strict=True):
        if a.shape[1:] != b.shape[1:] or (a.dtype.kind == "f") != (b.dtype.kind == "f"):
            raise ValueError(
                f"FederatedData: {name} of {owner} must be like client 0's, {_description(b)}, got {_description(a)}"
            )


def _description(a: np.ndarray) -> str:
    return f"{a.dtype} of shape (n, {', '.join(map(str, a.shape[1:]))})"
