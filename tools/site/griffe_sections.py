"""A Griffe extension for the docstrings of this project: their sections, and those that are completed on import."""

from __future__ import annotations

import importlib
import inspect
import re
from typing import Any

import griffe

PARAGRAPH = re.compile(r"^(Client|Server|[A-Z][\w ]*): +(\S.*)\n((?: {4,}\S.*(?:\n|$))+)", re.M)


class Sections(griffe.Extension):
    """Prepare docstrings before Griffe parses them.

    "Example:" becomes "Examples:", which is shown as code. A paragraph such as "Client: y ← …" with indented further
    lines would become a box of its own; its lines are joined instead. Lines "Client: …" and "Server: …" stay lines.
    Names of pages become links.
    """

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Prepare the docstring of one object."""
        if obj.docstring:
            text = re.sub(r"^(\s*)Example:$", r"\1Examples:", obj.docstring.value, flags=re.M)
            text = re.sub(r"(?<![`\[/])\bdocs/([\w/-]+)\.md", r"[docs/\1.md](../\1.html)", text)
            obj.docstring.value = re.sub(r"\n(?=(Client|Server)\b)", "  \n", PARAGRAPH.sub(_joined, text))

    def on_function(self, *, func: griffe.Function, **_: Any) -> None:
        """Give a function that is documented when it is imported (`fm.run`) its parameters and docstring."""
        if func.docstring and "{options}" in func.docstring.value.splitlines():
            value = getattr(importlib.import_module(func.module.path), func.name)
            func.docstring.value = inspect.getdoc(value) or ""
            func.parameters = griffe.Parameters(*map(_parameter, inspect.signature(value).parameters.values()))
            self.on_object(obj=func)


def _parameter(parameter: inspect.Parameter) -> griffe.Parameter:
    return griffe.Parameter(
        parameter.name,
        annotation=_annotation(parameter.annotation),
        kind=griffe.ParameterKind(parameter.kind.description),
        default=None if parameter.default is parameter.empty else repr(parameter.default),
    )


def _joined(match: re.Match[str]) -> str:
    lines = [line.strip() for line in match[3].splitlines()]
    return f"{match[1]}: {match[2]} " + " ".join(lines) + "\n"


def _annotation(annotation: Any) -> str:
    """Return a type without the modules of its names, except for `torch.device` and the like."""
    return re.sub(r"(?<![\w.])(?!torch\.\w+(?![\w.]))(?:\w+\.)+", "", inspect.formatannotation(annotation))
