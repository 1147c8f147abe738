"""The pages of docs/reproduction: tables and figures are generated from records, the text around them stays."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Sequence
from pathlib import Path

from ..experiments.reproduce.exam import summary
from ..experiments.reproduce.record import RunRecord
from ..experiments.reproduce.results_table import ResultsTable, wrapped
from ..experiments.reproduce.study import StudyPart, by_key, load, names
from ..storage.files import replace_file
from .figure import Line, line_chart

_BLOCK = re.compile(r"<!-- reproduce ([\w./-]+) -->\n.*?<!-- end -->", re.DOTALL)
_SUMMARY = re.compile(r"<!-- summary -->\n.*?<!-- end -->", re.DOTALL)
DATA, IMAGES = "data", "images"


def build(docs: Path) -> list[Path]:
    """Regenerate the pages in a folder from the records in its sub-folder `data`, and return the files written."""
    pages = sorted(page for page in docs.glob("*.md") if _BLOCK.search(page.read_text("utf-8")))
    if not pages:
        raise ValueError(f"Cannot make pages in {docs} because none there has a block for a study")
    written = []
    for page in pages:
        text = page.read_text("utf-8")
        for key in blocks(text):
            table = ResultsTable.of(by_key(key), docs / DATA)
            drawing = chart(table)
            if drawing is not None:
                (docs / IMAGES).mkdir(exist_ok=True)
                replace_file(docs / image(table.part), drawing.encode())
                written.append(docs / image(table.part))
        replace_file(page, filled(text, docs / DATA).encode())
        written.append(page)
    return written


def build_exam(page: Path) -> list[Path]:
    """Regenerate the page of the exams from the records in the folder beside it that has its name."""
    text = page.read_text("utf-8")
    if not _BLOCK.search(text):
        raise ValueError(f"Cannot make {page} because it has no block for an exam")
    replace_file(page, exam_page(text, page.with_suffix("")).encode())
    return [page]


def exam_page(text: str, data: Path) -> str:
    """Return the text of the exams' page with all blocks and the summary regenerated."""
    table = summary([load(name) for name in names("exams")], data)
    return _SUMMARY.sub(f"<!-- summary -->\n\n{table}\n<!-- end -->", filled(text, data))


def blocks(text: str) -> list[str]:
    """Return the parts that a page shows, as STUDY/PART."""
    return [found[1] for found in _BLOCK.finditer(text)]


def filled(text: str, data: Path) -> str:
    """Return the text of a page with all blocks regenerated."""
    return _BLOCK.sub(lambda found: _block(found[1], data), text)


def _block(key: str, data: Path) -> str:
    part = by_key(key)
    table = ResultsTable.of(part, data)
    lines = [wrapped(f"**{part.title}** ({part.source}). {part.note}"), "", table.markdown()]
    if chart(table) is not None:
        lines += [f"![{part.title}]({image(part)})", ""]
    lines += [wrapped(f"*{label}*: {words}") + "\n" for label, words in part.why.items()]
    study, name = part.source_of_runs.key.split("/")
    command = "reproduce" if part.agreement is None else "exam"
    facts = wrapped(table.facts())
    lines += [*([facts, ""] if facts else []), f"`fedmos {command} {study} --part {name}`", ""]
    return f"<!-- reproduce {key} -->\n\n" + "\n".join(lines) + "\n<!-- end -->"


def image(part: StudyPart) -> str:
    """Return the path of a part's figure, relative to the page."""
    return f"{IMAGES}/{part.study}-{part.name}.svg"


def chart(table: ResultsTable) -> str | None:
    """Return an SVG document of the mean and range over seeds; None if there is nothing to draw."""
    if table.part.agreement is not None:
        return None  # exams are tables of final values
    metric = table.part.drawn or next(iter(table.part.source_of_runs.table["target"]))
    lines = [line for label, runs in table.runs.items() if (line := _line(label, runs, metric)) is not None]
    if not lines:
        return None
    axis = f"log10 of {metric}" if metric == "excess" else metric.replace("_", " ")
    return line_chart(lines, title=table.part.title, x="round", y=axis)


def _line(label: str, runs: Sequence[RunRecord], metric: str) -> Line | None:
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
