"""The pages of the API reference: every public object, rendered by mkdocstrings from its docstring."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from types import ModuleType
from typing import Any

import fedmos as fm
from fedmos.algorithms import __all__ as ALGORITHMS
from fedmos.run import tracking
from fedmos.selection import __all__ as SELECTORS

# Page, title, and the names of `fm` on it. Modules of `fm` have a page each.
GROUPS = {
    "run": ("Runs and results", "run run_many Result Record History DivergenceError"),
    "options": ("Options of a run", "System Constant LogNormal PerClient Buffer Personal EvaluateClients"),
    "callbacks": ("Callbacks", "Callback EarlyStopping Diagnostics"),
    "comparison": ("Comparisons", "compare tune plot"),
    "data": ("Data", "FederatedData Dataset Encoding Normalize Augment"),
    "contract": ("Your own classes", "Algorithm ClientContext Context Gradient Layers Selector View check"),
    "algorithms": ("Algorithms", " ".join(sorted(ALGORITHMS, key=str.lower))),
    "selectors": ("Selectors and availability", " ".join(SELECTORS)),
    "registry": ("Names in configurations", "algorithms selectors availabilities partitions"),
}
ALIASES = {"Table": "PerClient"}
MODULES = {name: getattr(fm, name) for name in fm.__all__ if inspect.ismodule(getattr(fm, name))}
MODULES["tracking"] = tracking


def members(module: ModuleType) -> list[str]:
    """Return the public names of a module."""
    if hasattr(module, "__all__"):
        return [name for name in module.__all__ if getattr(module, name) is not getattr(fm, name, None)]
    values = {name: value for name, value in vars(module).items() if not name.startswith("_")}
    return [name for name, value in values.items() if getattr(value, "__module__", None) == module.__name__]


def _entry(name: str, value: Any, *, level: int = 2) -> str:
    if not (inspect.isclass(value) or inspect.isfunction(value)):
        return f"{'#' * level} {name} {{ #{name.removeprefix('fm.')} }}\n\n`{value!r}`\n"
    path = f"{value.__module__}.{value.__qualname__}"
    options = {"heading": name, "toc_label": name, "heading_level": level}
    lines = [f"::: {path}", "    options:"]
    return "\n".join([*lines, *(f"      {key}: {setting}" for key, setting in options.items())]) + "\n"


def _page(title: str, introduction: str, entries: Iterable[tuple[str, Any]]) -> str:
    return "\n".join([f"# {title}\n", introduction, "", *(_entry(name, value) for name, value in entries)])


def reference_pages() -> dict[str, str]:
    """Return the pages of the reference by their path in the site."""
    pages = {}
    for key, (title, names) in GROUPS.items():
        pages[f"reference/{key}.md"] = _page(title, "", ((f"fm.{name}", getattr(fm, name)) for name in names.split()))
    for key, module in MODULES.items():
        text = inspect.cleandoc(module.__doc__ or "")
        entries = ((f"fm.{key}.{name}", getattr(module, name)) for name in members(module))
        pages[f"reference/{key}.md"] = _page(f"fm.{key}", _introduction(text), entries)
    pages["reference/README.md"] = _index(pages)
    return pages


def _introduction(text: str) -> str:
    """Return a module's docstring with its example as a block of code."""
    prose, _, example = text.partition("Example:\n")
    return prose + (f"```pycon\n{inspect.cleandoc(example)}\n```\n" if example else "")


def _index(pages: dict[str, str]) -> str:
    lines = ["# API reference\n", "The examples use `import fedmos as fm`. In them, `data` is a small federation and"]
    lines += ["`model` a network for its samples:\n", "```python", "import torch", "import fedmos as fm\n"]
    lines += ['data = fm.datasets.load("digits").partition(fm.partition.Dirichlet(alpha=0.5), clients=10)']
    lines += ["model = fm.models.logistic(features=64)", "```\n", "| page | content |", "|---|---|"]
    for path, text in pages.items():
        names = [line.split(": ")[1].removeprefix("fm.") for line in text.splitlines() if "toc_label:" in line]
        title = text.splitlines()[0].removeprefix("# ")
        lines.append(f"| [{title}]({path.removeprefix('reference/')}) | {', '.join(f'`{name}`' for name in names)} |")
    aliases = ", ".join(f"`fm.{old}` is the earlier name of `fm.{new}`" for old, new in ALIASES.items())
    lines.append(f"| [Command line](command-line.md) | the commands of `fedmos` |\n\n{aliases}.")
    return "\n".join(lines) + "\n"
