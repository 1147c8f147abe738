"""Help, misspelt commands, `fedmos list` with a filter, and commands whose extra is not installed."""

import sys

import pytest
from typer.testing import CliRunner

from fedmos.cli import commands
from fedmos.cli.group import ORDER

COMMANDS = [
    [],
    *([name] for name in ORDER),
    ["data", "get"],
    ["data", "info"],
    ["data", "show"],
    ["deploy", "init"],
    ["deploy", "local"],
    ["deploy", "keys"],
    ["deploy", "export"],
]


def invoke(*arguments: str):
    return CliRunner().invoke(commands.app, arguments, env={"COLUMNS": "200"})


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_h_is_help(command):
    short, long = invoke(*command, "-h"), invoke(*command, "--help")
    assert short.exit_code == 0
    assert "Usage:" in short.output
    assert short.output == long.output


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (["run"], "What to run; see docs/configuration.md."),
        (["sweep"], "A run, and its table `sweep`."),
        (["report"], "Folders of runs, of comparisons, or of both."),
        (["data", "get"], "Which sets, e.g. mnist cifar10."),
        (["deploy", "retire"], "The name of the client."),
    ],
)
def test_arguments_have_help(command, words):
    assert words in " ".join(invoke(*command, "--help").output.split())


def test_sentences_are_not_broken_where_the_docstring_breaks_them():
    shown = [" ".join(line.split()) for line in invoke("data", "get", "-h").output.splitlines()]
    assert any("mnist, fmnist and cifar10 also from package registries" in line for line in shown)
    lines = [line.strip() for line in invoke("export", "-h").output.splitlines()]
    assert any(line.startswith("torch_export, onnx: a program") for line in lines)  # a line of its own stays one


def test_commands_are_listed_in_the_order_in_which_a_user_needs_them():
    shown = [line.split()[1] for line in invoke("--help").output.split("Commands")[1].splitlines()[1:] if "│" in line]
    assert [word for word in shown if word in ORDER] == list(ORDER)


@pytest.mark.parametrize(
    ("typed", "meant"), [(["runn"], "run"), (["data", "inf"], "info"), (["deploy", "loca"], "local")]
)
def test_a_misspelt_command_gets_one_hint(typed, meant):
    printed = invoke(*typed).output
    assert f"No such command '{typed[-1]}' (did you mean '{meant}'?)" in printed
    assert printed.lower().count("did you mean") == 1


def test_an_unknown_command_is_named_without_a_hint():
    printed = invoke("zzzz").output
    assert "No such command 'zzzz'." in printed
    assert "did you mean" not in printed.lower()


def listed(*words: str) -> str:
    done = invoke("list", *words)
    assert done.exit_code == 0
    return done.output


def test_list_shows_the_parts_and_names_that_were_typed():
    selectors = listed("selectors")
    assert "PowerOfChoice" in selectors
    assert "FedAvg(" not in selectors
    assert "mnist" not in selectors
    assert listed("Selector") == selectors
    assert "FedProx(" in listed("PROX")
    assert "FedAvg(" not in listed("PROX")
    assert "cnn_mnist" in listed("models", "cnn")
    assert "mlp" not in listed("models", "cnn")
    assert listed("data").startswith("Data sets: digits, mnist")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["selectrs"], "nothing is called 'selectrs' (did you mean 'selectors'?)"),
        (["fedavgg"], "nothing is called 'fedavgg' (did you mean 'FedAvg'?)"),
        (["models", "FedAvg"], "nothing is called 'models FedAvg'"),
    ],
)
def test_a_filter_that_nothing_matches_is_named(words, sentence):
    with pytest.raises(ValueError) as error:
        raise invoke("list", *words).exception
    assert sentence in str(error.value)


@pytest.mark.parametrize("command", [["local"], ["keys", "keys", "--host", "here"], ["node"], ["apps"]], ids=" ".join)
def test_deploy_without_flower_says_what_to_install(command, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "flwr", None)
    monkeypatch.setattr(sys, "argv", ["fedmos", "deploy", *command])
    with pytest.raises(SystemExit) as stop:
        commands.main()
    assert stop.value.code == 2
    printed = capsys.readouterr().err.strip()
    assert printed == "Error: Cannot deploy because flwr is not installed; use pip install 'fedmos[flower]'"
    assert not list(tmp_path.iterdir())
