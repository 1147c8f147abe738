"""The callbacks of a run, and the functions that can be given in their place."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from torch import nn

from ..core.callback import Callback
from ..core.formatting import format_value
from ..core.history import History, Record

OnRound = Callable[..., Any]
"""A function of a round's record, or of the record and the model."""


def takes_model(function: OnRound) -> bool:
    """Whether a function of a record has a second parameter for the model: one that is required, or called `model`."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # of some functions of C, the signature is unknown
        return False
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return len(positional) > 1 and (positional[1].default is inspect.Parameter.empty or positional[1].name == "model")


def check_callback(callback: Any) -> None:
    """Refuse what is neither a callback nor a function of a record, or of a record and the model.

    Raises:
        ValueError: With the callback that is refused.
    """
    if isinstance(callback, type) or not (isinstance(callback, Callback) or callable(callback)):
        name = getattr(callback, "__name__", "")
        got = f"the class {name} itself; use {name}(…)" if isinstance(callback, type) else format_value(callback)
        raise ValueError(f"run: 'callbacks' must be Callback objects or functions, got {got}")
    function = callback.on_round if isinstance(callback, Callback) else callback
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return
    try:
        signature.bind(*([None] * (2 if takes_model(function) else 1)))
    except TypeError:
        name = f"{type(callback).__name__}.on_round" if isinstance(callback, Callback) else format_value(callback)
        raise ValueError(
            f"run: 'callbacks' must be functions of (record) or (record, model), got {name} with {signature}"
        ) from None


class FunctionCallback(Callback):
    """A callback that calls a plain function after each round."""

    def __init__(self, function: OnRound) -> None:
        self.on_round = function  # type: ignore[method-assign]


class CallbackList:
    """Calls all callbacks of a run.

    Args:
        callbacks: Callbacks, or functions in their place.
    """

    def __init__(self, callbacks: Sequence[Callback | OnRound]) -> None:
        self._callbacks = [c if isinstance(c, Callback) else FunctionCallback(c) for c in callbacks]

    def __iter__(self) -> Iterator[Callback]:
        return iter(self._callbacks)

    def append(self, callback: Callback) -> None:
        """Add a callback."""
        self._callbacks.append(callback)

    def on_start(self, rounds: int, done: int) -> None:
        """Call `on_start` of all callbacks."""
        for callback in self._callbacks:
            callback.on_start(rounds, done)

    def on_round(self, record: Record, make_model: Callable[[], nn.Module]) -> None:
        """Call `on_round` of all callbacks. The model is made once, and only if one of them takes it."""
        model = functools.cache(make_model)
        for callback in self._callbacks:
            callback.on_round(record, *((model(),) if takes_model(callback.on_round) else ()))

    def on_end(self, result: Any) -> None:
        """Call `on_end` of all callbacks."""
        for callback in self._callbacks:
            callback.on_end(result)

    def stopped_by(self, history: History) -> str | None:
        """Return the first callback that ends the run after these rounds, as a text; None if none does."""
        if not len(history):
            return None
        return next((format_value(callback) for callback in self._callbacks if callback.should_stop(history)), None)
