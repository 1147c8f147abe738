"""Construction of the objects that configurations name: of the registry, or of the user."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from ..core.formatting import format_value
from ..core.metric_functions import METRIC_CLASSES
from ..core.validation import suggest
from .choices import Choice
from .errors import ConfigError, error_location
from .own_classes import is_own, plain_name, resolve

Known = Mapping[str, Callable[..., Any]]
"""Classes and functions of the registry, by name."""


def find(where: str, name: str, known: Known) -> Callable[..., Any]:
    """Return the class or function of this name: one of `known`, or the user's own.

    Raises:
        ConfigError: If there is none.
    """
    if is_own(name):
        found = resolve(where, name)
        if not callable(found):
            raise ConfigError(f"{where}: must be a class or function, but {plain_name(name)} is {format_value(found)}")
        return found  # type: ignore[no-any-return]
    if name not in known:
        own = "" if ":" not in name else "; a class of your own is 'mine.py:Name' or 'package.module:Name'"
        got = f"{format_value(name)}{suggest(name, known)}{own}"
        raise ConfigError(f"{where}: must be one of {', '.join(known)}, got {got}")
    return known[name]


def build(where: str, choice: Choice, known: Known, base: type[Any] | None = None) -> Any:
    """Construct the object that `choice` names; errors name the place in the configuration.

    A field that is a table with a name is constructed likewise.

    Args:
        where: The place in the configuration.
        choice: The name and the fields.
        known: The classes of the registry.
        base: The class that an object of the user must have; None for any.
    """
    make = find(f"{where}.name", choice.name, known)
    if isinstance(make, type) and base is not None and not issubclass(make, base):
        raise ConfigError(f"{where}.name: must be a subclass of {_path(base)}, but {choice.title} is not")
    given = {name: _constructed(f"{where}.{name}", value, known, base) for name, value in choice.fields.items()}
    made = construct(where, choice.title, make, given)
    if base is not None and not isinstance(made, base):
        got = f"{choice.title} returns {format_value(made)}"
        raise ConfigError(f"{where}.name: must give an object of {_path(base)}, but {got}")
    return made


def takes(where: str, name: str, parameter: str) -> bool:
    """Whether a class or function of the user has a parameter of this name."""
    return parameter in inspect.signature(find(where, name, {})).parameters


def build_function(where: str, named: str | Choice, known: Known) -> Any:
    """Return a function that the configuration names: an object of a class, or a function, if need be with its fields.

    Args:
        where: The place in the configuration.
        named: The name, or a table with it.
        known: The classes of the registry.
    """
    choice = named if isinstance(named, Choice) else Choice(name=named)
    found = find(f"{where}.name" if isinstance(named, Choice) else where, choice.name, known)
    if isinstance(found, type):
        made = build(where, choice, known)
        if not callable(made):
            raise ConfigError(f"{where}.name: must be a class of functions, but {choice.title} has no __call__")
        return made
    if not choice.fields:
        return found
    parameters = inspect.signature(found).parameters
    for field in choice.fields:
        if field not in parameters:
            raise _unknown(where, field, choice.title, parameters)
    return functools.partial(found, **choice.fields)


def build_metrics(names: Sequence[str | Choice] | Mapping[str, str | Choice]) -> dict[str, Any]:
    """Return the metrics that the configuration names, by name: the given one, that of the metric or its function."""
    if isinstance(names, Mapping):
        return {name: build_function(f"metrics.{name}", named, METRIC_CLASSES) for name, named in names.items()}
    metrics: dict[str, Any] = {}
    for i, named in enumerate(names):
        metric = build_function(f"metrics.{i}", named, METRIC_CLASSES)
        title = plain_name(named.name if isinstance(named, Choice) else named)
        name = getattr(metric, "name", None) or title
        if name in metrics:
            raise ConfigError(f"metrics.{i}: must be different from the others, got {format_value(name)} twice")
        metrics[name] = metric
    return metrics


def construct(where: str, title: str, make: Callable[..., Any], given: Mapping[str, Any]) -> Any:
    """Call a class or function with keyword arguments; errors name the field of the configuration."""
    parameters = inspect.signature(make).parameters
    for field in given if not any(p.kind is p.VAR_KEYWORD for p in parameters.values()) else ():
        if field not in parameters:
            raise _unknown(where, field, title, parameters)
    optional = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    missing = [n for n, p in parameters.items() if p.default is p.empty and p.kind not in optional and n not in given]
    if missing:
        raise ConfigError(f"{where}: {title} needs {', '.join(missing)}")
    with error_location(where):
        return make(**given)


def _unknown(where: str, field: str, title: str, parameters: Iterable[str]) -> ConfigError:
    word = field if re.fullmatch(r"[\w-]{1,40}", field) else format_value(field)
    allowed = ", ".join(parameters) or "none"
    return ConfigError(f"{where}.{word}: {title} has no such field{suggest(field, parameters)}; its fields: {allowed}")


def _constructed(where: str, value: Any, known: Known, base: type[Any] | None) -> Any:
    """Construct the objects that a field names."""
    if isinstance(value, tuple):
        return tuple(_constructed(f"{where}.{i}", item, known, base) for i, item in enumerate(value))
    if isinstance(value, Mapping) and isinstance(value.get("name"), str):
        return build(where, Choice.model_validate(dict(value)), known, base)
    return value


def _path(kind: type[Any]) -> str:
    """Return the name of a class as users write it."""
    package = kind.__module__.split(".")[0]
    return f"torch.nn.{kind.__name__}" if package == "torch" else f"{package}.{kind.__name__}"
