"""Write README.md and images/ of this folder from a comparison of every algorithm.

fedmos compare examples/algorithms.toml --out runs/algorithms
python docs/algorithms/build.py runs/algorithms
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

from fedmos.config import schema as config
from fedmos.report.curves import chart
from fedmos.report.study import read_study

HERE = Path(__file__).parent
CONFIG = HERE.parent.parent / "examples" / "algorithms.toml"


def main() -> None:
    settings = config.load(config.CompareConfig, CONFIG)
    table = read_study([Path(sys.argv[1])]).table
    name = {method.label: method.algorithm.name for method in settings.methods}

    images = HERE / "images"
    images.mkdir(exist_ok=True)
    for kind in dict.fromkeys(name.values()):
        results = [one for one in table.results if one.label == table.baseline or name[one.label] == kind]
        drawn = chart(replace(table, results=results), settings.title)
        assert drawn is not None
        (images / f"{kind}.svg").write_text(drawn, encoding="utf-8")

    wanted = [c for c in table.columns() if not c.detail and not c.heading.startswith("speed-up")]
    lines = ["| " + " | ".join(c.heading for c in wanted) + " |", "|---" + "|---:" * (len(wanted) - 1) + "|"]
    for result in table.results:
        link = f"[{result.label}]({name[result.label].lower()}.md)"
        lines.append("| " + " | ".join([link, *(c.cell(result) for c in wanted[1:])]) + " |")
    (HERE / "README.md").write_text(PAGE.format(table="\n".join(lines), **facts(settings)), encoding="utf-8")


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
deviation. The problem is small and client selection adds much noise: the table shows that every method trains
and what it costs; it is not a ranking. FedHBM's final spread comes from one seed of three that diverged after it had
reached the target: the step size that was best on the tuning seed is too large. [Choosing](../choosing.md) recommends
methods.

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
