"""The tensor that a run takes from what a model returns."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from .module_kind import UnsuitableModel

OutputFunction = Callable[[Any], Tensor]


def pick_output(returned: Any, function: OutputFunction | None = None) -> Tensor:
    """Return the tensor of outputs.

    Args:
        returned: What the model returned: a tensor, an object with `logits`, or a tuple, list or mapping with one
            tensor. None entries do not count.
        function: Takes the tensor from `returned` instead; the option `outputs` of a run.

    Raises:
        UnsuitableModel: If there is no tensor, or more than one.
    """
    if function is not None:
        chosen = function(returned)
        if not isinstance(chosen, Tensor):
            raise UnsuitableModel(f"run: 'outputs' must return a tensor, got {type(chosen).__name__}")
        return chosen
    if isinstance(returned, Tensor):
        return returned
    named = returned.get("logits") if isinstance(returned, Mapping) else getattr(returned, "logits", None)
    if isinstance(named, Tensor):
        return named
    values = returned.values() if isinstance(returned, Mapping) else returned
    if isinstance(returned, tuple | list | Mapping):
        found = [v for v in values if v is not None]
        if len(found) == 1 and isinstance(found[0], Tensor):
            return found[0]
    raise UnsuitableModel(
        f"Cannot train the model because it returns {_described(returned)}; use outputs=, a function from what the "
        f"model returns to the tensor of outputs, e.g. outputs=lambda o: {_example(returned)}"
    )


def _example(returned: Any) -> str:
    if isinstance(returned, Mapping):
        return f"o[{next(iter(returned), 'logits')!r}]"
    return "o[0]" if isinstance(returned, tuple | list) else "o.logits"


def _described(returned: Any) -> str:
    kind = type(returned).__name__
    if isinstance(returned, Mapping):
        return f"a {kind} with {', '.join(map(str, returned)) or 'no entries'}"
    if isinstance(returned, tuple | list):
        return f"a {kind} of {len(returned)} ({', '.join(type(v).__name__ for v in returned)})"
    return f"an object of type {kind}, which is no tensor"
