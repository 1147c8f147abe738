"""Print size and structure metrics of fedmos source trees as a Markdown table.

A function's length is that of its body, docstring included. Nested functions count on their own; `@overload`
declarations do not count. Parameters exclude `self` and `cls` and include `*args` and `**kwargs`.

Example: python tools/code_metrics.py --list ../before .
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import subprocess
import sys
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

from import_graph import cycles, eager, import_graph, python_files

MAX_BODY, MAX_PARAMETERS, MAX_FILE, WORST = 40, 8, 300, 5
PARAMETERS = f"Functions with more than {MAX_PARAMETERS} parameters"
FAILED = "import failed"

# Runs in a child process, so that two trees do not share sys.modules.
UNDOCUMENTED = r"""
import inspect, json, re
import fedmos
example = re.compile(r"^\s*Examples?\s*(:.*)?$|>>>", re.MULTILINE)
missing = []
for name in sorted(set(fedmos.__all__)):
    value = getattr(fedmos, name)
    if (inspect.ismodule(value) or callable(value)) and not example.search(value.__doc__ or ""):
        missing.append(name)
print(json.dumps({"file": fedmos.__file__, "total": len(set(fedmos.__all__)), "missing": missing}))
"""


@dataclass
class Metric:
    """A row of the table for one tree: the value and what it counts, for `--list`."""

    label: str
    value: str
    offenders: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Function:
    """A function definition: its location, name, body length and number of parameters."""

    where: str
    name: str
    lines: int
    parameters: int


def _function(node: ast.FunctionDef | ast.AsyncFunctionDef, where: str, decorators: set[str], method: bool) -> Function:
    signature, first = node.args, node.body[0]
    count = len(signature.posonlyargs) + len(signature.args) + len(signature.kwonlyargs)
    count += (signature.vararg is not None) + (signature.kwarg is not None)
    count -= method and "staticmethod" not in decorators
    start = min([first.lineno, *(decorator.lineno for decorator in getattr(first, "decorator_list", []))])
    return Function(f"{where}:{node.lineno}", node.name, (node.end_lineno or start) - start + 1, count)


def _functions(tree: ast.AST, where: str, *, in_class: bool = False) -> list[Function]:
    found: list[Function] = []
    for node in ast.iter_child_nodes(tree):
        inner = in_class  # `if` and `try` blocks in a class body still define methods
        if isinstance(node, ast.ClassDef):
            inner = True
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            inner = False
            decorators = {ast.unparse(decorator).rpartition(".")[2] for decorator in node.decorator_list}
            if "overload" not in decorators:
                found.append(_function(node, where, decorators, in_class))
        found += _functions(node, where, in_class=inner)
    return found


def _without_example(tree: Path) -> tuple[str, list[str]]:
    source = (tree / "src").resolve()
    env = {**os.environ, "PYTHONPATH": str(source), "PYTHONDONTWRITEBYTECODE": "1"}
    child = subprocess.run([sys.executable, "-c", UNDOCUMENTED], cwd=source, env=env, capture_output=True, text=True)
    if child.returncode:
        reason = (child.stderr.strip().splitlines() or ["no message"])[-1]
        return FAILED, [reason]
    answer = json.loads(child.stdout.splitlines()[-1])
    if not Path(answer["file"]).resolve().is_relative_to(source):
        return FAILED, [f"imported {answer['file']} instead"]
    return f"{len(answer['missing'])} of {answer['total']}", answer["missing"]


def _code_lines(path: Path) -> int:
    """Count lines without blank lines, comments and docstrings."""
    text = path.read_text()
    documentation: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            documentation |= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    lines = enumerate(text.splitlines(), 1)
    return sum(bool(line.strip()) and not line.strip().startswith("#") and n not in documentation for n, line in lines)


def measure(tree: Path) -> list[Metric]:
    """Return the metrics of `tree`/src/fedmos, in the order of the table."""
    package = tree / "src" / "fedmos"
    files = python_files(package)
    functions: list[Function] = []
    classes: dict[str, list[str]] = defaultdict(list)
    lengths: dict[str, int] = {}
    for path in files:
        text, name = path.read_text(encoding="utf-8"), str(path.relative_to(tree))
        module = ast.parse(text, name)
        lengths[name] = len(text.splitlines())
        functions += _functions(module, name)
        for node in ast.walk(module):
            if isinstance(node, ast.ClassDef):
                classes[node.name].append(f"{name}:{node.lineno}")
    top = [path.name for path in files if path.parent == package]
    long = sorted((f for f in functions if f.lines > MAX_BODY), key=lambda f: -f.lines)
    wide = sorted((f for f in functions if f.parameters > MAX_PARAMETERS), key=lambda f: -f.parameters)
    large = sorted((name for name in lengths if lengths[name] > MAX_FILE), key=lambda name: -lengths[name])
    repeated = [f"{name}: {', '.join(places)}" for name, places in sorted(classes.items()) if len(places) > 1]
    graph = import_graph(package)
    at_import, all_cycles = cycles(eager(graph)), cycles(graph)
    return [
        Metric("Python files", str(len(files))),
        Metric("Python files at the package's top level", str(len(top)), top),
        Metric("Lines", str(sum(lengths.values()))),
        Metric("Lines of code", str(sum(_code_lines(path) for path in files))),
        Metric("Functions", str(len(functions))),
        Metric(f"Functions over {MAX_BODY} lines", str(len(long)), [f"{f.where} {f.name}: {f.lines}" for f in long]),
        Metric(PARAMETERS, str(len(wide)), [f"{f.where} {f.name}: {f.parameters}" for f in wide]),
        Metric(f"Files over {MAX_FILE} lines", str(len(large)), [f"{name}: {lengths[name]}" for name in large]),
        Metric("Class names defined more than once", str(len(repeated)), repeated),
        Metric("Public names without an example", *_without_example(tree)),
        Metric("Package import cycles at import time", str(len(at_import)), [", ".join(c) for c in at_import]),
        Metric("Package import cycles, deferred included", str(len(all_cycles)), [", ".join(c) for c in all_cycles]),
        Metric("Packages in those cycles", f"{sum(map(len, all_cycles))} of {len(graph)}"),
    ]


def main() -> None:
    """Print the table, the functions with the most parameters and, with `--list`, all offenders."""
    parser = argparse.ArgumentParser(description="Size and structure metrics of fedmos source trees.")
    parser.add_argument("trees", nargs="+", type=Path, metavar="TREE", help="repository root")
    parser.add_argument("--list", action="store_true", help="list everything that the counts refer to")
    args = parser.parse_args()
    for tree in args.trees:
        if not (tree / "src" / "fedmos").is_dir():
            parser.error(f"{tree} has no src/fedmos")
    results = [measure(tree) for tree in args.trees]
    print("| Metric |" + "".join(f" {tree} |" for tree in args.trees))
    print("|---|" + "---:|" * len(results))
    for row in zip(*results, strict=True):
        print(f"| {row[0].label} |" + "".join(f" {metric.value} |" for metric in row))
    for tree, metrics in zip(args.trees, results, strict=True):
        for metric in metrics:
            everything = args.list or metric.value == FAILED
            if metric.offenders and (everything or metric.label == PARAMETERS):
                print(f"\n{metric.label} ({tree}):\n")
                print("\n".join(f"- {offender}" for offender in metric.offenders[: None if everything else WORST]))


if __name__ == "__main__":
    main()
