"""Comparisons whose methods choose their numbers from a grid."""

import json
import math
from types import SimpleNamespace

import pytest

from fedmos.config import schema as config
from fedmos.experiments.captions import caption
from fedmos.experiments.progress import LineObserver
from fedmos.experiments.runner import tuning_runs
from fedmos.experiments.tune import choose, trial_of
from fedmos.report import page
from fedmos.report.study import read_study
from helpers import browser, comparisons, fresh
from helpers.histories import history

METHODS = [
    {"label": "FedAvg", "algorithm": {"name": "FedAvg", "lr": 0.01}, "selection": {"name": "Uniform", "m": 5}},
    {
        "label": "FedProx",
        "algorithm": {"name": "FedProx", "lr": 0.01, "mu": 0.5},
        "selection": {"name": "Uniform", "m": 5},
        "grid": {"mu": [1.0, 0.0]},
    },
]
CHANGES = {
    "methods": METHODS,
    "system": None,
    "seeds": [0],
    "rounds": 6,
    "tune": {"lr": [0.1, 0.01, 1e38], "seed": 9, "by": "final", "rounds": 4, "rows": "both"},
    "light": True,
    "engine": "batched",
}


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    out, said = tmp_path_factory.mktemp("tuned"), []
    return out, comparisons.compare(comparisons.settings(**CHANGES), out, LineObserver(said.append)), said


def last_loss(folder):
    return comparisons.lines(folder)[-1]["train_loss"]


def test_each_method_takes_the_best_point_of_its_grid(done):
    out, table, said = done
    assert [row.label for row in table.results] == ["FedAvg", "FedProx", "FedAvg, tuned", "FedProx, tuned"]
    assert [row.lr for row in table.results[:2]] == [0.01, 0.01]
    avg, prox = (row.tuned for row in table.results[2:])
    tried = {lr: last_loss(out / "tuning" / f"0-lr{lr:g}-seed9") for lr in (0.1, 0.01)}
    assert avg.values == {"lr": min(tried, key=tried.get)} == {"lr": 0.1}
    assert {one.values["lr"]: one.final for one in avg.tried} == tried | {1e38: None}  # which diverged
    assert len(prox.tried) == 6
    tried = {
        (lr, mu): last_loss(out / "tuning" / f"1-lr{lr:g}-mu{mu:g}-seed9") for lr in (0.1, 0.01) for mu in (1.0, 0.0)
    }
    assert tuple(prox.values.values()) == min(tried, key=tried.get)
    assert len(comparisons.lines(out / "tuning" / "0-lr0.1-seed9")) == 4
    assert f"FedProx, tuned: step size {prox}" in said
    for row in table.results:
        name = "-".join(f"{k}{v:g}" for k, v in (row.tuned.values if row.tuned else {"lr": row.lr}).items())
        number = ["FedAvg", "FedProx"].index(row.label.split(",")[0])
        for seed, final in row.final("train_loss").items():
            records = comparisons.lines(out / "runs" / f"{number}-{name}-seed{seed}")
            assert len(records) == 6
            assert records[-1]["train_loss"] == final


def test_a_choice_at_the_edge_of_the_grid_is_told(done):
    out, table, _ = done
    assert table.results[2].tuned.edges == {}
    mu = table.results[3].tuned.values["mu"]
    assert table.results[3].tuned.edges == {"mu": {0.0: "smallest", 1.0: "largest"}[mu]}
    cells = table.cells()
    assert [line[1] for line in cells[:3]] == ["0.01", "0.01", "0.1"]
    assert cells[3][1] == f"0.1, mu {mu:g} (mu {table.results[3].tuned.edges['mu']} tried)"
    written = json.loads((out / "table.json").read_text())["methods"][3]["tuned"]
    assert written["values"] == table.results[3].tuned.values
    assert written["edges"] == table.results[3].tuned.edges
    assert len(written["tried"]) == 6


def test_tuned_methods_are_measured_against_the_tuned_baseline(done):
    _, table, _ = done
    assert [table.reference(row) for row in table.results] == ["FedAvg", "FedAvg", "FedAvg, tuned", "FedAvg, tuned"]
    rounds = [table.costs(row.label, "rounds") for row in table.results]
    assert all(v is not None for by_seed in rounds[2:] for v in by_seed.values())
    found = table.speed_up(table.results[3], "rounds").value
    assert math.isclose(found, sum(rounds[2].values()) / sum(rounds[3].values()))
    assert table.cells()[2][-1] == "baseline"


def test_another_baseline_is_that_of_tuned_methods_too(done):
    made = read_study([done[0]], baseline="FedProx")
    labels = ["FedProx", "FedProx", "FedProx, tuned", "FedProx, tuned"]
    assert [made.table.reference(row) for row in made.results] == labels
    assert "Tuned methods are measured against FedProx, tuned." in page.html(made)
    made = read_study([done[0]], baseline="FedProx, tuned")
    assert {made.table.reference(row) for row in made.results} == {"FedProx, tuned"}


def test_the_report_shows_what_was_tried(done):
    out, table, _ = done
    made = read_study([out])
    assert made.table.cells() == table.cells()
    text = page.html(made)
    for words in ("<h2>Tuning</h2>", 'data-all="tuned">Tuned', "mu 1", "diverged", "chosen", "against FedAvg, tuned."):
        assert words in text
    assert "within 4 rounds on seed 9 (some with a grid of their own)" in caption(comparisons.settings(**CHANGES))


def result(values, interrupted=False):
    made = history(values)
    return SimpleNamespace(
        history=made,
        interrupted=interrupted,
        rounds_to=lambda metric, level: None if (hit := made.first(metric, level)) is None else hit.round,
    )


def best_of(settings, results):
    """The choice from the grid of the first method, whose runs had the given results."""
    runs = tuning_runs(settings, settings.methods[0])
    trials = [trial_of(settings, run, result, settings.metric) for run, result in zip(runs, results, strict=True)]
    return choose(settings.tune, settings.metric, trials)


@pytest.mark.parametrize(
    ("by", "runs", "lr"),
    [
        ("rounds", [[0.1, 0.6, 0.6], [0.6, 0.1, 0.1], [0.1, 0.1, 0.9]], 0.2),
        ("final", [[0.1, 0.6, 0.6], [0.6, 0.1, 0.1], [0.1, 0.1, 0.9]], 0.3),
        (
            "rounds",
            [[0.1, 0.2], [0.1, 0.3], [0.1, 0.3]],
            0.2,
        ),  # none reaches it: the best at the end, the smaller first
        ("final", [[0.4, 0.4], [0.4, 0.4], None], 0.1),
        ("rounds", [None, [0.1, 0.1], None], 0.2),
    ],
)
def test_what_is_best(by, runs, lr):
    settings = comparisons.settings(
        methods=METHODS[:1], target={"accuracy": 0.5}, tune={"lr": [0.1, 0.2, 0.3], "seed": 9, "by": by}
    )
    results = [result([0.1], interrupted=True) if run is None else result(run) for run in runs]
    chosen = best_of(settings, results)
    assert chosen.values == {"lr": lr}
    assert chosen.edges == {0.1: {"lr": "smallest"}, 0.2: {}, 0.3: {"lr": "largest"}}[lr]
    assert [one.final is None for one in chosen.tried] == [run is None for run in runs]


def test_a_run_that_reached_the_target_and_diverged_has_no_final_value():
    settings = comparisons.settings(
        methods=METHODS[:1], target={"accuracy": 0.5}, tune={"lr": [0.1, 0.2], "seed": 9, "by": "final"}
    )
    results = [result([0.1, 0.6]), result([0.7, 0.9], interrupted=True)]
    chosen = best_of(settings, results)
    assert chosen.values == {"lr": 0.1}
    assert chosen.tried[1] == ({"lr": 0.2}, 1, None)


@pytest.mark.parametrize("runs", [[[0.1], [math.nan]], [[math.nan], [0.1]]])
def test_nan_is_the_worst(runs):
    settings = comparisons.settings(
        methods=METHODS[:1], target={"accuracy": 0.5}, tune={"lr": [0.1, 0.2], "seed": 9, "by": "final"}
    )
    chosen = best_of(settings, [result(run) for run in runs])
    assert chosen.values == {"lr": [0.1, 0.2][runs.index([0.1])]}


def method(**changes):
    return [METHODS[0], METHODS[1] | changes]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"tune": None}, "methods.1.grid: must be left out where there is no tune"),
        ({"methods": method(grid={})}, "methods.1.grid: must be a table with a list of numbers"),
        ({"methods": method(grid={"mu": [0.1, 0.1]})}, "methods.1.grid.mu: must be different in each place"),
        ({"methods": method(grid={"mu": ["a"]})}, "methods.1.grid.mu.0: must be a number, got 'a'"),
        ({"methods": method(grid={"name": [1]})}, "methods.1.grid: must not have 'name'"),
        (
            {"methods": method(grid={"mu": list(range(400))})},
            "methods.1.grid: must have at most 1,000 combinations, got 1,200",
        ),
        ({"methods": method(grid={"nu": [1.0]})}, "methods.1.algorithm.nu: FedProx has no such field"),
        ({"methods": method(grid={"mu": [0.1, -1.0]})}, "methods.1.algorithm.mu: must be ≥ 0, got -1"),
        ({"methods": method(algorithm={"name": "FedProx"})}, "methods.1.algorithm: FedProx needs lr, mu"),
        ({"methods": method(label="FedAvg, tuned")}, "methods.label: must not be 'FedAvg, tuned'"),
        ({"tune": CHANGES["tune"] | {"rounds": 7}}, "tune.rounds: must be ≤ rounds (6), got 7"),
        ({"tune": CHANGES["tune"] | {"rows": "all"}}, "tune.rows: must be one of 'tuned', 'both', got 'all'"),
        ({"light": 1}, "light: must be true or false, got 1"),
    ],
)
def test_what_is_refused(change, sentence):
    with pytest.raises(config.ConfigError) as error:
        comparisons.settings(**CHANGES | change).check()
    assert sentence in str(error.value)


def test_comparing_needs_no_packages_of_the_command_line():
    code = "import sys; sys.modules['rich'] = sys.modules['typer'] = None; import fedmos.experiments.compare, fedmos.config.schema"
    done = fresh.run(code)
    assert done.returncode == 0, done.stderr


@pytest.mark.browser
@browser.needs_browser
def test_tuned_methods_are_drawn_first_and_others_on_request(done, tmp_path):
    (tmp_path / "report.html").write_text(page.html(read_study([done[0]])), "utf-8")
    found = browser.ask(
        tmp_path / "report.html",
        """
        const drawn = () => ["plot-train_loss", "plot-served"].map((id) =>
          document.querySelectorAll(`#${id} .scatterlayer .trace`).length);
        answer.first = drawn();
        document.querySelector("[data-all=show]").click(); await settled();
        answer.all = drawn();
        document.querySelector("[data-all=given]").click(); await settled();
        answer.given = [drawn(), [...document.querySelectorAll("input[name=method]")].map((box) => box.checked)];
        """,
    )
    assert found["faults"] == []
    assert found["first"] == [2, 2]
    assert found["all"] == [4, 4]
    assert found["given"] == [[2, 2], [True, True, False, False]]
