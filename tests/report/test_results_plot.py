"""`fm.plot`, and what the report knows of runs from Python."""

import sys

import pytest

import fedmos as fm
from fedmos.report.study import read_study
from helpers.command_line import command_line

pytest.importorskip("matplotlib")


def lines(figure, panel=0):
    """The lines of a panel by label: rounds (or another axis) and values."""
    return {
        line.get_label(): (list(line.get_xdata()), list(line.get_ydata()))
        for line in figure.axes[panel].lines
        if not line.get_label().startswith("_")
    }


@pytest.fixture
def runs(quick):
    return quick(rounds=2), quick(rounds=2, algorithm=fm.FedProx(lr=0.1, mu=0.1))


def test_a_line_for_each_method(runs):
    figure = fm.plot(list(runs))
    assert type(figure).__name__ == "Figure"
    assert lines(figure) == {
        name: ([1, 2], [record.accuracy for record in result.history])
        for name, result in zip(("FedAvg", "FedProx"), runs, strict=True)
    }
    assert figure.axes[0].get_ylabel() == "Test accuracy"


def test_metrics_axes_and_files(runs, tmp_path):
    figure = fm.plot(runs, ["train_loss", "accuracy"], x="megabytes", out=tmp_path / "curves.svg")
    assert len(figure.axes) == 2
    spent = [record.bytes_down + record.bytes_up for record in runs[0].history]
    assert lines(figure)["FedAvg"][0] == pytest.approx([spent[0] / 1e6, sum(spent) / 1e6])
    assert (tmp_path / "curves.svg").read_text().startswith("<?xml")


def test_seeds_are_one_line_and_labels_keep_runs_apart(quick):
    first, second = quick(rounds=2, seed=0), quick(rounds=2, seed=1)
    (line,) = lines(fm.plot([first, second])).values()
    both = zip(first.history, second.history, strict=True)
    assert line[1] == pytest.approx([(a.accuracy + b.accuracy) / 2 for a, b in both])
    assert lines(fm.plot({"one": first, "two": second})).keys() == {"one", "two"}
    assert lines(fm.plot({"both": [first, second]})) == {"both": line}
    assert lines(fm.plot({"one": first, "again": first})).keys() == {"one", "again"}
    assert lines(fm.plot(first)).keys() == {"FedAvg"}


def test_labels_of_runs_keep_them_apart(quick):
    """Runs of one method from different initial weights, say; a seed of its own does not make them one line."""
    first, second = quick(rounds=2, seed=0, label="scratch"), quick(rounds=2, seed=1, label="pretrained")
    assert lines(fm.plot([first, second])).keys() == {"scratch", "pretrained"}
    again = quick(rounds=2, seed=0, label="pretrained")
    found = lines(fm.plot([first, second, again]))
    assert found["scratch"][1] == [record.accuracy for record in first.history]
    assert found["pretrained"][1] == lines(fm.plot({"both": [first, second]}))["both"][1]


def test_folders_saved_results_and_results_together(quick, runs, tmp_path):
    quick(rounds=2, out=tmp_path / "run")
    runs[1].save(tmp_path / "saved")
    mixed = lines(fm.plot([tmp_path / "run", str(tmp_path / "saved")]))
    assert mixed == lines(fm.plot(list(runs)))
    assert lines(fm.plot([runs[0], tmp_path / "saved"])) == mixed


def test_comparisons(quick, digits):
    made = fm.compare(
        {"a": fm.FedAvg(lr=0.1), "b": fm.FedAvg(lr=0.2)},
        model=fm.models.logistic(features=64),
        data=digits,
        selection=fm.Uniform(m=3),
        rounds=2,
        local_steps=1,
        seeds=2,
    )
    assert lines(fm.plot(made)).keys() == {"a", "b"}


def test_metrics_of_the_user_and_targets(quick):
    def top(outputs, targets):
        return (outputs.argmax(1) == targets).double().mean()

    result = quick(metrics={"top_1": top}, target={"top_1": 0.99})
    figure = fm.plot(result)
    assert figure.axes[0].get_ylabel() == "top 1"
    assert [line.get_ydata()[0] for line in figure.axes[0].lines][-1] == 0.99
    other = fm.plot(result, target={"accuracy": 0.5})  # replaces that of the run
    assert other.axes[0].get_ylabel() == "Test accuracy"
    assert [line.get_ydata()[0] for line in other.axes[0].lines][-1] == 0.5


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"runs": []}, "plot: 'runs' must hold at least one result or folder, got none"),
        ({"runs": [3]}, "plot: 'runs' must be results or folders of runs, got 3"),
        ({"runs": 3}, "got 3"),
        ({"metric": "acuracy"}, "plot: 'metric' must be one of train_loss, train_accuracy, test_loss, accuracy, got"),
        ({"metric": 3}, "plot: 'metric' must be the name of a metric or several, got 3"),
        ({"x": []}, "plot: 'x' must be one of 'rounds', 'megabytes', 'seconds', got []"),
        ({"out": 3}, "plot: 'out' must be a path or None, got 3"),
        ({"x": "epochs"}, "plot: 'x' must be one of 'rounds', 'megabytes', 'seconds', got 'epochs'"),
        ({"x": "seconds"}, "Cannot plot accuracy over seconds because no run has measured it"),
        ({"out": "figure.gif"}, "plot: 'out' must end in one of .pdf, .png, .svg, got 'figure.gif'"),
        ({"target": {"acc": 1}}, "plot: 'target' must be one of"),
        ({"target": 0.9}, "plot: 'target' must be one metric with its value, got 0.9"),
    ],
)
def test_mistakes_get_a_sentence(runs, arguments, sentence):
    with pytest.raises(ValueError) as error:
        fm.plot(**{"runs": list(runs)} | arguments)
    assert sentence in str(error.value)


def test_one_run_twice_and_other_data_are_refused(runs, quick, digits):
    with pytest.raises(ValueError, match="one method with the same seed"):
        fm.plot([runs[0], runs[0]])
    with pytest.raises(ValueError, match="Cannot report result 1 and result 2 together because their data differ"):
        fm.plot([runs[0], quick(data=digits.subset(range(10)))])


def test_without_matplotlib(runs, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ImportError, match=r"pip install 'fedmos\[plot\]'"):
        fm.plot(list(runs))


def test_the_command_plots_saved_results(runs, quick, digits, tmp_path):
    for name, result in zip("ab", runs, strict=True):
        result.save(tmp_path / name)
        assert fm.Result.load(tmp_path / name).info["data"] == digits.fingerprint()
    done = command_line("plot", "a", "b", "--out", "figure.svg", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    quick(data=digits.subset(range(10))).save(tmp_path / "c")
    refused = command_line("plot", "a", "c", "--out", "figure.svg", cwd=tmp_path)
    assert "their data differ" in refused.stderr


def test_the_report_knows_the_target_of_a_run_from_python(quick, tmp_path):
    quick(out=tmp_path / "run", target={"accuracy": 0.99})
    quick(target={"test_loss": 0.01}).save(tmp_path / "saved")
    for name, metric, level in (("run", "accuracy", 0.99), ("saved", "test_loss", 0.01)):
        table = read_study([tmp_path / name]).table
        assert (table.metric, table.target) == (metric, level)
    assert "accuracy = 0.99" in (tmp_path / "run" / "config.toml").read_text()
    longer = quick(out=tmp_path / "run", rounds=4, target={"accuracy": 0.98}, resume=True)
    assert len(longer.history) == 4


def test_a_run_that_a_callback_ended_can_be_judged_by_a_target(quick, tmp_path):
    quick(out=tmp_path, rounds=20, callbacks=[fm.EarlyStopping("accuracy", patience=1, min_delta=1.0)])
    table = read_study([tmp_path], ("accuracy", 0.99)).table
    assert table.results[0].costs("accuracy", 0.99) == {0: None}


def test_a_saved_result_continues(quick, tmp_path):
    quick(rounds=2).save(tmp_path)
    longer = quick(rounds=4, out=tmp_path, resume=True)
    assert (longer.params == quick(rounds=4).params).all()


def test_functions_of_one_name_that_differ_are_two_methods(quick):
    """Both are called <lambda>."""
    results = [quick(seed=seed, lr_decay=lambda t, seed=seed: 0.5 + 0.1 * seed) for seed in (0, 1)]
    assert len(fm.plot(results).axes[0].lines) == 2
    same = [quick(seed=seed, lr_decay=lambda t: 0.5) for seed in (0, 1)]
    assert len(fm.plot(same).axes[0].lines) == 1
