"""Fill the tables of README.md and images/ of this folder from comparisons of algorithms.

fedmos compare examples/algorithms.toml --out runs/algorithms
fedmos compare examples/recent_algorithms.toml --out runs/recent_algorithms
python docs/algorithms/build.py runs/algorithms runs/recent_algorithms

Each folder has the name of its configuration; those that are not given keep their table and images.
"""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from pathlib import Path

from fedmos.config import schema as config
from fedmos.report.curves import chart
from fedmos.report.study import read_study

HERE = Path(__file__).parent
EXAMPLES = HERE.parent.parent / "examples"


def main() -> None:
    page = HERE / "README.md"
    for folder in map(Path, sys.argv[1:]):
        block = rf"(<!-- {folder.name}:begin -->\n).*?(<!-- {folder.name}:end -->)"
        table = build(folder)
        text, found = re.subn(block, lambda m, table=table: m[1] + table + m[2], page.read_text("utf-8"), flags=re.S)
        assert found == 1, f"README.md has no block {folder.name}"
        page.write_text(text, encoding="utf-8")


def build(folder: Path) -> str:
    """Write the images of a comparison and return its table."""
    settings = config.load(config.CompareConfig, EXAMPLES / f"{folder.name}.toml")
    table = read_study([folder]).table
    page = {method.label: page_of(method) for method in settings.methods}
    images = HERE / "images"
    images.mkdir(exist_ok=True)
    for name in dict.fromkeys(page.values()):
        results = [one for one in table.results if one.label == table.baseline or page[one.label] == name]
        drawn = chart(replace(table, results=results), settings.title)
        assert drawn is not None
        if len(results) > 1 or folder.name == "algorithms":
            (images / f"{name}.svg").write_text(drawn, encoding="utf-8")

    wanted = [c for c in table.columns() if not c.detail and not c.heading.startswith("speed-up")]
    lines = ["| " + " | ".join(c.heading for c in wanted) + " |", "|---" + "|---:" * (len(wanted) - 1) + "|"]
    for result in table.results:
        link = f"[{result.label}]({page[result.label].lower()}.md)"
        lines.append("| " + " | ".join([link, *(c.cell(result) for c in wanted[1:])]) + " |")
    return "\n".join(lines) + "\n"


def page_of(method: config.Method) -> str:
    """Return the name of a method's page: its class, or its label if it is a composition."""
    return method.label if method.local else method.algorithm.name


if __name__ == "__main__":
    main()
