"""Every command in the documentation: programs, sub-commands, options, targets, extras and files exist."""

import re
import shlex
import tomllib

import click
import pytest
import typer

from fedmos.cli import app
from helpers.documents import ROOT, commands, pages

FOUND = sorted({(page, command) for page, text in pages().items() for command in commands(text)})
MAKEFILE = (ROOT / "Makefile").read_text("utf-8")
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
OTHERS = {
    "chmod", "cp", "curl", "docker", "echo", "export", "flower-superlink", "flower-supernode", "flwr", "git", "head",
    "journalctl", "kill", "less", "mkdir", "/usr/sbin/nginx", "openssl", "pytest", "rsync", "scp", "ssh", "sudo", "systemctl",
    "nvidia-cuda-mps-control", "sbatch", "tail", "tar", "twine", ".venv/bin/pre-commit", "cd", "install", "mv", "useradd", "chown",
}  # fmt: skip
"""Programs that are not parts of this project."""


def split(command):
    """Return the words of a command without comments, variables and what follows a pipe."""
    words = shlex.split(command, comments=True)
    while words and re.fullmatch(r"\w+=\S*", words[0]):
        words = words[1:]
    for stop in ("|", "&&", ";", "&", ">"):
        words = words[: words.index(stop)] if stop in words else words
    return words


def check_fedmos(words):
    """Parse the arguments of `fedmos` as the command does, without running it."""
    abbreviated = any("…" in word or word == "..." for word in words)
    command = typer.main.get_command(app)
    context = click.Context(command, info_name="fedmos")
    while hasattr(command, "commands"):
        words = [word for word in words if word not in ("--help", "--version", "-h")]
        if not words or words[0] in ("…", "...", "COMMAND"):
            return
        name, command, words = command.resolve_command(context, words)
        context = click.Context(command, info_name=name, parent=context)
    if command.context_settings.get("ignore_unknown_options"):
        return
    words = ["1" if word == "N" else word for word in words]
    known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
    assert {word.split("=")[0] for word in words if re.match(r"--?[a-z]", word)} <= known | {"--help", "-h"}
    if words and not abbreviated and "--help" not in words:
        command.make_context(name, [*words], parent=context.parent)


def check_python(words):
    """Check that a script exists and mentions the options that it is given."""
    if words[:2] == ["-m", "fedmos"]:
        return check_fedmos(words[2:])
    if not words or words[0].startswith("-") or words[0].isupper():
        return None
    script = ROOT / words[0]
    assert script.exists(), f"there is no {words[0]}"
    text = script.read_text("utf-8")
    for option in (word.split("=")[0] for word in words[1:] if word.startswith("--")):
        assert f'"{option}"' in text, f"{words[0]} has no option {option}"
    return None


def check(command):
    """Check one command of the documentation."""
    words = split(command)
    if not words:
        return
    program, rest = words[0], words[1:]
    if program == "torchrun":
        program, rest = "python", rest[rest.index("-m") :] if "-m" in rest else []
    if program == "fedmos":
        check_fedmos(rest)
    elif program in ("python", "python3"):
        check_python(rest)
    elif program == "bash":
        assert (ROOT / rest[0]).exists(), command
    elif program == "make":
        targets = [word for word in rest if "=" not in word and not word.startswith("-")]
        assert all(re.search(rf"^{re.escape(target)}:", MAKEFILE, re.M) for target in targets), command
    elif program == "pip":
        extras = {name for group in re.findall(r"\[([\w,-]+)\]", command) for name in group.split(",")}
        assert extras <= {*EXTRAS, "client"}, command
    else:
        assert program in OTHERS, f"unknown program {program!r}"


@pytest.mark.parametrize("page", sorted({page for page, _ in FOUND}))
def test_commands_exist(page):
    wrong = []
    for command in (command for one, command in FOUND if one == page):
        try:
            check(command)
        except (AssertionError, ValueError, click.ClickException) as error:
            wrong.append(f"{command}: {getattr(error, 'message', error)}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    "command",
    ["fedmos runs x.toml", "fedmos run x.toml --steps 3", "fedmos run x.toml y", "make tests", "python benchmarks/no.py", "pip install 'fedmos[no]'"],
)  # fmt: skip
def test_a_command_that_does_not_exist_is_found(command):
    with pytest.raises((AssertionError, click.ClickException)):
        check(command)


def test_extras_in_prose_exist():
    named = {
        name
        for text in pages().values()
        for group in re.findall(r"fedmos\[([\w,-]+)\]", text)
        for name in group.split(",")
    }
    assert {"flower", "privacy", "plot"} <= named <= {*EXTRAS, "x"}
