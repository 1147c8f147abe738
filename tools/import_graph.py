"""Derive the package-level import graph of fedmos and keep its Mermaid diagram up to date.

Nodes are the sub-packages and top-level modules of `src/fedmos`. A solid arrow is an import at module level; a dashed
arrow is an import that occurs only inside functions. Imports under `if TYPE_CHECKING` do not count. The entry points
`__init__` and `__main__` are left out, unless a module below imports the root package: then it is the node `fedmos`.
Only `import` statements are read; `importlib.import_module` is not.

Example: python tools/import_graph.py --write CONTRIBUTING.md
"""

from __future__ import annotations

import argparse
import ast
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = "fedmos"
BEGIN = "<!-- import-graph:begin -->"
END = "<!-- import-graph:end -->"

# graph[importer][imported] is True if every such import is deferred (inside a function).
Graph = dict[str, dict[str, bool]]


def _imports(node: ast.AST, package: list[str], deferred: bool = False) -> Iterator[tuple[str, bool]]:
    """Yield the absolute names that a module in `package` imports, each with whether the import is deferred."""
    children: Iterable[ast.AST] = ast.iter_child_nodes(node)
    if isinstance(node, ast.Import):
        yield from ((alias.name, deferred) for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        base = package[: len(package) - node.level + 1] if node.level else []
        origin = ".".join([*base, *([node.module] if node.module else [])])
        yield from ((f"{origin}.{alias.name}", deferred) for alias in node.names)
    elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        deferred = True
    elif isinstance(node, ast.If) and ast.unparse(node.test).rpartition(".")[2] == "TYPE_CHECKING":
        children = node.orelse
    for child in children:
        yield from _imports(child, package, deferred)


def python_files(package: Path) -> list[Path]:
    """Return the Python files of a package, sorted by path."""
    return sorted(path for path in package.rglob("*.py") if "__pycache__" not in path.parts)


def _node(path: Path, package: Path) -> str:
    first = path.relative_to(package).parts[0].removesuffix(".py")
    return ROOT if first == "__init__" else first


def import_graph(package: Path) -> Graph:
    """Return the import graph between the sub-packages and top-level modules of `package` (a path to `src/fedmos`)."""
    files = [path for path in python_files(package) if path != package / "__main__.py"]
    graph: Graph = {_node(path, package): {} for path in files}
    for path in files:
        importer = _node(path, package)
        module = ast.parse(path.read_text(encoding="utf-8"), str(path))
        for name, deferred in _imports(module, [ROOT, *path.relative_to(package).parent.parts]):
            top, _, rest = name.partition(".")
            if top != ROOT:
                continue
            # `from . import x` may name a sub-package or an attribute of the root package.
            child = rest.partition(".")[0]
            imported = child if child in graph else ROOT
            if imported != importer:
                graph[importer][imported] = deferred and graph[importer].get(imported, True)
    if not any(ROOT in targets for targets in graph.values()):
        graph.pop(ROOT, None)
    return graph


def eager(graph: Graph) -> Graph:
    """Return the graph without its deferred imports."""
    return {source: {to: False for to, late in targets.items() if not late} for source, targets in graph.items()}


def reachable(graph: Graph) -> dict[str, set[str]]:
    """Return what every node imports, directly or indirectly. A node contains itself only if it is on a cycle."""
    reach = {source: set(targets) for source, targets in graph.items()}
    for middle in graph:  # Warshall's algorithm
        for source in graph:
            if middle in reach[source]:
                reach[source] |= reach[middle]
    return reach


def cycles(graph: Graph) -> list[list[str]]:
    """Return the strongly connected components of more than one node, largest first."""
    reach = reachable(graph)
    components = {tuple(sorted(to for to in reach[node] if node in reach[to])) for node in graph if node in reach[node]}
    return sorted((list(component) for component in components), key=lambda c: (-len(c), c))


def reduced(graph: Graph) -> Iterator[tuple[str, str, bool]]:
    """Yield the edges of the transitive reduction, sorted; all edges inside a cycle are kept.

    An eager edge is dropped only if eager edges imply it, so that the diagram hides no import at module level.
    """
    reach = {False: reachable(eager(graph)), True: reachable(graph)}
    for source in sorted(graph):
        for to, deferred in sorted(graph[source].items()):
            known = reach[deferred]
            between = (w for w in known[source] if to in known[w] and source not in known[w] and w not in known[to])
            if next(between, None) is None:
                yield source, to, deferred


def mermaid(graph: Graph) -> str:
    """Return the graph as a fenced Mermaid block."""
    edges = list(reduced(graph))
    linked = {node for source, to, _ in edges for node in (source, to)}
    lines = [f"    {source} {'-.->' if late else '-->'} {to}" for source, to, late in edges]
    lines += [f"    {node}" for node in sorted(graph) if node not in linked]
    return "\n".join(["```mermaid", "graph TD", *lines, "```"])


def replaced(text: str, block: str) -> str:
    """Return `text` with `block` between the two markers, each of which must occur once."""
    head, begin, rest = text.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not (begin and end) or BEGIN in rest or END in head + tail:
        raise ValueError(f"expected one {BEGIN!r} followed by one {END!r}")
    return f"{head}{BEGIN}\n{block}\n{END}{tail}"


def main() -> None:
    """Print, write or check the diagram; exit with 1 if it cannot be written or is out of date."""
    parser = argparse.ArgumentParser(description="Package-level import graph of fedmos as a Mermaid diagram.")
    parser.add_argument("--tree", type=Path, default=Path(__file__).resolve().parents[1], help="repository root")
    action = parser.add_mutually_exclusive_group()
    action.add_argument("--write", type=Path, metavar="FILE", help="replace the diagram between the markers in FILE")
    action.add_argument("--check", type=Path, metavar="FILE", help="exit with 1 if the diagram in FILE is out of date")
    args = parser.parse_args()
    package: Path = args.tree / "src" / ROOT
    if not package.is_dir():
        parser.error(f"{package} is not a directory")
    block = mermaid(import_graph(package))
    target: Path | None = args.write or args.check
    if target is None:
        print(block)
        return
    try:
        text = target.read_text(encoding="utf-8")
        wanted = replaced(text, block)
    except (OSError, ValueError) as error:
        raise SystemExit(f"{target}: {error}") from error
    if args.write:
        target.write_text(wanted, encoding="utf-8")
    elif text != wanted:
        raise SystemExit(f"{target}: the import graph is out of date; run tools/import_graph.py --write {target}")


if __name__ == "__main__":
    main()
