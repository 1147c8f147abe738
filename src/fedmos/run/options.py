"""Declaration of options: a frozen dataclass whose fields carry a validation rule and a line of documentation."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from types import FunctionType
from typing import Any, Literal, TypeVar, dataclass_transform

from ..core.formatting import format_value
from ..core.validation import Rule, none, suggest
from .values import structured

T = TypeVar("T")

Resume = Literal["same", "may change", "not recorded"]
"""How a resumed run treats an option: it must equal the recorded value, is recorded only, or is not recorded."""


@dataclass(frozen=True)
class TypeRule(Rule):
    """A rule about the type of a value. Its error names the type instead of printing the value."""

    use: str = ""
    """What to use instead of a value of another type, for its error."""


def instance_of(kind: type, text: str, use: str = "") -> TypeRule:
    """Accept instances of `kind`; `text` describes them in errors, `use` what makes one."""
    return TypeRule(text, lambda v: isinstance(v, kind), use=use)


@dataclass(frozen=True, kw_only=True)
class Option:
    """The metadata of one option."""

    doc: str
    rule: Rule | None = None
    """Validates a value other than an accepted None; None if later checks do."""
    nullable: bool = False
    """Whether None is accepted besides what the rule accepts."""
    convert: Callable[[Any], Any] | None = None
    """Normalises an accepted value that is not None, e.g. `int` for a NumPy integer."""
    resume: Resume = "same"
    record: Callable[[Any], Any] | None = None
    """Turns the value into the JSON that the run folder records; by default the value itself."""
    compare: Callable[[Any], Any] | None = None
    """Turns the value into JSON that is equal for equal values; by default `structured`."""
    shared: bool = False
    """Whether the clients and the server of a deployment must have the same value."""
    per_run: bool = False
    """Whether the runs of a comparison differ in it, so that it is no option of the comparison itself."""
    toml: bool = True
    """Whether a configuration file can set it."""

    def checked(self, owner: str, name: str, value: Any) -> Any:
        """Validate a value and return its normal form."""
        if self.rule is not None and not (value is None and self.nullable):
            fault = (self.rule | none if self.nullable else self.rule).fault(value)
            if fault is not None:
                raise ValueError(f"{owner}: '{name}' must be {fault}, got {_got(self.rule, value)}")
        return value if value is None or self.convert is None else self.convert(value)

    def comparable(self, value: Any) -> Any:
        """Return the value in a form to compare."""
        return structured(value) if self.compare is None else self.compare(value)


def _got(rule: Rule, value: Any) -> str:
    if isinstance(value, type) and (isinstance(rule, TypeRule) or value.__module__.split(".")[0] != "torch"):
        return f"the class {value.__name__} itself; use {value.__name__}(…)"
    if not isinstance(rule, TypeRule):
        return format_value(value)
    if isinstance(value, FunctionType):
        return f"the function {value.__name__} itself; use {value.__name__}(…)"
    return type(value).__name__ + (f"; use {rule.use}" if rule.use else "")


def option(doc: str, rule: Rule | None = None, *, default: Any = MISSING, kw_only: bool = True, **metadata: Any) -> Any:
    """Declare a field of an options class; `metadata` are further fields of `Option`."""
    nullable = rule is not None and default is None and not rule.test(None)
    described = Option(doc=doc, rule=rule, nullable=nullable, **metadata)
    return field(default=default, kw_only=kw_only, metadata={"option": described})


@dataclass_transform(frozen_default=True, eq_default=False, kw_only_default=True, field_specifiers=(option,))
def options(cls: type[T]) -> type[T]:
    """Make a class of `option` fields a frozen dataclass."""
    return dataclass(frozen=True, eq=False, repr=False)(cls)


def options_of(cls: Any) -> dict[str, Option]:
    """Return the metadata of every option, by name and in order."""
    return {f.name: f.metadata["option"] for f in fields(cls)}


def call_with_options(caller: str, cls: Callable[..., T], args: Sequence[Any], kwargs: Mapping[str, Any]) -> T:
    """Build an options object from the arguments of a public function.

    Raises:
        TypeError: in the name of `caller`, if an argument is unknown, missing or given twice.
    """
    signature = inspect.signature(cls)
    for name in kwargs:
        if name not in signature.parameters:
            hint = suggest(name, signature.parameters)
            raise TypeError(f"{caller}() got an unexpected keyword argument {name!r}{hint}")
    try:
        bound = signature.bind(*args, **kwargs)
    except TypeError as error:
        raise TypeError(f"{caller}() {error}") from None
    return cls(*bound.args, **bound.kwargs)


def document_options(doc: str, cls: Any) -> str:
    """Insert an Args section for the options of `cls` in place of the line "{options}" of a docstring."""
    lines = ["Args:"]
    for name, described in options_of(cls).items():
        lines += textwrap.wrap(f"{name}: {described.doc}", 112, initial_indent=" " * 4, subsequent_indent=" " * 8)
    return inspect.cleandoc(doc).replace("{options}", "\n".join(lines))
