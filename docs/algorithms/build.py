"""Write README.md and images/ of this folder from a comparison of every algorithm.

fedmos compare examples/algorithms.toml --out runs/algorithms
python docs/algorithms/build.py runs/algorithms
"""

from __future__ import annotations

import sys
from pathlib import Path

from fedmos import compare, config
from fedmos.report.figure import line_chart
from fedmos.report.page import curve

HERE = Path(__file__).parent
CONFIG = HERE.parent.parent / "examples" / "algorithms.toml"


def main() -> None:
    settings = config.load(config.CompareConfig, CONFIG)
    rows = compare.compare(settings, Path(sys.argv[1]))
    ((metric, target),) = settings.target.items()
    baseline = rows[0]

    kinds: dict[str, list[compare.Row]] = {}
    for row in rows:
        kinds.setdefault(row.method.algorithm.name, []).append(row)
    images = HERE / "images"
    images.mkdir(exist_ok=True)
    for kind, own in kinds.items():
        shown = own if own[0] is baseline else [baseline, *own]
        lines = [curve(row, metric) for row in shown]
        chart = line_chart(lines, title=settings.title, x="round", y=metric, level=target)
        (images / f"{kind}.svg").write_text(chart, encoding="utf-8")

    headings, cells = compare.table(settings, rows)
    link = {row.method.label: f"[{row.method.label}]({row.method.algorithm.name.lower()}.md)" for row in rows}
    table = ["| " + " | ".join(headings) + " |", "|---" + "|---:" * (len(headings) - 1) + "|"]
    table += ["| " + " | ".join([link[row[0]], *row[1:]]) + " |" for row in cells]
    (HERE / "README.md").write_text(PAGE.format(table="\n".join(table), **facts(settings)), encoding="utf-8")


def facts(settings: config.CompareConfig) -> dict[str, object]:
    assert settings.tune is not None
    return {
        "clients": settings.data.clients,
        "rounds": settings.rounds,
        "steps": settings.local_steps,
        "batch": settings.batch_size,
        "seeds": len(settings.seeds),
        "grid": ", ".join(f"{lr:g}" for lr in settings.tune.lr),
        "tuning": settings.tune.seed,
    }


PAGE = """# The algorithms, side by side

Real handwritten digits, two classes per client, 10 of {clients} clients a round drawn uniformly (weights p_i/Σ_S p),
{steps} local steps of {batch} samples, {rounds} rounds. Every method keeps its default hyper-parameters and takes the
step size among {grid} that ended best on seed {tuning}; the table is over {seeds} other seeds, mean ± standard
deviation. This is a small problem with much noise from selection: it shows that every method trains and what it
costs, and is no ranking. Which method suits which case: [choosing](../choosing.md).

{table}

MB count both directions. The table and the curves on the pages come from
[`examples/algorithms.toml`](../../examples/algorithms.toml):

```sh
fedmos compare examples/algorithms.toml --out runs/algorithms
python docs/algorithms/build.py runs/algorithms
```
"""

if __name__ == "__main__":
    main()
