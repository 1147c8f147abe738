"""Sizes and seeds of the papers' models."""

import pytest
import torch

import fedmos as fm


@pytest.mark.parametrize(
    ("make", "count"),
    [
        (fm.models.cnn_mnist, 21_840),
        (fm.models.mlp, 52_500),
        (fm.models.logistic, 7_850),
        (fm.models.cnn_digits, 1_898),
    ],
)
def test_models_have_the_papers_sizes_and_follow_their_seed(make, count):
    flat = [torch.cat([p.detach().flatten() for p in make(seed=seed).parameters()]) for seed in (0, 0, 1)]
    assert torch.equal(flat[0], flat[1])
    assert not torch.equal(flat[0], flat[2])
    assert len(flat[0]) == count
