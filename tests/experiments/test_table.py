"""Tables of comparisons."""

import csv
import io
import itertools
import json
import math
import re
import statistics
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console

import fedmos as fm
from fedmos.cli.compare import _rich_table
from fedmos.config import schema as config
from fedmos.experiments.captions import interval_note, notes
from fedmos.experiments.compare import compare
from fedmos.experiments.progress import LineObserver, LiveTable, last_record
from fedmos.experiments.seed_statistics import MethodResult, final_mean, ratio
from fedmos.experiments.table import ComparisonTable
from fedmos.experiments.table_formats import as_latex, as_markdown
from fedmos.report.curves import curve
from helpers import comparisons
from helpers.histories import history


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    out = tmp_path_factory.mktemp("comparison")
    return out, compare(comparisons.settings(), out, workers=1)


def close(a, b):
    if a is None or b is None:
        return a is None and b is None
    return math.isclose(a, b, rel_tol=1e-12)


def test_numbers_are_those_of_the_metrics_files(done):
    out, table = done
    written = json.loads((out / "table.json").read_text())
    assert written == table.to_dict()
    for number, (method, row) in enumerate(zip(comparisons.METHODS, written["methods"], strict=True)):
        should = comparisons.expected(out, method, number, "train_loss", 2.1, [0, 1, 2])
        for name, values in should["per_seed"].items():
            assert all(map(close, row["per_seed"][name], values)), (method["label"], name)
            assert close(row["mean"][name], should["mean"][name])
            assert close(row["std"][name], should["std"][name])
    assert written["methods"][0]["reached"] == 3


def test_a_target_never_reached_is_said_so_everywhere(done):
    out, table = done
    cells = table.cells()[2]
    assert cells[0] == "hopeless"
    assert cells[2:7] == ["not reached"] * 5
    assert cells[9:] == ["not reached"] * 3
    written = json.loads((out / "table.json").read_text())["methods"][2]
    assert written["reached"] == 0
    assert written["mean"]["rounds"] is None
    assert set(written["speed_up"].values()) == {None}
    assert "not reached" in (out / "table.md").read_text()
    assert "not reached" in (out / "table.tex").read_text()
    line = list(csv.DictReader(io.StringIO((out / "table.csv").read_text())))[2]
    assert (line["reached"], line["mean_rounds"]) == ("0", "")


def test_speed_ups_are_ratios_of_means_over_pairs_of_seeds(done):
    out, _ = done
    base, other = (json.loads((out / "table.json").read_text())["methods"][i] for i in (0, 1))
    for name in ("rounds", "megabytes", "seconds"):
        a, b = base["per_seed"][name], other["per_seed"][name]
        found = other["speed_up"][name]
        assert math.isclose(found["value"], sum(a) / sum(b))
        # With three seeds, the bootstrap has 27 equally likely samples: its quantiles are among them.
        all_ratios = sorted(
            sum(a[i] for i in draw) / sum(b[i] for i in draw) for draw in itertools.product(range(3), repeat=3)
        )
        assert found["low"] == pytest.approx(all_ratios[0])  # 1/27 > 2.5 %
        assert found["high"] == pytest.approx(all_ratios[-1])
    assert {name: r["value"] for name, r in base["speed_up"].items()} == {"rounds": 1, "megabytes": 1, "seconds": 1}


def test_the_worst_served_clients_are_in_the_table(done):
    out, table = done
    folders = [out / "runs" / f"1-lr0.1-seed{seed}" for seed in (0, 1, 2)]
    worst = [fm.Result.load(folder).info["client_accuracy"]["worst_tenth"] for folder in folders]
    written = json.loads((out / "table.json").read_text())["methods"][1]
    assert written["per_seed"]["worst_clients"] == worst
    assert close(written["mean"]["worst_clients"], sum(worst) / 3)
    column = [c.heading for c in table.columns()].index("accuracy of the worst 10 % of clients")
    assert table.cells()[1][column] == f"{statistics.mean(worst):.3f} ± {statistics.stdev(worst):.3f}"


@pytest.mark.extended
def test_the_bootstrap_interval_is_the_same_each_time_and_covers():
    rng = np.random.default_rng(1)
    hits = 0
    for _ in range(200):
        own = rng.normal(10, 1, 20)
        pair = dict(enumerate(2 * own + rng.normal(0, 2, 20))), dict(enumerate(own))
        found = ratio(*pair)
        assert found == ratio(*pair)
        hits += found.low <= 2 <= found.high
    assert 0.88 <= hits / 200 <= 0.99


def test_ratios_without_pairs():
    assert ratio({0: 1.0}, {1: 1.0}) is None
    assert ratio({0: None}, {0: 1.0}) is None
    assert ratio({0: 3.0, 1: None}, {0: 2.0, 1: 1.0}) == (1.5, None, None, 1)


def table(**rows):
    return ComparisonTable(
        metric="accuracy",
        target=0.5,
        baseline="base",
        results=[MethodResult(label=k, lr=None, runs=dict(enumerate(v))) for k, v in rows.items()],
    )


def test_fewer_than_three_seeds_have_no_interval():
    assert ratio({0: 8.0, 1: 9.0}, {0: 7.0, 1: 8.0}) == (17 / 15, None, None, 2)
    runs = [history([0.1, 0.6]), history([0.1, 0.1, 0.6]), history([0.1, 0.6])]
    two, three = (table(base=runs[:n], fast=[history([0.6])] * n) for n in (2, 3))
    assert two.cells()[1][-1] == "2.50×"
    assert interval_note(two) == (
        "Speed-ups have no interval, which needs 3 seeds or more in which both methods reach the target."
    )
    assert three.cells()[1][-1] == "2.33× (2.00 to 3.00)"
    assert interval_note(three) == "In brackets, 95 % bootstrap intervals over seeds."
    assert interval_note(table(base=runs)) == ""
    some = table(base=runs, fast=[history([0.6])] * 3, half=[history([0.6]), history([0.6]), history([0.1])])
    assert interval_note(some) == (
        "In brackets, 95 % bootstrap intervals over seeds. An interval needs 3 seeds or more in which both methods "
        "reach the target."
    )


def test_local_training_alone_has_no_global_model():
    """Its global model is the initial one, which may even reach a low target: no cell shows its accuracy."""
    made = table(base=[history([0.1, 0.6])], alone=[history([0.7, 0.7])])
    infos = {0: {"algorithm": "LocalOnly(lr=0.1)", "client_accuracy": {"mean": 0.8, "samples": "test"}}}
    alone = replace(made.results[1], infos=infos)
    made = replace(made, results=[made.results[0], alone])
    headings = [column.heading for column in made.columns()]
    cells = dict(zip(headings, made.cells()[1], strict=True))
    assert cells.pop("method") == "alone"
    assert cells.pop("mean accuracy of clients") == "0.800"
    assert set(cells.values()) == {"–"}
    assert notes(made) == "alone has no global model, so cells about it are empty (–)."
    assert made.to_dict()["methods"][1]["reached"] == 0
    assert curve(alone, "accuracy").rounds == []
    assert curve(made.results[0], "accuracy").rounds == [1, 2]
    assert alone.trains("personal_accuracy")


@pytest.mark.parametrize("width", [60, 80, 200])
def test_the_table_of_a_terminal_breaks_no_word(width):
    runs = [history([0.1, 0.6]), history([0.1, 0.1, 0.6]), history([0.1, 0.6])]
    made = table(base=runs, **{"another method": runs})
    drawn = Console(width=width, record=True, file=io.StringIO())
    drawn.print(_rich_table(comparisons.settings(), made, width))
    text = drawn.export_text()
    assert all(len(line) <= width for line in text.splitlines())
    said, words = " ".join(text.split()), set(re.findall(r"[\w.]+", text))
    for column in made.columns(brief=True):
        assert column.heading in said or set(re.findall(r"[\w.]+", column.heading)) <= words
    assert ("No room here for:" in said) == (width < 200)


def test_some_seeds_reach_it():
    made = table(base=[history([0.1, 0.6]), history([0.1, 0.6])], half=[history([0.6]), history([0.1, 0.2])])
    headings = [c.heading for c in made.columns()]
    assert headings[1] == "rounds to accuracy 0.5"
    base, half = made.cells()
    assert base[1:5] == ["2 ± 0", "2.00 ± 0.00", "4.00 ± 0.00", "6.00 ± 0.00"]
    assert half[1] == "1 (1 of 2 reached it)"
    assert half[-1] == "2.00× (1 of 2 seeds)"
    missing = table(base=[history([0.1])], other=[history([0.6])])
    assert missing.cells()[1][-1] == "baseline not reached"


def test_values_that_are_not_finite():
    made = table(base=[history([0.6]), history([0.6])], off=[history([0.6, math.nan]), history([0.6, math.inf])])
    assert "nan ± nan" in made.cells()[1]
    off = made.to_dict()["methods"][1]
    assert (off["per_seed"]["final"], off["mean"]["final"], off["std"]["final"]) == ([None, None], None, None)
    with pytest.raises(ValueError, match="Cannot take the final accuracy of off for a target because it is nan"):
        final_mean(made.results[1], "accuracy")


def test_no_clock_no_time():
    made = table(base=[history([0.6], clock=False)], other=[history([0.6], clock=False)])
    assert not any("second" in c.heading or "time" in c.heading for c in made.columns())


def test_formats_escape():
    made = table(base=[history([0.6])], **{"a|b_50%": [history([0.6])]})
    assert r"a\|b\_50%" in as_markdown(made)
    assert r"a|b\_50\%" in as_latex(made)
    assert "\n{[}a] {*} & " in as_latex(table(base=[history([0.6])], **{"[a] *": [history([0.6])]}))
    assert all(line.count(" & ") == len(made.columns()) - 1 for line in as_latex(made).splitlines() if "&" in line)


def test_the_final_value_of_a_baseline_as_a_target(tmp_path):
    """GHBM's Table 3: what each method needs to reach what FedAvg has at the end."""
    methods = comparisons.METHODS[:2]
    target = {"train_loss": {"final_of": "FedAvg"}}
    made = comparisons.run(tmp_path, target=target, methods=methods, system=None, seeds=[0, 1])
    finals = [comparisons.lines(tmp_path / "runs" / f"0-lr0.05-seed{s}")[-1]["train_loss"] for s in (0, 1)]
    assert made.target == sum(finals) / 2
    assert made.baseline == "FedAvg"
    assert all(len(run) == 8 for row in made.results for run in row.runs.values())
    for number, row in enumerate(made.to_dict()["methods"]):
        should = comparisons.expected(tmp_path, methods[number], number, "train_loss", made.target, [0, 1])
        assert row["per_seed"]["rounds"] == should["per_seed"]["rounds"]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"baseline": "FedAvgg"}, "baseline: must be the label of a method, got 'FedAvgg' (did you mean 'FedAvg'?)"),
        (
            {"target": {"accuracy": {"final_of": "x"}}},
            "target.accuracy.final_of: must be the label of a method, got 'x'",
        ),
        ({"target": {"accuracy": {"final": "FedAvg"}}}, "target.accuracy"),
        ({"target": {"accuracy": {"final_of": 3}}}, "target.accuracy.final_of: must be a text"),
        ({"target": {"acc": {"final_of": "FedAvg"}}}, "target: must name one of"),
        ({"target": {"accuracy": 2.0}}, "target: must have for accuracy a number that is in [0, 1]"),
        (
            {"target": {"accuracy": {"final_of": "FedAvg"}}, "tune": {"lr": [0.1], "seed": 9}},
            "tune.by: must be 'final' where the target is what a method has at the end",
        ),
    ],
)
def test_targets_and_baselines_that_are_refused(change, sentence):
    with pytest.raises(config.ConfigError) as error:
        comparisons.settings(**change)
    assert sentence in str(error.value)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"eval_every": 2}, "eval_every"),
        ({"rounds": 7}, "rounds"),
        ({"data": comparisons.SETTINGS["data"] | {"clients": 21}}, "data"),
        ({"methods": comparisons.METHODS[1:]}, "methods.0.algorithm"),
    ],
)
def test_a_folder_with_other_runs_is_left_as_it_is(done, change, field):
    out, _ = done
    before = {path: path.read_bytes() for path in out.glob("*.*")}
    with pytest.raises(ValueError, match=f"Cannot continue the comparison in .* because its '{field}' is"):
        comparisons.run(out, **change)
    assert {path: path.read_bytes() for path in out.glob("*.*")} == before


def test_more_rounds_seeds_and_methods_are_played_in_the_same_folder(tmp_path):
    first = {"methods": comparisons.METHODS[:1], "seeds": [0], "rounds": 2}
    comparisons.run(tmp_path, **first)
    made = comparisons.run(tmp_path, methods=comparisons.METHODS[:2], seeds=[0, 1], rounds=3, title="another")
    assert [[len(run) for run in row.runs.values()] for row in made.results] == [[3, 3], [3, 3]]


def test_what_is_told_of_a_method_that_diverged_at_once(tmp_path):
    said = []
    methods = [comparisons.METHODS[0] | {"algorithm": {"name": "FedAvg", "lr": 1e38}}]
    comparisons.compare(comparisons.settings(methods=methods, seeds=[0]), tmp_path, LineObserver(said.append))
    assert said == ["FedAvg: rounds to train_loss 2.1: not reached; final train_loss not measured"]


def test_progress_lines_and_the_live_table(tmp_path):
    said = []
    watch = LineObserver(said.append)
    watch.tuned("a", "0.1")
    watch.trained("a", "well")
    assert said == ["a: step size 0.1", "a: well"]
    board = LiveTable("title [/b]", ["a", "b"], 9, "accuracy")
    (tmp_path / "metrics.jsonl").write_text('{"round": 3, "accuracy": 0.25}\n{"round": 4, "accur')
    assert last_record(tmp_path)["round"] == 3
    assert last_record(tmp_path / "none") is None
    board.training("a", [tmp_path])
    from rich.console import Console

    console = Console(width=100, record=True, file=io.StringIO())
    console.print(board.table())
    board.trained("a", "well")
    console.print(board.table())
    text = console.export_text()
    for words in ("title [/b]", "3 of 9", "0.250", "trains", "waits", "well", "done"):
        assert words in text
