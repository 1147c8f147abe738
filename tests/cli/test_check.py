"""`fedmos check`."""

import pytest

from helpers.command_line import command_line

MINE = """
from dataclasses import dataclass

import fedmos as fm


@dataclass(frozen=True, kw_only=True)
class FedSAM(fm.Algorithm):
    lr: float
    rho: float = 0.05

    def direction(self, y, s, c, grad, k):
        g = grad.raw(y)
        return grad.perturbed(y, self.rho * g / g.norm(dim=-1, keepdim=True)), s


class Careless(FedSAM):
    def direction(self, y, s, c, grad, k):
        g = grad.raw(y)
        return grad.perturbed(y, self.rho * g / g.norm()), s


class Broken(FedSAM):
    def server(self, x, state, agg, ctx):
        return x + agg["B"], {}


class Duck(FedSAM):  # the name of an emoji
    pass
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "mine.py").write_text(MINE)
    return tmp_path


@pytest.mark.parametrize(
    "arguments", [("mine.py:Duck", "lr=0.1", "rho=0.01"), ("FedAvg", "lr=0.1"), ("Quantize", "bits=4")], ids=str
)
def test_a_class_without_mistakes(folder, arguments):
    result = command_line("check", *arguments, cwd=folder)
    assert (result.returncode, result.stdout) == (0, f"{arguments[0]}: no findings\n")


def test_findings_are_printed_and_end_with_code_1(folder):
    result = command_line("check", "mine.py:Careless", "lr=0.1", cwd=folder)
    assert result.returncode == 1
    assert result.stdout.startswith(
        "Careless: 'direction' must return for a client in a cohort what it returns for the"
    )
    assert result.stdout.count("\n") == 1


def test_the_line_of_the_users_file_is_named(folder):
    result = command_line("check", "mine.py:Broken", "lr=0.1", "--local-steps", "2", "--verbose", cwd=folder)
    assert result.returncode == 1
    assert "declaration: ok\n" in result.stdout
    assert "Broken: there is no agg['B']; 'reduce' declares A (mine.py, line 25)\n" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("mine.py:FedSAM",), "check: FedSAM needs lr"),
        (("mine.py:FedSAM", "0.1"), "check: fields must look like lr=0.1, got '0.1'"),
        (("mine.py:FedSAM", "lr=0.1", "rhoo=1"), "check.rhoo: FedSAM has no such field (did you mean 'rho'?)"),
        (
            ("mine.py:dataclass",),
            "check: 'obj' must be an algorithm, a selector, a local optimiser, a codec or an aggregation rule, got",
        ),
        (("FedAvgg", "lr=0.1"), "(did you mean 'FedAvg'?)"),
    ],
    ids=["missing", "no field", "unknown field", "other object", "unknown name"],
)
def test_what_cannot_be_checked_is_refused(folder, arguments, sentence):
    result = command_line("check", *arguments, cwd=folder)
    assert result.returncode == 2
    assert sentence in result.stderr
