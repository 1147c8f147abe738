"""What `fm.compare` and `fm.tune` return."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ..algorithm import Algorithm
from ..data.federated import FederatedData
from ..run.result import Result

if TYPE_CHECKING:
    from ..experiments.seed_statistics import GridTrial
    from ..experiments.table import ComparisonTable


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class ComparisonResult:
    """The table of a comparison and the results of its runs. `print` shows the table; a notebook draws it.

    Example:
        >>> methods = {"FedAvg": fm.FedAvg(lr=0.1), "FedMoS": fm.FedMoS(lr=0.1)}
        >>> made = fm.compare(
        ...     methods, model=model, data=data, selection=fm.Uniform(m=3), seeds=2, rounds=3, local_steps=2
        ... )
        >>> path = made.report("report.html")
    """

    title: str
    note: str
    """How the numbers of the table were obtained."""
    table: ComparisonTable
    results: dict[str, list[Result]]
    """The results of each row of the table by its label, in the order of the seeds."""
    folder: Path | None
    """The folder of the comparison; None if it is in memory only."""
    description: str = field(repr=False)
    """The comparison as TOML to read."""
    federation: FederatedData = field(repr=False)
    """The data of the first seed, whose split the report shows."""

    def __str__(self) -> str:
        from ..experiments.captions import notes
        from ..experiments.table_formats import as_markdown

        return f"{as_markdown(self.table)}\n{self.note} {notes(self.table)}".rstrip()

    def __repr__(self) -> str:
        runs = sum(map(len, self.results.values()))
        return f"ComparisonResult({self.title!r}, {len(self.results)} methods, {runs} runs)"

    def _repr_markdown_(self) -> str:
        return str(self)

    def report(self, path: str | os.PathLike[str] = "report.html") -> Path:
        """Write the HTML report, one file that needs no network, and return its path.

        Args:
            path: The file to write.
        """
        from ..report.checks import ReportSource
        from ..report.page import html
        from ..report.study import ReportStudy
        from ..storage.files import replace_file, storage_errors

        target = None if self.table.target is None else (self.table.metric, self.table.target)
        source = ReportSource(
            folder=self.folder or Path("fm.compare"),
            results=list(self.table.results),
            target=target,
            data=None,
            text=self.description,
            federation=self.federation,
        )
        page = html(ReportStudy(self.title, self.note, self.table, [source]))
        with storage_errors(f"write {path}", "use another name"):
            replace_file(Path(path), page.encode())
        return Path(path)

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write table.md, table.tex, table.csv, table.json and report.html into a folder."""
        from ..experiments.table_formats import write

        Path(folder).mkdir(parents=True, exist_ok=True)
        write(self.table, Path(folder))
        self.report(Path(folder) / "report.html")


class TuningResult(NamedTuple):
    """The best of the algorithms that `fm.tune` tried, and the outcome of each; unpacks as (algorithm, tried)."""

    algorithm: Algorithm
    """The algorithm with the best values of the grid."""
    tried: list[GridTrial]
    """All points of the grid: `values` by field, `rounds` to the target, and the `final` value (None if diverged)."""
