"""Attacks as a diagnostic: they find what is there, and nothing else."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

import fedmos as fm
from fedmos.leakage.membership import rank_test
from helpers.command_line import command_line

pytest.importorskip("dp_accounting")
DATA = fm.datasets.load("digits").partition(fm.partition.IID(), clients=50, seed=0).subset(range(10))
CANARIES = fm.leakage.Canaries(10, references=200, copies=3)
HOW = {"rounds": 15, "local_steps": 15, "batch_size": 10, "eval_every": 15, "device": "cpu"}


def trained(privacy=None, seed: int = 0, **how) -> fm.Result:
    model, planted = fm.models.mlp(features=64), CANARIES.plant(DATA)
    how = {"selection": fm.Full(), "privacy": privacy, "seed": seed, **HOW, **how}
    return fm.run(model, planted, fm.FedAvg(lr=0.2), **how)


def strong(noise: float = 30.0) -> fm.privacy.Gaussian:
    return fm.privacy.Gaussian(clip=0.02, noise_multiplier=noise, delta=1e-3)


def test_planted_and_training_samples_are_found_without_privacy_only():
    result = trained()
    plain = CANARIES.exposure(result, DATA)
    assert plain.p_value < 1e-4
    assert plain.mean > plain.expected + 1.5
    private = CANARIES.exposure(trained(strong()), DATA)
    assert private.p_value > 0.01
    assert private.mean < plain.expected + 1
    member = fm.leakage.membership(result, DATA)
    assert member.auc > 0.55
    assert member.p_value < 0.01
    never = fm.leakage.Canaries(10, references=200, copies=3, seed=7).exposure(result, DATA)
    assert never.p_value > 0.01  # other samples, which nobody has


@pytest.mark.extended
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_exposure_is_calibrated(seed):
    assert CANARIES.exposure(trained(seed=seed), DATA).p_value < 1e-4
    mechanisms = [strong(), fm.privacy.Local(0.02, 30.0, 1e-3), fm.privacy.MatrixFactorization(0.02, 60.0, 1e-3)]
    for privacy in mechanisms:
        assert CANARIES.exposure(trained(privacy, seed), DATA).p_value > 0.005


def test_what_is_planted():
    planted = CANARIES.plant(DATA)
    assert (planted.sizes - DATA.sizes).sum() == 10 * 3
    assert (planted.sizes - DATA.sizes).max() == 3
    assert torch.equal(planted.importance, DATA.importance)
    i = int((planted.sizes - DATA.sizes).argmax())
    (before, _), (x, y) = DATA.client(i), planted.client(i)
    assert torch.equal(x[: len(before)], before)
    (place,) = [j for j, v in enumerate(DATA.test[0]) if torch.equal(v, x[-1].to(v.dtype))]
    assert int(y[-1]) != int(DATA.test[1][place])
    assert torch.equal(y[-3:], y[-1].expand(3))
    assert CANARIES.plant(DATA).fingerprint() == planted.fingerprint()


def test_ranks():
    """Exposure of the first of four places among three references is 2 bits, of the last 0."""
    exposure = fm.leakage.Exposure((2.0, 0.0), references=3, auc=0.5, p_value=0.5)
    assert (exposure.mean, exposure.most) == (1.0, 2.0)
    assert exposure.expected == pytest.approx(np.mean([2 - math.log2(rank) for rank in (1, 2, 3, 4)]))
    assert rank_test(np.array([1.0, 3.0]), np.array([2.0, 2.0])) == (0.5, 0.5)
    assert rank_test(np.array([1.0]), np.array([1.0])) == (0.5, 0.5)
    auc, p_value = rank_test(np.arange(20.0), np.arange(100.0, 150.0))
    assert auc == 1
    assert p_value < 1e-8
    draw = np.random.default_rng(0)
    values = [rank_test(draw.normal(size=20), draw.normal(size=100))[1] for _ in range(400)]
    assert np.mean(np.array(values) < 0.1) == pytest.approx(0.1, abs=0.05)


def test_an_update_reveals_its_sample_without_privacy_only():
    given = (fm.models.logistic(features=64), DATA, fm.FedAvg(lr=0.1))
    how = {"samples": 2, "iterations": 120, "device": "cpu"}
    plain = fm.leakage.gradient_inversion(*given, **how)
    assert plain.correlation > 0.95 > plain.others
    assert plain.samples.shape == plain.reconstructed.shape == (2, *DATA.x.shape[1:])
    for privacy in (fm.privacy.Gaussian(0.5, 1.0, 1e-3), fm.privacy.Local(0.5, 1.0, 1e-3)):
        noisy = fm.leakage.gradient_inversion(*given, privacy=privacy, **how)
        assert noisy.correlation < 0.6


def test_a_sample_is_compared_with_those_of_other_clients():
    x = torch.randn(4, 6, generator=torch.Generator().manual_seed(0))
    clients = [(x[:2], torch.tensor([0, 1])), (-x[:2], torch.tensor([0, 1])), (x[2:], torch.tensor([1, 1]))]
    data, model = fm.FederatedData.from_arrays(clients), fm.models.logistic(features=6, classes=2)
    how = {"iterations": 1, "device": "cpu"}
    assert fm.leakage.gradient_inversion(model, data, fm.FedAvg(lr=0.1), **how).others == pytest.approx(-1)
    alone = fm.leakage.gradient_inversion(model, data.subset([0]), fm.FedAvg(lr=0.1), **how)
    assert math.isnan(alone.others)


def test_frozen_parameters_and_other_dtypes():
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 64), torch.nn.Linear(64, 10))
    model[1].requires_grad_(False)
    how = {"iterations": 3, "device": "cpu", "dtype": torch.float64}
    found = fm.leakage.gradient_inversion(model, DATA, fm.Scaffold(lr=0.1), **how)
    assert found.reconstructed.shape == (1, 1, 8, 8)
    assert all(p.grad is None for p in model.parameters())


def test_mistakes():
    words = fm.FederatedData.from_arrays([(torch.zeros(4, 2, dtype=torch.int64), torch.zeros(4, dtype=torch.int64))])
    with pytest.raises(ValueError, match="Cannot invert gradients because inputs are not numbers, or targets are not"):
        fm.leakage.gradient_inversion(fm.models.mlp(features=2), words, fm.FedAvg(lr=0.1))
    with pytest.raises(ValueError, match="Cannot make 300 canaries and 256 references of 359 test samples; use fewer"):
        fm.leakage.Canaries(300).plant(DATA)
    with pytest.raises(ValueError, match="Canaries: 'copies' must be an integer ≥ 1, got 0"):
        fm.leakage.Canaries(copies=0)
    how = (fm.models.mlp(features=64), 3, fm.FedAvg(lr=0.1))
    for attack, sentence in (
        (lambda: fm.leakage.membership(3, DATA), "leakage: 'result' must be a fedmos.Result, got 3"),
        (lambda: fm.leakage.membership(3, 3), "membership: 'data' must be a fedmos.FederatedData, got 3"),
        (
            lambda: fm.leakage.gradient_inversion(*how),
            "gradient_inversion: 'data' must be a fedmos.FederatedData, got 3",
        ),
        (lambda: fm.leakage.canary_exposure(*how, fm.Full()), "canaries: 'data' must be a fedmos.FederatedData, got 3"),
        (
            lambda: fm.leakage.canary_exposure(*how, fm.Full(), canaries=3),
            r"'canaries' must be Canaries\(…\) or None, got 3",
        ),
    ):
        with pytest.raises(ValueError, match=sentence):
            attack()
    bare = fm.FederatedData.from_arrays([(torch.zeros(4, 2), torch.zeros(4, dtype=torch.int64))])
    with pytest.raises(ValueError, match="Cannot measure canaries without a test set"):
        fm.leakage.Canaries(1, references=1).plant(bare)
    one = fm.FederatedData.from_arrays([(torch.zeros(4, 2), [0] * 4)], test=(torch.zeros(4, 2), [0] * 4))
    with pytest.raises(ValueError, match="Cannot plant canaries because the data have one class"):
        fm.leakage.Canaries(1, references=1).plant(one)
    numbers = fm.FederatedData.from_arrays(
        [(torch.zeros(4, 2), torch.zeros(4))], test=(torch.zeros(4, 2), torch.zeros(4))
    )
    with pytest.raises(ValueError, match="because targets are not one class label for each sample"):
        fm.leakage.Canaries(1, references=1).plant(numbers)


def test_the_command_prints_both_rows(tmp_path):
    (tmp_path / "run.toml").write_text(
        'rounds = 2\nlocal_steps = 2\nbatch_size = 8\ndevice = "cpu"\n'
        'data = { name = "digits", clients = 20 }\nmodel = { name = "logistic", features = 64 }\n'
        'algorithm = { name = "FedAvg", lr = 0.1 }\nselection = { name = "Full" }\n'
        'privacy = { name = "Gaussian", clip = 1.0, noise_multiplier = 9.0, delta = 1e-3 }\n'
    )
    done = command_line("privacy", "leakage", "run.toml", "--references", "100", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "none" in done.stdout
    assert "given" in done.stdout
    assert "Expected exposure of samples that nobody has: 1.4" in done.stdout
