"""The pages of docs/reproduction: tables and figures are generated from records, the text around them stays."""

from __future__ import annotations

import math
import re
import statistics
import textwrap
from collections.abc import Sequence
from pathlib import Path

from ..experiments.reproduce.record import Run
from ..experiments.reproduce.results_table import Sheet
from ..experiments.reproduce.study import Part, by_key
from ..storage.files import replace_file
from .figure import Line, line_chart

_BLOCK = re.compile(r"<!-- reproduce ([\w./-]+) -->\n.*?<!-- end -->", re.DOTALL)
DATA, IMAGES = "data", "images"


def build(docs: Path) -> list[Path]:
    """Write every page of the folder again from the records in its sub-folder; returns what was written."""
    pages = sorted(page for page in docs.glob("*.md") if _BLOCK.search(page.read_text("utf-8")))
    if not pages:
        raise ValueError(f"Cannot make pages in {docs} because none there has a block for a study")
    written = []
    for page in pages:
        text = page.read_text("utf-8")
        for key in blocks(text):
            sheet = Sheet.of(by_key(key), docs / DATA)
            drawing = chart(sheet)
            if drawing is not None:
                (docs / IMAGES).mkdir(exist_ok=True)
                replace_file(docs / image(sheet.part), drawing.encode())
                written.append(docs / image(sheet.part))
        replace_file(page, filled(text, docs / DATA).encode())
        written.append(page)
    return written


def blocks(text: str) -> list[str]:
    """The parts that a page shows, as STUDY/PART."""
    return [found[1] for found in _BLOCK.finditer(text)]


def filled(text: str, data: Path) -> str:
    """The page with every block made anew."""
    return _BLOCK.sub(lambda found: _block(found[1], data), text)


def _block(key: str, data: Path) -> str:
    part = by_key(key)
    sheet = Sheet.of(part, data)
    lines = [_wrapped(f"**{part.title}** ({part.source}). {part.note}"), "", sheet.markdown()]
    if chart(sheet) is not None:
        lines += [f"![{part.title}]({image(part)})", ""]
    study, name = part.source_of_runs.key.split("/")
    lines += [*filter(None, [_wrapped(sheet.facts())]), f"`fedmos reproduce {study} --part {name}`", ""]
    return f"<!-- reproduce {key} -->\n\n" + "\n".join(lines) + "\n<!-- end -->"


def _wrapped(text: str) -> str:
    return textwrap.fill(text.strip(), 120, break_long_words=False, break_on_hyphens=False)


def image(part: Part) -> str:
    return f"{IMAGES}/{part.study}-{part.name}.svg"


def chart(sheet: Sheet) -> str | None:
    """The curves, each the mean over seeds with their range; None if there is nothing to draw."""
    metric = sheet.part.drawn or next(iter(sheet.part.source_of_runs.table["target"]))
    lines = [line for label, runs in sheet.runs.items() if (line := _line(label, runs, metric)) is not None]
    if not lines:
        return None
    words = f"log10 of {metric}" if metric == "excess" else metric.replace("_", " ")
    return line_chart(lines, title=sheet.part.title, x="round", y=words)


def _line(label: str, runs: Sequence[Run], metric: str) -> Line | None:
    points: dict[int, list[float]] = {}
    for run in runs:
        curve = run.get("curve", {})
        for t, v in zip(curve.get("round", ()), curve.get(metric, ()), strict=False):
            if metric != "excess" or v > 0:
                points.setdefault(t, []).append(math.log10(v) if metric == "excess" else v)
    if len(points) < 2:
        return None
    rounds = sorted(points)
    low, high = ([f(points[t]) for t in rounds] for f in (min, max))
    return Line(label=label, x=rounds, y=[statistics.fmean(points[t]) for t in rounds], low=low, high=high)
