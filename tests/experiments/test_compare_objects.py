"""`fm.compare` and `fm.tune`: comparisons of the user's own objects."""

import json
from dataclasses import dataclass
from types import ModuleType

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import fedmos as fm
from fedmos.cli import app
from fedmos.experiments import compare as compare_module
from fedmos.report.running import running_study
from fedmos.report.study import read_study
from helpers import comparisons


@dataclass(frozen=True, kw_only=True)
class SignSGD(fm.Algorithm):
    """A user's algorithm."""

    lr: float
    power: float = 0.0

    def step(self, y, s, c, grad, k):
        g = grad(y)
        return y - c.lr * g.sign() * g.abs() ** self.power, s


class Plain(fm.Algorithm):
    """An algorithm that is no dataclass."""

    lr = 0.1


def clipped(outputs, targets):
    """A user's loss."""
    return nn.functional.cross_entropy(outputs, targets).clamp(max=50.0)


def net(seed):
    """A user's model, whose weights come from PyTorch's generator."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))


@pytest.fixture(scope="module")
def data():
    return fm.datasets.load("digits").partition(fm.partition.Dirichlet(alpha=0.5), clients=8)


@pytest.fixture
def compare(data):
    """`fm.compare` with small settings."""
    shared = {"model": net, "data": data, "selection": fm.Uniform(m=3), "seeds": 2, "rounds": 3}
    shared |= {"local_steps": 2, "batch_size": 8, "engine": "batched"}

    def call(methods=None, **changes):
        return fm.compare(methods or {"FedAvg": fm.FedAvg(lr=0.1), "sign": SignSGD(lr=0.01)}, **shared | changes)

    return call


def test_the_names_of_modules_stay():
    assert isinstance(compare_module, ModuleType)
    assert callable(fm.compare)
    assert callable(fm.tune)


def test_the_table_is_that_of_the_command_line(tmp_path):
    changes = {"seeds": [0, 1], "rounds": 2, "system": None, "tune": {"lr": [0.1, 0.05], "seed": 9, "rows": "both"}}
    settings = comparisons.settings(**changes)
    expected = comparisons.run(tmp_path / "a", **changes)
    made = fm.compare(
        {
            "FedAvg": fm.FedAvg(lr=0.05),
            "<SCAFFOLD> & co": fm.Scaffold(lr=0.1),
            "hopeless": (fm.FedAvg(lr=0.01, server_lr=1e-6), fm.MD(m=5)),
        },
        model=settings.make_model,
        data=settings.data.make,
        selection=fm.Uniform(m=5),
        seeds=[0, 1],
        tune=changes["tune"],
        target={"train_loss": 2.1},
        title=settings.title,
        out=tmp_path / "b",
        rounds=2,
        local_steps=2,
        batch_size=4,
    )
    assert made.table.to_dict() == expected.to_dict()
    names = {"table.json", "table.csv", "table.md", "table.tex", "comparison.toml"}
    assert names == {path.name for path in (tmp_path / "b").glob("*.*")}
    assert (tmp_path / "b" / "table.md").read_text() == (tmp_path / "a" / "table.md").read_text()
    assert {p.name for p in (tmp_path / "b" / "runs").iterdir()} == {
        p.name for p in (tmp_path / "a" / "runs").iterdir()
    }
    study = read_study([tmp_path / "b"])
    assert study.table.to_dict() == expected.to_dict()
    assert (study.title, study.note) == (settings.title, made.note)


def test_own_objects_in_memory(compare, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    made = compare(
        {"FedAvg": fm.FedAvg(lr=0.1), "sign": {"algorithm": SignSGD(lr=0.01), "local_steps": 1}},
        loss=clipped,
        target={"accuracy": 0.12},
        seeds=[4, 2],
    )
    assert list(made.results) == ["FedAvg", "sign"]
    assert [result.info["seed"] for result in made.results["sign"]] == [4, 2]
    assert [result.info["local_steps"] for result in made.results["sign"]] == [1, 1]
    assert [list(row.runs) for row in made.table.results] == [[4, 2], [4, 2]]
    for label, row in zip(made.results, made.table.results, strict=True):
        for result, history in zip(made.results[label], row.runs.values(), strict=True):
            assert result.history is history
    assert str(made).startswith("| method | step size | rounds to accuracy 0.12 |")
    assert "over 2 seeds; every method with its own step size" in str(made)
    assert "Speed-ups have no interval" in str(made)
    assert made._repr_markdown_() == str(made)
    assert repr(made) == "ComparisonResult('Comparison', 2 methods, 4 runs)"
    assert list(tmp_path.iterdir()) == []
    made.save("saved")
    assert json.loads((tmp_path / "saved" / "table.json").read_text()) == made.table.to_dict()
    page = made.report("report.html").read_text()
    assert "from_python = true" in page
    assert page.count("Speed-ups have no interval") == 1
    assert "Samples by client and class for seed 4" in page


def test_runs_are_those_of_fm_run(compare, data):
    """A model of a function has, for a seed, the same weights in every method, whatever was drawn before."""
    torch.manual_seed(5)
    before = torch.get_rng_state()
    made = compare(seeds=[7])
    assert torch.equal(torch.get_rng_state(), before)
    with torch.random.fork_rng():
        torch.manual_seed(7)
        model = net(7)
    for label, algorithm in (("FedAvg", fm.FedAvg(lr=0.1)), ("sign", SignSGD(lr=0.01))):
        alone = fm.run(
            model, data, algorithm, fm.Uniform(m=3), rounds=3, local_steps=2, batch_size=8, seed=7, engine="batched"
        )
        torch.testing.assert_close(made.results[label][0].params, alone.params)


def test_data_may_depend_on_the_seed(compare):
    dataset, asked = fm.datasets.load("digits"), []

    def split(seed):
        asked.append(seed)
        return dataset.partition(fm.partition.Dirichlet(alpha=0.5), clients=4 + seed, seed=seed)

    made = compare(data=split)
    assert asked == [0, 1]
    assert [result.info["clients"] for result in made.results["FedAvg"]] == [4, 5]


def test_without_a_target_the_table_has_final_values(compare, tmp_path):
    made = compare(out=tmp_path / "out")
    headings = [column.heading for column in made.table.columns()]
    assert headings == ["method", "step size", "final accuracy", "accuracy of the worst 10 % of clients"]
    finals = [result.history[-1].accuracy for result in made.results["sign"]]
    assert made.table.results[1].final("accuracy") == dict(enumerate(finals))
    done = CliRunner().invoke(app, ["report", str(tmp_path / "out"), "--out", str(tmp_path / "r.html")])
    assert done.exit_code == 0, done.output
    assert read_study([tmp_path / "out"]).table.to_dict() == made.table.to_dict()
    by_loss = compare(metric="test_loss", out=tmp_path / "loss")
    assert by_loss.table.columns()[2].heading == "final test_loss"
    assert read_study([tmp_path / "loss"]).table.metric == "test_loss"


def test_the_final_value_of_a_method_as_a_target(compare):
    made = compare(target={"accuracy": {"final_of": "sign"}})
    finals = [result.history[-1].accuracy for result in made.results["sign"]]
    assert made.table.target == sum(finals) / 2
    assert made.table.baseline == "sign"
    assert compare({"FedAvg": fm.FedAvg(lr=0.1)}, seeds=1).note.startswith("One seed; every method with its own")


def test_a_metric_of_the_user_as_a_target(compare):
    made = compare(
        metrics={"hits": lambda outputs, targets: float((outputs.argmax(1) == targets).sum())}, target={"hits": 30}
    )
    assert made.table.columns()[2].heading == "rounds to hits 30"
    assert made.table.results[0].final("hits")[0] == made.results["FedAvg"][0].history[-1].metrics["hits"]


def test_tuning(compare):
    methods = {
        "FedAvg": fm.FedAvg(lr=0.1),
        "sign": {"algorithm": SignSGD(lr=0.01), "grid": {"power": [0.0, 1.0]}},
    }
    made = compare(methods, tune={"lr": [1e-5, 0.01], "rounds": 2}, seeds=[1000])
    avg, sign = made.table.results
    assert avg.tuned.values == {"lr": 0.01}
    assert len(avg.tuned.tried) == 2
    assert sign.tuned.values == {"lr": 0.01, "power": 0.0}
    assert [one.values["power"] for one in sign.tuned.tried] == [0.0, 1.0, 0.0, 1.0]
    assert "SignSGD(lr=0.01, power=0.0)" in made.results["sign"][0].info["algorithm"]
    assert "values of its grid (lr 1e-05, 0.01) that ended best within 2 rounds on seed 1001" in made.note


def test_an_interrupted_comparison_continues(compare, tmp_path):
    def stop(record):
        if record.round == 2:
            raise KeyboardInterrupt

    out, tune = tmp_path / "out", {"lr": [0.01, 0.1]}
    with pytest.raises(KeyboardInterrupt, match=r"The comparison was interrupted; the same call with out=.* continues"):
        compare(out=out, tune=tune, callbacks=[stop])
    with pytest.raises(FileNotFoundError, match=r"the comparison is not complete; use the same fm\.compare"):
        read_study([out])
    with pytest.raises(ValueError, match="because its comparison was started from Python"):
        running_study(out, 1.0)
    made, rounds = compare(out=out, tune=tune), []
    assert made.table.to_dict() == compare(out=tmp_path / "whole", tune=tune).table.to_dict()
    again = compare(out=out, tune=tune, callbacks=[lambda record: rounds.append(record.round)])
    assert rounds == []
    assert again.table.to_dict() == made.table.to_dict()
    more = compare(
        {"FedAvg": fm.FedAvg(lr=0.1), "sign": SignSGD(lr=0.01), "prox": fm.FedProx(lr=0.1, mu=1.0)},
        out=out,
        tune=tune,
        seeds=[0, 1, 2],
        rounds=4,
    )
    assert [[len(run) for run in row.runs.values()] for row in more.table.results] == [[4] * 3] * 3


def test_a_folder_of_another_comparison_is_refused(compare, tmp_path):
    out = tmp_path / "out"
    compare(out=out, seeds=1)
    files = {path: path.read_bytes() for path in out.glob("*.*")}
    for changes, words in (
        ({"eval_every": 2}, "because its 'eval_every' is 1, got 2"),
        ({"rounds": 2}, "because its 'rounds' is 3, got 2"),
        ({"methods": {"sign": SignSGD(lr=0.01)}}, "because its 'methods.0' is 'FedAvg', got 'sign'"),
        ({"local_steps": 3}, "because its 'local_steps' is 2, got 3"),
        (
            {"methods": {"FedAvg": fm.FedAvg(lr=0.1, server_lr=0.5)}},
            r"because its 'algorithm' is .*server_lr=1.0.*, got .*server_lr=0.5",
        ),
    ):
        with pytest.raises(ValueError, match=words):
            compare(out=out, seeds=1, **changes)
        assert {path: path.read_bytes() for path in out.glob("*.*")} == files
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "a.txt").write_text("mine")
    for taken in (tmp_path / "notes", tmp_path / "notes" / "a.txt"):
        with pytest.raises(FileExistsError, match="because it holds other files; use a new folder"):
            compare(out=taken)
    (tmp_path / "notes" / "comparison.toml").write_text('title = "of the command line"\n')
    with pytest.raises(ValueError, match="because fedmos compare started it; use a new folder"):
        compare(out=tmp_path / "notes")


AVG = fm.FedAvg(lr=0.1)


@pytest.mark.parametrize(
    ("methods", "changes", "words"),
    [
        ([AVG], {}, "compare: 'methods' must map labels to algorithms"),
        ({"a": fm.FedAvg}, {}, r"compare: methods\['a'\] must be an algorithm, a pair of algorithm and selection"),
        (
            {"a": {"algorithm": AVG, "data": 3}},
            {},
            "Cannot have its own 'data' because methods are compared on the same",
        ),
        (
            {"a": {"algorithm": AVG, "bach_size": 3}},
            {},
            r"'bach_size' is no argument of fm.run \(did you mean 'batch_size'",
        ),
        ({"a": {"algorithm": AVG, "grid": {"lr": [1.0]}}}, {}, "must have no grid where there is no tune"),
        ({"a": AVG}, {"selection": None}, r"methods\['a'\] needs a selection; use selection="),
        ({"a": AVG}, {"model": lambda: net(0)}, "use model=lambda seed: ..."),
        ({"a": AVG}, {"model": nn.Linear}, "'model' must be a torch.nn.Module, got the class Linear itself"),
        ({"a": AVG}, {"seeds": 0}, "compare: 'seeds' must be a number of seeds or a list of them, got 0"),
        ({"a": AVG}, {"seeds": [1, 1]}, "compare: 'seeds' must be different"),
        ({"a": AVG}, {"seeds": [0.5]}, "compare: 'seeds' must be"),
        ({"a": AVG}, {"seeds": b"x"}, "compare: 'seeds' must be a number of seeds or a list of them, got b'x'"),
        ({"a": AVG}, {"seeds": torch.tensor(2)}, "compare: 'seeds' must be a number of seeds or a list of them"),
        ({"a": AVG}, {"seeds": 10**40}, "compare: 'seeds' must be ≤ "),
        (
            {"a": AVG},
            {"metric": 0},
            "compare: 'metric' must be a text of 1 to 1,000 printable characters or None, got 0",
        ),
        ({"a": AVG}, {"out": 3}, "compare: 'out' must be a path or None, got 3"),
        ({"a": AVG}, {"rounds": 0}, "compare: 'rounds' must be"),
        ({"a": AVG}, {"baseline": "b"}, "compare: 'baseline' must be the label of a method, got 'b'"),
        ({"a": AVG}, {"target": {"acuracy": 0.9}}, r"'target' must name one of .*, got 'acuracy' \(did you mean"),
        ({"a": AVG}, {"target": {"accuracy": 2.0}}, r"must be in \[0, 1\], got 2.0"),
        ({"a": AVG}, {"target": {"accuracy": {"final_of": "b"}}}, "must be the label of a method, got 'b'"),
        ({"a": AVG}, {"metric": "f1"}, "compare: 'metric' must be one of .*, got 'f1'"),
        ({"a": AVG}, {"title": None}, "compare: 'title' must be a text"),
        ({"a": AVG}, {"tune": {"lr": []}}, "compare: 'tune' must have different numbers to try for 'lr'"),
        ({"a": AVG}, {"tune": {}}, "compare: 'tune' must have values to try"),
        ({"a": AVG}, {"tune": {"mu": [0.1]}}, "compare: 'tune': FedAvg has no field 'mu'"),
        ({"a": AVG}, {"tune": {"lr": [0.1], "seed": 1}}, "a seed that the table does not use, got 1"),
        ({"a": AVG}, {"tune": {"lr": [0.1], "by": "round"}}, "by: must be one of 'rounds', 'final'"),
        ({"a": AVG}, {"tune": {"lr": [0.1], "by": "rounds"}}, "by='final' where the target is no number"),
        ({"a": AVG}, {"tune": {"lr": [0.1], "rounds": 9}}, "at most 3 rounds"),
        ({"a": Plain()}, {"tune": {"lr": [0.1]}}, "Cannot tune Plain because it is no dataclass"),
        ({"a": AVG, "b": {"algorithm": AVG, "selection": fm.Uniform(m=99)}}, {}, "m"),
    ],
)
def test_what_is_refused(compare, methods, changes, words):
    with pytest.raises(ValueError, match=words):
        compare(methods, **changes)


def test_unknown_arguments_are_refused(compare):
    with pytest.raises(TypeError, match=r"compare\(\) got an unexpected keyword argument 'bach_size' \(did you mean"):
        compare(bach_size=3)
    with pytest.raises(
        TypeError, match="Cannot give 'seed' to compare because all methods have the same seeds; use seeds="
    ):
        compare(seed=3)


def test_tune_chooses_from_the_grid(data, tmp_path):
    given = {"model": net, "data": data, "selection": fm.Uniform(m=3), "rounds": 3, "local_steps": 2, "batch_size": 8}
    best, tried = fm.tune(SignSGD(lr=1.0, power=0.5), {"lr": [1e-5, 0.01]}, out=tmp_path / "t", **given)
    assert best == SignSGD(lr=0.01, power=0.5)
    assert [one.values for one in tried] == [{"lr": 1e-5}, {"lr": 0.01}]
    assert tried[1].final > tried[0].final
    loaded = fm.Result.load(tmp_path / "t" / "tuning" / "0-lr0.01-seed1000")
    assert loaded.history[-1].accuracy == tried[1].final
    first, tried = fm.tune(SignSGD(lr=1.0), {"lr": [1e-5, 0.01]}, target={"accuracy": 0.2}, seed=3, **given)
    assert first.lr == 0.01
    assert [one.rounds is None for one in tried] == [True, False]
    for changes, words in (
        ({"grid": {"mu": [1.0]}}, "tune: SignSGD has no field 'mu'; its fields: lr, power"),
        ({"grid": {}}, "tune: 'grid' must map fields to values"),
        ({"algorithm": fm.FedAvg}, "tune: 'algorithm' must be a fedmos.Algorithm"),
        ({"by": "rounds"}, "tune: 'by' must be 'final' where the target is no number"),
    ):
        with pytest.raises(ValueError, match=words):
            fm.tune(**{"algorithm": SignSGD(lr=1.0), "grid": {"lr": [0.1]}} | given | changes)
