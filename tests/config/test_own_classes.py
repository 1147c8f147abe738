"""Classes and functions of the user in configurations: "mine.py:FedSAM" or "package.module:Name"."""

import sys

import pytest
import torch
from torch import nn

import fedmos as fm
from fedmos.config import schema as config
from fedmos.config.text import apply_override
from fedmos.core.own_code import own_files
from fedmos.run.info import RunInfo
from fedmos.run.resume import check_unchanged
from fedmos.storage import toml
from helpers.own_classes import MINE, RUN


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "mine.py").write_text(MINE)
    return tmp_path


def load(folder, **changes):
    (folder / "run.toml").write_text(toml.dumps(RUN | changes))
    return config.load(config.RunConfig, folder / "run.toml")


def spec_of(folder, **changes):
    settings = load(folder, **changes)
    settings.check()
    return settings.spec(settings.algorithm, settings.selection, settings.seed)


def test_every_part_of_a_run_can_be_the_users(folder, monkeypatch):
    monkeypatch.chdir("/")  # the path is relative to the configuration file
    settings = load(folder)
    settings.check()
    result = settings.run(settings.algorithm, settings.selection, settings.seed)
    assert [record.cohort for record in result.history] == [[0, 1]] * 2
    assert result.info["algorithm"].startswith("Half(lr=0.1")
    assert result.info["loss"] == "smooth"
    record = result.history[-1]
    assert record.metrics.keys() == {"top2", "top_k", "macro_f1"}
    assert record.metrics["top_k"] == pytest.approx(record.accuracy)
    assert record.metrics["top2"] > record.accuracy
    assert result.info.own_code.keys() == {str(folder / "mine.py")}


def test_it_trains_as_the_same_objects_in_python(folder):
    spec = spec_of(folder)
    mine = sys.modules[type(spec.algorithm).__module__]
    arguments = {name: getattr(spec, name) for name in ("rounds", "local_steps", "batch_size", "metrics", "data")}
    model = nn.Module()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = mine.Net(5)
    result = fm.run(
        model,
        algorithm=mine.Half(lr=0.1, share=0.25),
        selection=mine.First(2),
        loss=mine.smooth,
        lr_decay=lambda t: 0.5**t,
        **arguments,
    )
    settings = load(folder)
    other = settings.run(settings.algorithm, settings.selection, settings.seed)
    assert torch.equal(result.params, other.params)


def test_models_follow_the_seed_of_the_run(folder):
    for model in ({"name": "mine.py:Net", "width": 5}, {"name": "mine.py:linear"}):
        first, same, other = (
            torch.cat([p.flatten() for p in load(folder, model=model).make_model(seed).parameters()])
            for seed in (1, 1, 2)
        )
        assert torch.equal(first, same)
        assert not torch.equal(first, other)
        fixed = load(folder, model=model | {"seed": 1}).make_model(2)
        assert torch.equal(torch.cat([p.flatten() for p in fixed.parameters()]), first)


def test_a_function_can_give_a_federation_by_seed(folder):
    data = {"name": "mine.py:federation", "arguments": {"clients": 3}}
    spec = spec_of(folder, data=data)
    assert len(spec.data) == 3
    settings = load(folder, data=data)
    assert settings.data.load() is None  # it depends on the seed
    assert settings.data.make(0).fingerprint() == spec.data.fingerprint() != settings.data.make(1).fingerprint()


def test_losses_and_schedules_take_fields(folder):
    spec = spec_of(folder, loss={"name": "mine.py:smooth", "smoothing": 0.3})
    outputs, targets = torch.randn(4, 3), torch.tensor([0, 1, 2, 0])
    expected = nn.functional.cross_entropy(outputs, targets, label_smoothing=0.3)
    assert torch.equal(spec.loss(outputs, targets), expected)
    assert spec_of(folder, loss={"name": "mine.py:Focal", "gamma": 1.0}).loss.gamma == 1
    assert isinstance(spec_of(folder, loss="mine.py:Focal").loss, nn.Module)
    torch_own = {"name": "torch.nn:CrossEntropyLoss", "label_smoothing": 0.3}
    assert torch.equal(spec_of(folder, loss=torch_own).loss(outputs, targets), expected)


def test_classes_of_installed_modules(folder, monkeypatch):
    package = folder / "own_package_of_a_test"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "methods.py").write_text(MINE)
    monkeypatch.syspath_prepend(folder)
    spec = spec_of(folder, algorithm={"name": "own_package_of_a_test.methods:Half", "lr": 0.1})
    assert spec.algorithm.share == 0.5


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"algorithm": {"name": "yours.py:Half", "lr": 0.1}}, "algorithm.name: there is no file "),
        ({"algorithm": {"name": "mine.py:Halv", "lr": 0.1}}, "mine.py has no Halv (did you mean 'Half'?)"),
        (
            {"algorithm": {"name": "mine.py:NoAlgorithm"}},
            "algorithm.name: must be a subclass of fedmos.Algorithm, but NoAlgorithm is not",
        ),
        (
            {"algorithm": {"name": "mine.py:NUMBER"}},
            "algorithm.name: must be a class or function, but NUMBER is 3",
        ),
        (
            {"algorithm": {"name": "mine.py:Half", "lr": 0.1, "shore": 1}},
            "algorithm.shore: Half has no such field (did you mean 'share'?); its fields: share, lr, server_lr",
        ),
        ({"algorithm": {"name": "mine.py:Half"}}, "algorithm: Half needs lr"),
        ({"algorithm": {"name": "mine.py:Half", "lr": -1.0}}, "algorithm.lr: must be > 0, got -1"),
        ({"algorithm": {"name": "no.such.module:Half"}}, "algorithm.name: Cannot load no.such.module because it raises"),
        ({"algorithm": {"name": "broken.py:Half"}}, "because it raises SyntaxError"),
        ({"selection": {"name": "mine.py:Half", "lr": 0.1}}, "selection.name: must be a subclass of fedmos.Selector"),
        ({"selection": {"name": "mine.py:First"}}, "selection: First needs m"),
        (
            {"model": {"name": "mine.py:halving", "t": 1}},
            "model.name: must give an object of torch.nn.Module, but halving returns 0.5",
        ),
        (
            {"data": {"name": "mine.py:halving", "arguments": {"t": 1}}},
            "data.name: must give a fedmos.Dataset or fedmos.FederatedData, but halving returns 0.5",
        ),
        (
            {"data": {"name": "mine.py:federation", "clients": 3}},
            "data.clients: must be left out because federation returns a federation",
        ),
        ({"data": {"name": "mine.py:samples", "clients": 4, "arguments": {"m": 1}}}, "data.m: samples has no such field"),
        ({"data": {"name": "digits", "clients": 4, "arguments": {"m": 1}}}, "data.arguments: has no part in the data set"),
        (
            {"data": {"name": "digits", "clients": 4, "partition": {"name": "mine.py:NoAlgorithm"}}},
            "data.partition.name: must have a method 'split', but NoAlgorithm has none",
        ),
        ({"loss": "mine.py:smoth"}, "loss: "),
        ({"loss": {"name": "mine.py:smooth", "smothing": 1}}, "loss.smothing: smooth has no such field"),
        ({"loss": "cross_entrpy"}, "loss: must be one of 'cross_entropy', 'mse', 'bce', 'Cox', got 'cross_entrpy'"),
        ({"metrics": ["mine.py:top2", "mine.py:top2"]}, "metrics.1: must be different from the others, got 'top2' twice"),
        ({"metrics": ["AUD"]}, "metrics.0: must be one of"),
        ({"target": {"top3": 0.5}}, "target"),
        ({"metrics": ["MacroF1"], "target": {"top2": 0.5}}, "target: must name one of"),
        ({"lr_decay": {"name": "Cosin", "rounds": 3}}, "lr_decay.name: must be one of Cosine, Step, Warmup, got 'Cosin'"),
        ({"lr_decay": {"name": "Warmup", "rounds": 1, "then": {"name": "Step", "every": 0}}}, "lr_decay.then.every: must"),
    ],
)  # fmt: skip
def test_mistakes_get_a_sentence(folder, changes, sentence):
    (folder / "broken.py").write_text("def")
    with pytest.raises(config.ConfigError) as caught:
        spec_of(folder, **changes)
    assert sentence in str(caught.value)


def test_files_next_to_it_can_be_imported(folder):
    (folder / "helper_of_a_test.py").write_text("SHARE = 0.125")
    (folder / "mine.py").write_text("from helper_of_a_test import SHARE\n" + MINE.replace("0.5\n", "SHARE\n", 1))
    assert spec_of(folder, algorithm={"name": "mine.py:Half", "lr": 0.1}).algorithm.share == 0.125


def test_files_of_one_name_in_two_folders(folder):
    """Each imports the file next to it, and both are compared when the run is resumed."""
    for name, share in (("one", 0.25), ("two", 0.75)):
        (folder / name).mkdir()
        (folder / name / "helper_of_two.py").write_text(f"SHARE = {share}")
        source = "from helper_of_two import SHARE\n" + MINE.replace("0.5\n", "SHARE\n", 1)
        (folder / name / "mine.py").write_text(f"{source}\n# {name}\n")
    parts = {
        "algorithm": {"name": "one/mine.py:Half", "lr": 0.1},
        "selection": {"name": "two/mine.py:First", "m": 2},
    }
    specs = [spec_of(folder, **parts), spec_of(folder, algorithm={"name": "two/mine.py:Half", "lr": 0.1})]
    assert [spec.algorithm.share for spec in specs] == [0.25, 0.75]
    before = RunInfo(options={}, own_code=own_files([specs[0].algorithm, specs[0].selection]))
    assert len(before.own_code) == 2
    check_unchanged(folder, before, before)
    swapped = RunInfo(options={}, own_code=dict(zip(before.own_code, [*before.own_code.values()][::-1], strict=True)))
    with pytest.raises(ValueError, match=r"mine\.py, which defines its own classes, has changed"):
        check_unchanged(folder, before, swapped)


def test_a_file_that_changes_is_loaded_again_and_leaves_no_cache(folder):
    assert spec_of(folder, algorithm={"name": "mine.py:Half", "lr": 0.1}).algorithm.share == 0.5
    (folder / "mine.py").write_text(MINE.replace("share: float = 0.5", "share: float = 0.7"))
    assert spec_of(folder, algorithm={"name": "mine.py:Half", "lr": 0.1}).algorithm.share == 0.7
    assert not (folder / "__pycache__").exists()


def test_schedules_of_the_library(folder):
    table = {"name": "Warmup", "rounds": 2, "then": {"name": "Cosine", "rounds": 8, "final": 0.1}}
    expected = fm.schedules.Warmup(2, then=fm.schedules.Cosine(8, final=0.1))
    assert spec_of(folder, lr_decay=table).lr_decay == expected
    assert load(folder, lr_decay=table).kept()["lr_decay"] == table


def test_a_name_stands_for_a_table_with_it(folder, monkeypatch):
    monkeypatch.chdir("/")
    (folder / "more.py").write_text("def third(t):\n    return 1 / (1 + t)\n")
    spec = spec_of(
        folder,
        lr_decay="more.py:third",
        algorithm={"name": "FedAvg", "lr": 0.1},
        local=["SAM", {"name": "Adam", "beta1": 0.5}],
        uplink={"delta": "Sign"},
        aggregation="Mean",
        metrics={"second": "mine.py:top2", "area": "AUC"},
        target={"second": 0.9},
    )
    assert spec.lr_decay(1) == 0.5
    assert spec.local == (fm.local.SAM(), fm.local.Adam(beta1=0.5))
    assert spec.uplink == {"delta": fm.codecs.Sign()}
    assert spec.aggregation == fm.aggregation.Mean()
    assert list(spec.metrics) == ["second", "area"]


def test_a_name_alone_needs_no_fields(folder):
    for change, message in (
        ({"uplink": "TopK"}, "uplink: TopK needs fraction"),
        ({"local": "Adm"}, "local.name: must be one of .* got 'Adm' .did you mean 'Adam'"),
        ({"aggregation": "nowhere.py:Rule"}, "there is no file .*nowhere.py"),
    ):
        with pytest.raises(ValueError, match=message):
            spec_of(folder, **change)


def test_numbers_of_the_command_line():
    table = {}
    for text in ("a.lr=.05", "a.mu=5.", "a.beta=-.5e-1", "a.name=.", "a.steps=5"):
        apply_override(table, text)
    assert table == {"a": {"lr": 0.05, "mu": 5.0, "beta": -0.05, "name": ".", "steps": 5}}
