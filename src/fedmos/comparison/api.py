"""`fm.compare` and `fm.tune`."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn

from ..algorithm import Algorithm
from ..core.formatting import format_value
from ..core.validation import none, require
from ..core.validation import seed as seed_rule
from ..data.federated import FederatedData
from ..run.options import options_of
from ..run.spec import RunSpec
from ..selection.selector import Selector
from .outcome import ComparisonResult, TuningResult

if TYPE_CHECKING:
    from ..experiments.progress import ComparisonObserver


def compare(
    methods: Mapping[str, Any],
    *,
    model: nn.Module | Callable[[int], nn.Module],
    data: FederatedData | Callable[[int], FederatedData],
    rounds: int,
    selection: Selector | None = None,
    seeds: int | Iterable[int] = 3,
    target: Mapping[str, Any] | None = None,
    tune: Mapping[str, Any] | None = None,
    metric: str | None = None,
    baseline: str | None = None,
    title: str = "Comparison",
    local_training: bool = True,
    out: str | os.PathLike[str] | None = None,
    **options: Any,
) -> ComparisonResult:
    """Train several methods over several seeds, and tabulate what each needs to reach a target.

    Methods, models, losses and data are Python objects; `fedmos compare` does the same for a configuration file. All
    runs train in this process, and those that differ only in numbers and seeds train as one program (`fm.run_many`).

    Args:
        methods: Maps labels to algorithms, to pairs of algorithm and selection, or to mappings of those arguments of
            `fm.run` in which a method differs, with an algorithm among them. Such a mapping may have a `grid`, which
            maps fields of its algorithm to values that `tune` tries for this method.
        model: The model, or a function of the seed. PyTorch's generator has the seed while the function runs.
        data: The federation, or a function of the seed.
        rounds: Number of rounds of every run.
        selection: Which clients take part, for methods without a selection of their own.
        seeds: How many seeds (0, 1, ...), or a list of them.
        target: A metric and the value to reach, e.g. `{"accuracy": 0.9}`, or `{"accuracy": {"final_of": "FedAvg"}}`
            for the mean final value of a method. None for a table of final values.
        tune: Values to try for fields of the algorithms, e.g. `{"lr": [0.01, 0.1]}`, for every method that has the
            field. It may have `seed` (by default 1000), which must not be among `seeds`; `by`: "rounds" to the target
            or "final" value; `rounds` of a trial; `rows`: "tuned" or "both".
        metric: The metric of the table if there is no target; by default the accuracy, or else the test loss.
        baseline: Label of the method that others are measured against; by default the target's, or else the first.
        title: Title of the report.
        local_training: Whether to add a row of local training alone (`LocalOnly`) where clients have test samples of
            their own. It has the step size and the selection of the first method, and clients are evaluated at the end.
        out: Folder for the runs, the table and the report's data. The same call continues a comparison that was
            interrupted; `fedmos report` reads the folder. None keeps everything in memory.
        options: Further arguments of `fm.run`, the same for all methods.

    Returns:
        The table, the results of all runs, and methods that write the report.

    Raises:
        ValueError: If an argument is invalid, parts of a method do not fit together, or `out` holds something else.
        TypeError: If an argument is none of `fm.run`'s.

    Example:
        >>> made = fm.compare(
        ...     {"FedAvg": fm.FedAvg(lr=0.05), "FedMoS": (fm.FedMoS(lr=0.05), fm.ACS(m=3))},
        ...     model=lambda seed: fm.models.logistic(features=64, seed=seed),
        ...     data=data,
        ...     selection=fm.Uniform(m=3),
        ...     seeds=[0, 1],
        ...     target={"accuracy": 0.5},
        ...     rounds=5,
        ...     local_steps=2,
        ...     batch_size=8,
        ... )
        >>> [row.label for row in made.table.results], len(made.results["FedMoS"])
        (['FedAvg', 'FedMoS'], 2)
    """
    from ..experiments.captions import caption
    from ..experiments.object_compare import compare_objects, text_of
    from ..experiments.object_plan import plan

    folder = _folder("compare", out)
    made = plan(
        methods,
        {"model": model, "data": data, "rounds": rounds, **options},
        selection=selection,
        seeds=seeds,
        tune=tune,
        target=target,
        metric=metric,
        baseline=baseline,
        title=title,
        local_training=local_training,
    )
    table, results = compare_objects(made, folder, _observer())
    return ComparisonResult(
        title=title,
        note=caption(made),
        table=table,
        results=results,
        folder=folder,
        description=text_of(made),
        federation=made.of_seed("data", made.data, made.seeds[0]),
    )


def tune(
    algorithm: Algorithm,
    grid: Mapping[str, Iterable[float]],
    *,
    model: nn.Module | Callable[[int], nn.Module],
    data: FederatedData | Callable[[int], FederatedData],
    selection: Selector,
    rounds: int,
    seed: int = 1000,
    target: Mapping[str, float] | None = None,
    metric: str | None = None,
    by: str | None = None,
    out: str | os.PathLike[str] | None = None,
    **options: Any,
) -> TuningResult:
    """Choose values for fields of an algorithm from a grid, by one run for each combination.

    Args:
        algorithm: The algorithm; fields that the grid does not name keep their values.
        grid: Values to try, by field.
        model: The model, or a function of the seed.
        data: The federation, or a function of the seed.
        selection: Which clients take part.
        rounds: Maximum number of rounds of a trial.
        seed: Seed of the trials. Measure the result on other seeds.
        target: A metric and the value to reach, e.g. `{"accuracy": 0.9}`; trials end there.
        metric: The metric to judge by if there is no target; by default the accuracy, or else the test loss.
        by: "rounds", the first to reach the target, or "final", the best final value; by default "rounds" if there is
            a target.
        out: Folder for the trials, where interrupted ones continue; None keeps everything in memory.
        options: Further arguments of `fm.run`.

    Returns:
        The algorithm with the best values, and all points that were tried. Of equally good points, it is the one with
        the smallest values.

    Raises:
        ValueError: If an argument is invalid, or the algorithm has no such field.

    Example:
        >>> best, tried = fm.tune(
        ...     fm.FedProx(lr=0.1, mu=0.1), {"lr": [0.01, 0.1], "mu": [0.0, 0.1]}, model=model, data=data,
        ...     selection=fm.Uniform(m=3), rounds=3, local_steps=2, batch_size=8,
        ... )
        >>> best.lr, len(tried)
        (0.1, 4)
    """
    from ..experiments.object_compare import tune_objects
    from ..experiments.object_plan import numbers, plan
    from ..experiments.objects import with_fields

    if not isinstance(algorithm, Algorithm):
        raise ValueError(f"tune: 'algorithm' must be a fedmos.Algorithm, got {format_value(algorithm)}")
    if not isinstance(grid, Mapping) or not grid:
        raise ValueError(f"tune: 'grid' must map fields to values, got {format_value(grid)}; use {{'lr': [...]}}")
    listed = {name: numbers("tune: 'grid'", name, values) for name, values in grid.items()}
    with_fields(algorithm, {name: values[0] for name, values in listed.items()}, "tune")
    require("tune", "seed", seed, seed_rule | none)
    label, folder = type(algorithm).__name__, _folder("tune", out)
    made = plan(
        {label: {"algorithm": algorithm, "selection": selection, "grid": listed}},
        {"model": model, "data": data, "rounds": rounds, **options},
        caller="tune",
        seeds=[],
        tune={"seed": None if seed is None else int(seed), "by": by},
        target=target,
        metric=metric,
        title=f"Tuning of {label}",
    )
    chosen, _ = tune_objects(made, folder, _observer())
    found = chosen[label]
    return TuningResult(with_fields(algorithm, found.values, "tune"), found.tried)


def _folder(owner: str, out: Any) -> Path | None:
    """Return the option `out`, which is that of a run."""
    given: str | os.PathLike[str] | None = options_of(RunSpec)["out"].checked(owner, "out", out)
    return None if given is None else Path(given)


def _observer() -> ComparisonObserver:
    """Print a line about each method on a terminal."""
    from ..experiments.progress import ComparisonObserver, LineObserver

    if not sys.stderr.isatty():
        return ComparisonObserver()
    return LineObserver(lambda line: print(line, file=sys.stderr))
