"""The report: its numbers, what it refuses, and how it looks in a browser."""

import itertools
import json
import math
import re
import statistics
from html import unescape

import numpy as np
import pytest

import fedmos as fm
from fedmos.experiments.seed_statistics import MethodResult
from fedmos.experiments.table import ComparisonTable
from fedmos.report import page
from fedmos.report.answer import answer
from fedmos.report.elements import asset
from fedmos.report.html_table import outcome_table
from fedmos.report.study import parse_target, read_study
from helpers import comparisons
from helpers.command_line import command_line
from helpers.histories import history

CONFIG = """
rounds = 4
local_steps = 2
batch_size = 4
target = { accuracy = 0.99 }
data = { name = "digits", clients = 20, partition = { name = "ByClass", classes = 2 } }
model = { name = "logistic", features = 64 }
algorithm = { name = "FedAvg", lr = 0.05 }
selection = { name = "Uniform", m = 5 }
"""


def data_of(file):
    return json.loads(re.search(r'id="data">(.*?)</script>', file.read_text("utf-8"), re.S)[1])


def test_curves_are_those_of_the_metrics_files(comparison, written):
    drawn = data_of(written)
    assert drawn["methods"] == [m["label"] for m in comparisons.METHODS]
    assert [m["name"] for m in drawn["metrics"]] == ["train_loss", "train_accuracy", "test_loss", "accuracy"]
    for metric in drawn["metrics"]:
        for number, method in enumerate(comparisons.METHODS):
            runs = [
                comparisons.lines(comparison / "runs" / f"{number}-lr{method['algorithm']['lr']:g}-seed{s}")
                for s in (0, 1, 2)
            ]
            found = metric["curves"][number]
            assert found["rounds"] == list(range(1, 9))
            assert found["seeds"] == [3] * 8
            for i in range(8):
                values = [run[i][metric["name"]] for run in runs]
                spent = [sum(r["bytes_down"] + r["bytes_up"] for r in run[: i + 1]) / 1e6 for run in runs]
                should = {
                    "mean": statistics.mean(values),
                    "low": min(values),
                    "high": max(values),
                    "megabytes": statistics.mean(spent),
                    "seconds": statistics.mean(run[i]["clock"] for run in runs),
                }
                for name, value in should.items():
                    assert math.isclose(found[name][i], value, rel_tol=1e-5), (metric["name"], method["label"], name, i)
    assert [m["target"] for m in drawn["metrics"]] == [2.1, None, None, None]


def test_the_table_is_that_of_the_metrics_files(comparison, written):
    text = written.read_text("utf-8")
    rows = re.findall(r"<tr>(.*?)</tr>", re.search(r'<table id="outcome".*?</table>', text, re.S)[0], re.S)
    cells = [[unescape(c) for c in re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row)] for row in rows]
    for number, method in enumerate(comparisons.METHODS):
        should = comparisons.expected(comparison, method, number, "train_loss", 2.1, [0, 1, 2])
        row = cells[1 + number]
        assert row[0] == method["label"]
        for cell, name, digits in (
            (2, "rounds", 0),
            (3, "megabytes_down", 2),
            (4, "megabytes_up", 2),
            (5, "megabytes", 2),
            (6, "seconds", 1),
        ):
            known = [v for v in should["per_seed"][name] if v is not None]
            if known:
                assert row[cell].startswith(
                    f"{statistics.mean(known):.{digits}f} ± {statistics.stdev(known):.{digits}f}"
                )
            else:
                assert row[cell] == "not reached"
        assert row[7] == f"{should['mean']['final']:.3f} ± {should['std']['final']:.3f}"


def test_participation_is_that_of_the_metrics_files(comparison, written):
    found = data_of(written)["chosen"][0]
    ranked = []
    for seed in (0, 1, 2):
        records = comparisons.lines(comparison / "runs" / f"0-lr0.05-seed{seed}")
        ranked.append(sorted((sum(i in r["cohort"] for r in records) / 8 for i in range(20)), reverse=True))
    assert found["ranks"] == list(range(1, 21))
    assert found["shares"] == pytest.approx([sum(r) / 3 for r in zip(*ranked, strict=True)], rel=1e-5)


def test_the_split(written, comparison):
    found = data_of(written)["split"]
    data = comparisons.settings().data.make(0)
    should = [[i, c, int((data.client(i)[1] == c).sum())] for i in range(20) for c in range(10)]
    assert found["points"] == [p for p in should if p[2]]


def test_it_needs_nothing_else_and_is_small(written):
    text = written.read_text("utf-8")
    assert written.stat().st_size < 3e6
    ours = text.replace(asset("plotly-basic.min.js"), "").replace("http://www.w3.org/2000/svg", "")
    assert "http://" not in ours
    assert "https://" not in ours
    assert "A &lt;small&gt; one" in ours
    assert "<small>" not in ours
    assert "<SCAFFOLD>" not in ours


def test_metrics_of_the_user_have_a_figure(quick, tmp_path):
    quick(out=tmp_path / "run", metrics={"wrong_share": lambda outputs, y: (outputs.argmax(1) != y).float().mean()})
    text = page.html(read_study([tmp_path / "run"]))
    assert 'id="plot-wrong_share"' in text
    assert "final wrong share" in text


def test_how_evenly_clients_are_served(comparison, written):
    folders = [comparison / "runs" / f"0-lr0.05-seed{seed}" for seed in (0, 1, 2)]
    kept = [fm.Result.load(folder).info["client_accuracy"] for folder in folders]
    drawn = data_of(written)["served"][0]
    assert drawn["shares"][::50] == [0, 0.5, 1]
    for end in (0, -1):
        assert drawn["accuracies"][end] == pytest.approx(statistics.mean(one["sorted"][end] for one in kept), rel=1e-5)
    worst = statistics.mean(one["worst_tenth"] for one in kept)
    row = re.search(
        r'<tr><th scope="row">FedAvg</th><td[^>]*>([0-9.]+)</td><td[^>]*>[0-9.]+</td><td[^>]*>([0-9.]+)</td></tr>',
        written.read_text("utf-8"),
    )
    assert row.groups() == (f"{worst:.3f}", f"{statistics.mean(one['mean'] for one in kept):.3f}")


def test_reports_are_the_same_each_time(comparison):
    assert page.html(read_study([comparison])) == page.html(read_study([comparison]))


def test_colours_stand_out_on_light_and_dark_pages():
    def luminance(colour):
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    for colour in page.COLOURS:
        for paper in ("#ffffff", "#14171a"):
            high, low = sorted((luminance(colour), luminance(paper)), reverse=True)
            assert (high + 0.05) / (low + 0.05) >= 3, (colour, paper)


def test_colours_differ_for_readers_who_do_not_tell_red_from_green():
    """In CIELAB, after a simulation of deuteranopia and protanopia (Machado et al., 2009)."""
    simulations = [
        np.eye(3),
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    ]
    to_xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])

    def lab(colour, simulation):
        parts = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
        linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
        xyz = to_xyz @ np.clip(np.array(simulation) @ linear, 0, 1) / np.array([0.9505, 1, 1.089])
        f = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
        return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])

    for simulation in simulations:
        for a, b in itertools.combinations(page.COLOURS, 2):
            assert np.linalg.norm(lab(a, simulation) - lab(b, simulation)) > 15, (a, b)


def test_best_values_are_of_methods_that_reached_the_target_with_every_seed():
    runs = {"slow": [[0.2, 0.8], [0.3, 0.7]], "lucky": [[0.9, 0.9], [0.1, 0.1]], "steady": [[0.6, 0.8], [0.2, 0.7]]}
    rows = [
        MethodResult(label=label, lr=0.1, runs={seed: history(values) for seed, values in enumerate(by_seed)})
        for label, by_seed in runs.items()
    ]
    table = ComparisonTable(metric="accuracy", target=0.5, baseline="slow", results=rows)
    text = outcome_table("What each method needs", table)
    marked = _marked(text)
    assert marked["rounds to accuracy 0.5"] == ["steady"]
    assert marked["MB to accuracy 0.5"] == ["steady"]
    assert marked["final accuracy"] == ["slow", "steady"]


def _marked(text):
    """The methods whose cell is marked as the best, by column."""
    rows = re.findall(r"<tr>(.*?)</tr>", text, re.S)
    headings = re.findall(r"<th[^>]*>(.*?)</th>", rows[0])
    found = {heading: [] for heading in headings}
    for row in rows[1:]:
        cells = re.findall(r"<t[hd]([^>]*)>(.*?)</t[hd]>", row, re.S)
        for heading, (attributes, _) in zip(headings, cells, strict=True):
            if 'class="best' in attributes:
                found[heading].append(cells[0][1])
    return found


@pytest.fixture(scope="module")
def single(tmp_path_factory):
    """Makes a run's folder."""
    base = tmp_path_factory.mktemp("runs")

    def make(name, text=CONFIG, *overrides):
        from fedmos.cli.run import train
        from fedmos.config import schema as config

        (base / f"{name}.toml").write_text(text)
        train(
            config.load(config.RunConfig, base / f"{name}.toml", overrides),
            base / name,
            resume=True,
            again="",
            quiet=True,
        )
        return base / name

    return make


def test_runs_that_differ_in_their_seed_are_one_method(single):
    folders = [single("a0"), single("a1", CONFIG, "seed=1"), single("b0", CONFIG, "algorithm.name=FedMoS")]
    made = read_study(folders)
    assert [(row.label, list(row.runs)) for row in made.results] == [("FedAvg", [0, 1]), ("FedMoS", [0])]
    assert made.table.cells()[0][2] == "not reached"
    assert "not reached" in page.html(made)
    assert "No method reached accuracy 0.99." in page.html(made)
    other = single("c0", CONFIG, "selection.name=MD")
    assert [row.label for row in read_study([folders[0], other]).results] == ["FedAvg (Uniform)", "FedAvg (MD)"]


def test_runs_that_differ_in_more_than_their_seed_are_several_methods(single):
    first = single("a0")
    for name, *changes in (("m1", 'model={name="mlp",features=64}'), ("r1", "rounds=3")):
        made = read_study([first, single(name, CONFIG, "seed=1", *changes)])
        assert [(row.label, list(row.runs)) for row in made.results] == [
            ("FedAvg in a0", [0]),
            (f"FedAvg in {name}", [1]),
        ]


def test_a_baseline_with_other_seeds_is_not_said_to_have_missed_the_target():
    runs = {"base": {0: [0.1, 0.6]}, "other": {1: [0.6]}}
    rows = [
        MethodResult(label=label, lr=None, runs={seed: history(values) for seed, values in by_seed.items()})
        for label, by_seed in runs.items()
    ]
    words = answer(ComparisonTable(metric="accuracy", target=0.5, baseline="base", results=rows))
    assert words.endswith("3.00 MB; base, the baseline, has no seed in common.")


def test_tuned_methods_of_folders_of_one_name_keep_their_own_baselines(tmp_path):
    folders = [tmp_path / parent / "demo" for parent in "ab"]
    for folder in folders:
        comparisons.run(
            folder,
            methods=comparisons.METHODS[:1],
            seeds=[0],
            rounds=2,
            tune={"lr": [0.1], "seed": 9, "rows": "both"},
        )
    made = read_study(folders)
    assert [(row.label, row.against) for row in made.results if row.against] == [
        ("2: FedAvg, tuned", "2: FedAvg, tuned"),
        ("4: FedAvg, tuned", "4: FedAvg, tuned"),
    ]


def test_what_is_refused(single, comparison, tmp_path, quick):
    first = single("a0")
    cases = [
        ([first, first], {}, "Cannot report a folder twice"),
        (
            [first, single("d", CONFIG, "data.clients=21")],
            {},
            "their data differ: data.clients is 20 in one, 21 in the other",
        ),
        ([first, single("e", CONFIG, "target.accuracy=0.5")], {}, "different targets together"),
        ([first, comparison], {}, "different targets together"),
        ([first], {"target": ("accuracy", 0.7)}, "--target asks for accuracy 0.7"),
        ([first], {"target": ("accurcy", 0.9)}, "got 'accurcy' (did you mean 'accuracy'?)"),
        ([first], {"baseline": "FedAvgg"}, "--baseline must be one of FedAvg, got 'FedAvgg' (did you mean 'FedAvg'?)"),
        ([tmp_path], {}, "it is the folder of neither a run nor a comparison"),
    ]
    again = tmp_path / "again"
    fm.Result.load(first).save(again)
    cases.append(([first, again], {}, "one method with the same seed"))
    other = fm.datasets.load("digits").partition(fm.partition.IID(), clients=20, seed=0)
    quick(out=tmp_path / "p0")
    quick(out=tmp_path / "p1", data=other, algorithm=fm.FedAvg(lr=0.2))
    quick(out=tmp_path / "p2", data=other, algorithm=fm.FedAvg(lr=0.2), seed=5)
    quick(out=tmp_path / "p3", target={"train_loss": 2.2}, rounds=50, algorithm=fm.FedAvg(lr=0.3))
    cases += [
        ([tmp_path / "p0", tmp_path / "p1"], {}, "their data differ (by the fingerprints of their federations)"),
        ([tmp_path / "p0", tmp_path / "p2"], {}, "it is unknown whether their data are the same"),
        ([tmp_path / "p3"], {"target": ("train_loss", 0.001)}, "rounds, at another target"),
    ]
    for folders, more, sentence in cases:
        with pytest.raises((ValueError, OSError)) as error:
            read_study(folders, **more)
        assert sentence in str(error.value)
    assert "started from Python" in page.html(read_study([tmp_path / "p0"]))
    unfinished = tmp_path / "cut"
    unfinished.mkdir()
    (unfinished / "comparison.toml").write_bytes((comparison / "comparison.toml").read_bytes())
    with pytest.raises(FileNotFoundError, match="the comparison is not complete; use fedmos compare"):
        read_study([unfinished])


def test_targets_on_the_command_line():
    assert parse_target("accuracy=0.9") == ("accuracy", 0.9)
    for text, sentence in (
        ("acuracy=1", "did you mean 'accuracy'"),
        ("accuracy", "must look like"),
        ("accuracy=7", "in [0, 1]"),
    ):
        with pytest.raises(ValueError) as error:
            parse_target(text)
        assert sentence in str(error.value)


@pytest.mark.parametrize("ending", ["pdf", "png", "svg"])
def test_figures(comparison, tmp_path, ending):
    from fedmos.report.plot import plot

    table = read_study([comparison]).table
    plot(table, tmp_path / f"f.{ending}", ["train_loss", "accuracy"], "megabytes")
    begin = {"pdf": b"%PDF", "png": b"\x89PNG", "svg": b"<?xml"}[ending]
    assert (tmp_path / f"f.{ending}").read_bytes().startswith(begin)
    with pytest.raises(ValueError, match="--out must end in one of"):
        plot(table, tmp_path / "f.gif", ["accuracy"], "rounds")


def test_labels_are_drawn_as_they_are(tmp_path):
    from fedmos.report.plot import plot

    rows = [
        MethodResult(label=label, lr=None, runs={0: history([0.1, 0.2])})
        for label in ("a $x$ or $\\no$", "_b", "c" * 90)
    ]
    plot(
        ComparisonTable(metric="accuracy", target=None, baseline="_b", results=rows),
        tmp_path / "f.svg",
        ["accuracy"],
        "rounds",
    )
    drawn = (tmp_path / "f.svg").read_text()
    assert all(f"<!-- {label} -->" in drawn for label in ("a $x$ or $\\no$", "_b", "c" * 40, "c" * 10))


def test_a_file_that_cannot_be_written(single, tmp_path):
    for command, name in (("report", "none/r.html"), ("plot", "none/f.svg")):
        done = command_line(command, str(single("a0")), "--out", name, cwd=tmp_path)
        assert done.returncode == 2
        assert f"Cannot write {name} because of an error: No such file or directory" in done.stderr


def test_plot_on_the_command_line(single, tmp_path):
    run = single("a0")
    done = command_line("plot", str(run), "--out", "f.svg", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "f.svg").stat().st_size > 1000
    for arguments, sentence in (
        (["--x", "byte"], "--x must be one of"),
        (["--x", "seconds"], "no run has measured it"),
    ):
        done = command_line("plot", str(run), *arguments, cwd=tmp_path)
        assert done.returncode == 2
        assert sentence in done.stderr


@pytest.mark.extended
def test_many_long_runs_are_thinned(large_page):
    text = large_page
    assert len(text.encode()) < 5e6
    curves = json.loads(re.search(r'id="data">(.*?)</script>', text, re.S)[1])["metrics"][0]["curves"]
    assert all(len(c["rounds"]) <= 300 and c["rounds"][0] == 1 and c["rounds"][-1] == 5000 for c in curves)
