"""Runs that draw from a global generator are refused, and the error names who draws."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

import fedmos as fm
from helpers.mistakes import Mistake
from helpers.selector_mistakes import DrawsInThin, DrawsNoise


class NoisyModel(torch.nn.Linear):
    def forward(self, x):
        return super().forward(x.flatten(1) + 0.01 * torch.randn_like(x.flatten(1)))


class Noisy(fm.Selector):
    def __init__(self, generator):
        self.generator = generator

    def select(self, view):
        if self.generator == "PyTorch's":
            torch.rand(1)
        else:
            np.random.rand()  # noqa: NPY002
        return [0, 1], [0.5, 0.5]


def test_a_model_that_draws_is_named_beside_an_algorithm_with_its_own_step(quick):
    with pytest.raises(ValueError, match="Cannot train the model because it draws from PyTorch's global generator"):
        quick(model=NoisyModel(64, 10), algorithm=fm.FedProx(lr=0.1, mu=0.1), engine="loop")


@pytest.mark.parametrize("generator", ["PyTorch's", "NumPy's"])
def test_a_selector_that_draws_globally_is_named(quick, generator):
    sentence = f"Noisy: 'select' must not draw from {generator} global generator because its runs would not repeat; use"
    with pytest.raises(ValueError, match=sentence):
        quick(selection=Noisy(generator))


def test_a_selector_that_draws_after_local_training_is_named(quick):
    with pytest.raises(ValueError, match="DrawsInThin: 'thin' must not draw from PyTorch's global generator"):
        quick(selection=DrawsInThin())


def test_a_local_optimiser_that_draws_is_named(quick):
    with pytest.raises(ValueError, match="DrawsNoise: 'update' must not draw from PyTorch's global generator"):
        quick(local=DrawsNoise(), dtype=torch.float64)


class ByTheWay(torch.nn.Linear):
    """Draws from Python's generator, as another thread might."""

    def forward(self, x):
        random.random()
        return super().forward(x.flatten(1))


def test_draws_of_python_that_are_no_methods_are_let_pass(quick):
    assert len(quick(model=ByTheWay(64, 10), engine="loop").history) == 3


class Rare(Mistake):
    """Draws in the second round only."""

    def direction(self, y, s, c, grad, k):
        return grad(y) + (torch.randn(()) if c.t == 1 else 0), s


def test_the_first_round_is_checked_and_fm_check_finds_the_rest(quick):
    assert len(quick(algorithm=Rare()).history) == 3
    assert "Rare: 'direction' must not draw from PyTorch's global generator" in fm.check(Rare())[0]
