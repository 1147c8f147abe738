"""The command line: run, compare, list, demo."""

import re
import subprocess
import sys
from pathlib import Path
from unittest import mock

import pytest

import fedmos as fm
from fedmos.config import schema as config
from fedmos.experiments.compare import compare
from fedmos.experiments.progress import LineObserver
from helpers import comparisons
from helpers.command_line import command_line, command_line_process
from helpers.configs import RUN
from helpers.processes import descendants, running, wait_until


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "mos.toml").write_text(RUN)
    return tmp_path


def test_run_trains_saves_and_resumes(folder):
    done = command_line_process("run", "mos.toml", "--set", "rounds=3", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert "accuracy 0.9" in done.stdout
    assert "not reached" in done.stdout
    assert re.search(r"engine\W+(loop|batched): ", done.stdout)
    result = fm.Result.load(folder / "runs" / "mos")
    assert len(result.history) == 3
    again = command_line("run", "mos.toml", "--resume", "--set", "rounds=4", cwd=folder)
    assert again.returncode == 0, again.stderr
    assert len(fm.Result.load(folder / "runs" / "mos").history) == 4


BAD = {
    "unknown field": (["--set", "local_step=3"], "local_step: unknown field (did you mean 'local_steps'?)"),
    "negative step size": (["--set", "algorithm.lr=-1"], "algorithm.lr: must be > 0, got -1"),
    "unknown hyper-parameter": (["--set", "algorithm.m=1"], "algorithm.m: FedMoS has no such field"),
    "missing hyper-parameter": (["--set", "algorithm={name='FedProx', lr=0.1}"], "algorithm: FedProx needs mu"),
    "unknown algorithm": (["--set", "algorithm.name=FedMos"], "(did you mean 'FedMoS'?)"),
    "wrong type": (["--set", "rounds='ten'"], "rounds: must be an integer ≥ 1, got 'ten'"),
    "too small": (["--set", "rounds=0"], "rounds: must be an integer ≥ 1, got 0"),
    "NaN": (["--set", "weight_decay=nan"], "weight_decay: must be ≥ 0, got nan"),
    "cohort too large": (["--set", "selection.m=21"], "selection.m: must be ≤ the number of clients (20), got 21"),
    "unknown data": (["--set", "data.name=digit"], "(did you mean 'digits'?)"),
    "unknown target": (["--set", "target.acc=1.0"], "target: must name one of"),
    "bad override": (["--set", "rounds"], "--set must look like key=value, got 'rounds'"),
    "strings for numbers": (["--set", "rounds='1'"], "rounds: must be an integer ≥ 1, got '1'"),
    "true for one": (["--set", "rounds=true"], "rounds: must be an integer ≥ 1, got True"),
    "1.0 for one": (["--set", "rounds=1.0"], "rounds: must be an integer ≥ 1, got 1.0"),
    "too large": (["--set", "rounds=10_000_000_000"], "rounds: must be ≤ 1,000,000,000, got 10000000000"),
    "a long text": (
        ["--set", "loss=" + "x" * 100_000],
        "loss: must be one of 'cross_entropy', 'mse', 'bce', 'Cox', got 'xxx",
    ),
    "NaN inside": (["--set", "algorithm.beta=nan"], "algorithm.beta: must be in [0, 1), got nan"),
    "NaN target": (["--set", "target.accuracy=nan"], "target: must have for accuracy a number that is in [0, 1]"),
    "unknown nested field": (["--set", "data.client=3"], "data.client: unknown field (did you mean 'clients'?)"),
    "unknown deep field": (
        ["--set", "data.augment.crops=3"],
        "data.augment.crops: unknown field (did you mean 'crop'?)",
    ),
    "wrong place": (["--set", "clients=3"], "clients: unknown field (did you mean 'data.clients'?)"),
    "in a table": (["--set", "data.rounds=3"], "unknown field (did you mean 'rounds' at the top of the file?)"),
    "system": (["--set", "system.quorun=0.5"], "system.quorun: unknown field (did you mean 'quorum'?)"),
    "a profile": (
        ["--set", "system.speed={name='LogNorm'}"],
        "system.speed.name: must be one of Constant, LogNormal, PerClient",
    ),
    "a profile's field": (
        ["--set", "system.speed={name='Constant', value=-1}"],
        "system.speed.value: must be > 0, got -1",
    ),
    "both kinds of work": (
        ["--set", "local_epochs=1"],
        "exactly one of local_steps and local_epochs must be given, got both",
    ),
    "precision": (["--set", "precision=fp16"], "precision: must be one of 'tf32', 'bf16', got 'fp16'"),
    "precision of doubles": (
        ["--set", "precision=bf16", "--set", "dtype=float64"],
        "precision: must be left out where dtype is float64",
    ),
    "tf32 on a CPU": (
        ["--set", "precision=tf32", "--set", "device=cpu"],
        "precision: must be left out or 'bf16' on a CPU",
    ),
    "seed of 65 bits": (["--set", "seed=18446744073709551616"], "seed: must be an integer of 64 bits"),
    "no clients": (["--set", "data={name='digits'}"], "data.clients: must be given for the partition IID"),
    "foreign field": (["--set", "data.alpha=1.0"], "data.alpha: has no part in the data set digits"),
    "augmented text": (
        ["--set", "data={name='shakespeare', clients=5, augment={}}"],
        "data.augment: must be left out for shakespeare",
    ),
    "over-selection": (
        ["--set", "selection={name='Full'}", "--set", "system.over_select=1.5"],
        "system: Cannot over-select with Full",
    ),
    "a model's field": (["--set", "model.features=0"], "model.features: must be an integer ≥ 1, got 0"),
    "a partition's field": (
        ["--set", "data.partition.classes=11", "--set", "data.partition.size=[11, 20]"],
        "data.partition.classes: must be ≤ the data's 10 classes, got 11",
    ),
    "data in another case": (["--set", "data.name=Digits"], "(did you mean 'digits'?)"),
    "all capitals": (["--set", "algorithm.name=FEDMOS"], "(did you mean 'FedMoS'?)"),
    "data that may be synthetic": (["--set", "data.name=nothing"], "chem97, synthetic, got 'nothing'"),
    "clients without test samples": (
        ["--set", "evaluate_clients=2"],
        "Error: Cannot evaluate the clients because they have no test samples of their own",
    ),
    "a search": (["--set", "sweep.trials=3"], "mos.toml: is the configuration of a search; use fedmos sweep"),
    "bad decay": (["--set", "lr_decay={a=0.5}"], "lr_decay: must have rounds for keys, not 'a'"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_configurations_end_in_a_sentence(folder, case, capsys, monkeypatch):
    """Exit code 2, the field and what is allowed, no traceback, and nothing written."""
    from fedmos.cli import commands as cli

    arguments, sentence = BAD[case]
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "argv", ["fedmos", "run", "mos.toml", *arguments])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    printed = capsys.readouterr().err
    assert stop.value.code == 2
    assert sentence in printed
    assert "Traceback" not in printed
    assert not (folder / "runs").exists()


def test_errors_reach_the_shell_the_same_way(folder):
    (folder / "broken.toml").write_text("rounds = = 3")
    for start, file, sentence in (
        (command_line_process, "broken.toml", "not TOML"),
        (command_line, "nothing.toml", "Cannot read nothing.toml"),
    ):
        done = start("run", file, cwd=folder)
        assert done.returncode == 2
        assert sentence in done.stderr
        assert "Traceback" not in done.stderr


def test_files_of_other_commands_and_folders_that_hold_a_run_are_named(folder, capsys, monkeypatch):
    from fedmos.cli import commands as cli

    demo = Path(fm.__file__).parent / "config" / "builtin" / "demo.toml"
    (folder / "runs" / "old").mkdir(parents=True)
    (folder / "runs" / "old" / "metrics.jsonl").write_text("{}\n")
    for arguments, sentence in (
        (["run", str(demo)], "demo.toml: is the configuration of a comparison; use fedmos compare"),
        (["compare", "mos.toml"], "mos.toml: is the configuration of a single run; use fedmos run"),
        (["run", "mos.toml", "--out", "runs/old"], "runs/old because it exists; use --resume or another --out"),
        (["report", "runs/new"], "Cannot report runs/new because it is no folder"),
    ):
        monkeypatch.chdir(folder)
        monkeypatch.setattr(sys, "argv", ["fedmos", *arguments])
        with pytest.raises(SystemExit):
            cli.main()
        assert sentence in capsys.readouterr().err


def test_list_names_everything(folder):
    shown = command_line("list", cwd=folder).stdout
    for name in [*fm.algorithms(), *fm.selectors(), "ByClass", "cnn_mnist", "digits"]:
        assert name in shown


def test_version_and_help(folder):
    assert command_line("--version", cwd=folder).stdout.strip() == f"fedmos {fm.__version__}"
    shown = command_line("--help", cwd=folder).stdout
    assert all(command in shown for command in ("demo", "run", "compare", "list"))


def test_compare_tunes_tabulates_and_continues(tmp_path):
    methods = [
        {"label": "FedAvg", "algorithm": {"name": "FedAvg"}, "selection": {"name": "Uniform", "m": 5}},
        {"label": "hopeless", "algorithm": {"name": "FedAvg", "server_lr": 1e-6}, "selection": {"name": "MD", "m": 5}},
    ]
    settings = config.parse(
        config.CompareConfig,
        {
            "title": "A <small> one",
            "rounds": 4,
            "local_steps": 2,
            "batch_size": 4,
            "seeds": [0, 1],
            "target": {"train_loss": 2.2},
            "tune": {"lr": [0.01, 0.2], "seed": 9},
            "data": {"name": "digits", "clients": 20, "partition": {"name": "ByClass", "classes": 2}},
            "model": {"name": "logistic", "features": 64},
            "methods": methods,
        },
    )
    said = []
    table = comparisons.compare(settings, tmp_path, LineObserver(said.append))
    rows = table.results
    assert rows[0].lr == 0.2
    assert [c.heading for c in table.columns()][2] == "rounds to train_loss 2.2"
    cells = table.cells()
    assert cells[0][0] == "FedAvg"
    assert cells[1][2:6] == ["not reached"] * 4
    assert any("hopeless" in line for line in said)
    assert {p.name for p in tmp_path.glob("*.*")} == {
        "comparison.toml",
        "table.json",
        "table.csv",
        "table.md",
        "table.tex",
    }
    assert config.load(config.CompareConfig, tmp_path / "comparison.toml") == settings

    written = {p: p.stat().st_mtime_ns for p in tmp_path.rglob("state.safetensors")}
    again = comparisons.compare(settings, tmp_path)
    assert again.cells() == cells
    assert len(written) == 2 * 2 + 2 * 2
    assert written == {p: p.stat().st_mtime_ns for p in tmp_path.rglob("state.safetensors")}  # nothing ran again


def test_compare_on_the_command_line_writes_table_and_report(tmp_path):
    from fedmos.storage import toml

    kept = comparisons.settings(seeds=[0], title="A [/b]").model_dump(mode="json", exclude_none=True)
    kept["methods"][0]["label"] = "FedAvg [/b]"
    (tmp_path / "small.toml").write_text(toml.dumps(kept))
    with mock.patch("fedmos.experiments.executors.ProcessPoolExecutor", comparisons.InlineExecutor):
        done = command_line("compare", "small.toml", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "hopeless" in done.stdout
    assert "A [/b]" in done.stdout
    assert "…" not in done.stdout
    out = tmp_path / "runs" / "small"
    names = {"comparison.toml", "table.json", "table.csv", "table.md", "table.tex", "report.html", "curves.svg"}
    assert names == {p.name for p in out.glob("*.*")}
    assert "Trained for " in done.stdout
    again = command_line("compare", "small.toml", "--out", str(out), cwd=tmp_path)
    assert "All runs were finished already; nothing was trained." in again.stdout
    assert "Trained" not in again.stdout


@pytest.mark.skipif(sys.platform != "linux", reason="processes are listed in /proc")
@pytest.mark.extended
def test_workers_of_a_comparison_that_was_killed_end(tmp_path):
    from fedmos.storage import toml

    kept = comparisons.settings(seeds=[0], rounds=10**6, methods=comparisons.METHODS[:1])
    (tmp_path / "long.toml").write_text(toml.dumps(kept.model_dump(mode="json", exclude_none=True)))
    metrics = tmp_path / "out" / "runs" / "0-lr0.05-seed0" / "metrics.jsonl"
    command = [sys.executable, "-m", "fedmos", "compare", "long.toml", "--out", "out"]
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wait_until(lambda: process.poll() is not None or (metrics.exists() and metrics.stat().st_size > 0))
    workers = descendants(process.pid)
    process.kill()
    process.wait()
    assert workers
    wait_until(lambda: not any(map(running, workers)))


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"tune": None}, "methods.0.algorithm: FedAvg needs lr"),
        ({"seeds": [1, 1]}, "seeds: must be different in each place"),
        ({"seeds": [-1, 2**64 - 1]}, "seeds: must be different in each place"),
        ({"seeds": [-1], "tune": {"lr": [0.1], "seed": 2**64 - 1}}, "tune.seed: must not be one of seeds"),
        ({"tune": {"lr": [0.1], "seed": 0}}, "tune.seed: must not be one of seeds"),
        ({"target": {"acuracy": 0.9}}, "target: must name one of"),
        (
            {"methods": [{"label": "a", "algorithm": {"name": "FedAvg"}, "selection": {"name": "MD", "m": 999}}]},
            "methods.0.selection.m: must be ≤",
        ),
        (
            {"methods": [{"label": "a", "algorithm": {"name": "FedAvgg"}, "selection": {"name": "MD", "m": 9}}]},
            "did you mean",
        ),
    ],
)
def test_a_mistake_in_a_comparison_is_found_before_anything_runs(tmp_path, change, sentence):
    import importlib.resources
    import tomllib

    table = tomllib.loads(importlib.resources.files("fedmos.config").joinpath("builtin/demo.toml").read_text())
    table |= change
    with pytest.raises(ValueError) as error:
        compare(config.parse(config.CompareConfig, {k: v for k, v in table.items() if v is not None}), tmp_path)
    assert sentence in str(error.value)
    assert not list(tmp_path.iterdir())


def test_the_demo_is_a_valid_comparison():
    import importlib.resources

    path = importlib.resources.files("fedmos.config").joinpath("builtin/demo.toml")
    settings = config.load(config.CompareConfig, str(path))
    assert {m.label for m in settings.methods} == {"FedAvg", "FedProx", "FedMoS (Uniform)", "FedMoS (ACS)"}
    assert len(settings.seeds) == 3
    assert settings.data.clients == 100


@pytest.mark.parametrize("path", sorted(Path(__file__).parents[2].glob("examples/*.toml")), ids=lambda p: p.name)
def test_examples_are_valid(path):
    config.load(config.CompareConfig, path)
