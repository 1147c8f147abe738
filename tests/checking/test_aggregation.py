"""`fm.check` of aggregation rules."""

from dataclasses import dataclass

import pytest
import torch
from typer.testing import CliRunner

import fedmos as fm
from fedmos.cli import app
from helpers.robust import RULES


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_every_rule_passes(rule):
    assert fm.check(rule) == []


@dataclass(frozen=True)
class Mistaken(fm.aggregation.Aggregation):
    mistake: str

    def aggregate(self, rows, weights):
        mean = weights @ rows
        return {
            "first": lambda: rows[0],
            "sum": lambda: rows.sum(0),
            "units": lambda: mean + rows.std(0) ** 2 * (rows.std(0) > 1e-9),
            "shape": lambda: mean[:1],
            "noise": lambda: mean + torch.randn(len(mean)).to(mean),
            "in place": lambda: rows.mul_(2).mean(0),
        }[self.mistake]()


@pytest.mark.parametrize(
    ("mistake", "text"),
    [
        ("first", "Mistaken: 'aggregate' must not depend on the order of clients"),
        ("sum", "Mistaken: 'aggregate' must return the row where all rows are equal"),
        ("units", "Mistaken: aggregate(c · rows) must be c · aggregate(rows), or 'scale_free' must be False"),
        ("shape", "Mistaken: 'aggregate' must return a vector of shape (5,), got a tensor of shape (1,)"),
        ("noise", "Mistaken: 'aggregate' must not draw from PyTorch's global generator"),
        ("in place", "Mistaken: 'aggregate' must not change the rows in place"),
    ],
)
def test_mistakes_are_found(mistake, text):
    assert any(text in found for found in fm.check(Mistaken(mistake)))


def test_rules_are_checked_on_the_command_line():
    done = CliRunner().invoke(app, ["check", "Krum", "faulty=2"])
    assert (done.exit_code, done.output) == (0, "Krum: no findings\n")
