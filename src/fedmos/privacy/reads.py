"""What the code of a class reads."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from types import CodeType, FunctionType
from typing import Any


def reads_attribute(kind: type, name: str) -> bool:
    """Return whether a method of a class may read an attribute of this name of any object.

    Functions that the methods name are searched, too, if they are defined in a module or in an enclosing function.

    Args:
        kind: The class. Its base classes are searched, too.
        name: The attribute.
    """
    pending = [v for base in kind.__mro__ for v in vars(base).values()]
    seen: set[CodeType] = set()
    while pending:
        for function in _functions(pending.pop()):
            if function.__code__ in seen:
                continue
            for code in _codes(function.__code__):
                if name in code.co_names or name in code.co_consts:  # the latter in getattr(c, "last")
                    return True
                seen.add(code)
                pending += [function.__globals__[one] for one in code.co_names if one in function.__globals__]
            pending += [v for cell in function.__closure__ or () if (v := _content(cell)) is not None]
    return False


def _functions(v: Any) -> Iterator[FunctionType]:
    """Yield the Python functions of which a method, a property, a decorated or a partial function consists."""
    if isinstance(v, property):
        yield from (one for one in (v.fget, v.fset) if isinstance(one, FunctionType))
    elif isinstance(v, partial):
        yield from _functions(v.func)
    elif isinstance(v, FunctionType):
        yield v
    elif isinstance(inner := getattr(v, "__func__", None) or getattr(v, "__wrapped__", None), FunctionType):
        yield inner


def _codes(code: CodeType) -> Iterator[CodeType]:
    """Yield the code of a function and of all functions inside it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not assigned yet
        return None
