"""ε by privacy loss distributions, against dp-accounting's."""

from __future__ import annotations

import math

import pytest

import fedmos as fm
from fedmos.config import schema as config
from fedmos.privacy.loss_distributions import SampledGaussian
from fedmos.run.values import structured
from fedmos.storage import toml
from helpers.command_line import command_line
from helpers.configs import TABLE
from helpers.conformance import LR
from helpers.private import arguments, gaussian, private

dp = pytest.importorskip("dp_accounting")
pld = pytest.importorskip("dp_accounting.pld")
N = 1000


def expected(event, rounds: int, delta: float, interval: float = 1e-4) -> float:
    accountant = pld.PLDAccountant(value_discretization_interval=interval)
    return accountant.compose(event, rounds).get_epsilon(delta)


def spent(selection: fm.Selector, noise: float, rounds: int, delta: float, accountant: str = "pld", **how) -> float:
    how = {"rounds": rounds, "delta": delta, "selection": selection, "clients": N, "accountant": accountant} | how
    return fm.privacy.epsilon(noise, **how)


@pytest.mark.parametrize(
    ("rate", "noise"), [pytest.param(0.001, 0.6328, marks=pytest.mark.extended), (0.02, 1.0), (0.3, 4.0), (0.9, 20.0)]
)
def test_epsilon_is_that_of_dp_accounting(rate, noise):
    event, selection = dp.PoissonSampledDpEvent(rate, dp.GaussianDpEvent(noise)), fm.Bernoulli(rate=rate)
    for rounds in (1, 2, 60, 1500):
        for delta in (1e-3, 1e-6):
            found = spent(selection, noise, rounds, delta)
            assert found == pytest.approx(expected(event, rounds, delta), abs=1e-6)
            assert found <= spent(selection, noise, rounds, delta, "rdp")


@pytest.mark.extended
def test_epsilon_without_amplification_is_that_of_dp_accounting():
    for rounds in (1, 300):
        for selection, noise, how in (
            (fm.Full(), 5.0, {}),
            (fm.Cyclic(m=10), 5.0, {}),
            (fm.Bernoulli(rate=1.0), 5.0, {}),
            (fm.ACS(m=10), 2.5, {}),
            (fm.Uniform(m=10), 2.5, {"stateful": True}),
        ):
            found = spent(selection, 5.0, rounds, 1e-5, **how)
            assert found == pytest.approx(expected(dp.GaussianDpEvent(noise), rounds, 1e-5), abs=1e-6)
            assert found <= spent(selection, 5.0, rounds, 1e-5, "rdp", **how)


@pytest.mark.extended
def test_little_noise_has_a_coarser_grid():
    event = dp.PoissonSampledDpEvent(0.02, dp.GaussianDpEvent(0.25))
    losses = SampledGaussian(0.02, 0.25)
    for rounds in (1, 30):
        found = losses.epsilon(rounds, 1e-5)
        assert found == pytest.approx(expected(event, rounds, 1e-5, 1e-4 * (0.3 / 0.25) ** 2), rel=1e-6)
        assert 0 <= found - expected(event, rounds, 1e-5) < 1e-4 * found
    assert math.isfinite(SampledGaussian(0.02, 0.01).epsilon(3, 1e-5))


def test_epsilon_does_not_depend_on_what_was_asked_before():
    asked, fresh = SampledGaussian(0.1, 1.5), SampledGaussian(0.1, 1.5)
    found = [asked.epsilon(rounds, 1e-5) for rounds in range(1, 41)]
    assert found == sorted(set(found))
    assert fresh.epsilon(40, 1e-5) == found[-1]
    assert fresh.epsilon(7, 1e-5) == found[6]
    assert fresh.epsilon(40, 1e-16) == math.inf  # dp-accounting's, too: losses are truncated


@pytest.mark.parametrize(
    ("epsilon", "selection"),
    [pytest.param(4.0, fm.Bernoulli(rate=0.02), marks=pytest.mark.extended), (2.0, fm.Cyclic(m=20))],
)
def test_the_planned_noise_is_the_least(epsilon, selection):
    how = {"rounds": 50, "delta": 1e-5, "selection": selection, "clients": N}
    noise = fm.privacy.plan(epsilon, accountant="pld", **how)
    assert spent(selection, noise, 50, 1e-5) <= epsilon < spent(selection, 0.999 * noise, 50, 1e-5)
    assert noise < fm.privacy.plan(epsilon, **how)
    assert fm.privacy.plan(epsilon, accountant="rdp", **how) == fm.privacy.plan(epsilon, **how)


def test_noise_for_a_large_epsilon():
    """It is no less than the least noise that privacy loss distributions account for."""
    how = {"rounds": 1, "delta": 1e-5, "selection": fm.Bernoulli(rate=0.02), "clients": N}
    assert fm.privacy.plan(1e5, accountant="pld", **how) == pytest.approx(0.01, rel=1e-3)


@pytest.mark.parametrize("accountant", ["rdp", "pld"])
def test_without_noise_there_is_no_privacy(accountant):
    assert spent(fm.Bernoulli(rate=0.1), 0.0, 1, 1e-5, accountant) == math.inf
    assert spent(fm.Full(), 0.0, 1, 1e-5, accountant) == math.inf


def test_refusals():
    with pytest.raises(
        ValueError, match=r"Cannot use accountant='pld' with Uniform because .* use accountant='rdp', or"
    ):
        spent(fm.Uniform(m=10), 1.0, 5, 1e-5)
    with pytest.raises(ValueError, match="Cannot use accountant='pld' with 'delta' = 1e-12 because"):
        spent(fm.Bernoulli(rate=0.1), 1.0, 5, 1e-12)
    with pytest.raises(ValueError, match=r"Cannot use accountant='pld' with 'noise_multiplier' = 0.001 because"):
        spent(fm.Bernoulli(rate=0.1), 0.001, 5, 1e-5)
    with pytest.raises(ValueError, match="epsilon: 'accountant' must be one of 'rdp', 'pld', got 'PLD'"):
        spent(fm.Bernoulli(rate=0.1), 1.0, 5, 1e-5, "PLD")
    with pytest.raises(ValueError, match="epsilon: 'accountant' must be left out with mechanism 'Local', got 'pld'"):
        spent(fm.Full(), 1.0, 5, 1e-5, mechanism="Local")
    with pytest.raises(ValueError, match="Gaussian: 'accountant' must be one of 'rdp', 'pld', got 'zcdp'"):
        gaussian(accountant="zcdp")
    given = arguments(fm.FedAvg(lr=LR), selection=fm.Uniform(m=3), privacy=gaussian(accountant="pld"))
    with pytest.raises(ValueError, match="Cannot use accountant='pld' with Uniform because"):
        fm.run(**given)
    stateful = arguments(fm.Scaffold(lr=LR), selection=fm.Uniform(m=3), privacy=gaussian(accountant="pld"))
    assert fm.run(**stateful | {"rounds": 1}).history[0].epsilon > 0  # not amplified


@pytest.mark.parametrize("adaptive", [False, True])
def test_records_and_resumed_runs(adaptive, tmp_path):
    how = {"rounds": 5, "privacy": gaussian(accountant="pld", adaptive=adaptive)}
    whole = private(fm.FedAvg(lr=LR), "loop", **how)
    found = [record.epsilon for record in whole.history]
    assert found == [spent(fm.Bernoulli(rate=0.35), 1.0, t, 1e-3, clients=7) for t in range(1, 6)]
    usual = private(fm.FedAvg(lr=LR), "loop", rounds=5, privacy=gaussian(adaptive=adaptive))
    assert all(mine < record.epsilon for mine, record in zip(found, usual.history, strict=True))
    assert usual.params.equal(whole.params)
    for rounds in (2, 5):
        parts = private(fm.FedAvg(lr=LR), "loop", **how | {"rounds": rounds}, out=tmp_path / "run", resume=True)
    assert [record.epsilon for record in parts.history] == found
    with pytest.raises(ValueError, match=r"Cannot resume the run in .* because its 'privacy' is .*accountant='pld'"):
        private(
            fm.FedAvg(lr=LR), "loop", rounds=5, privacy=gaussian(adaptive=adaptive), out=tmp_path / "run", resume=True
        )


def test_the_budget_ends_the_run_before_it_is_exceeded():
    budget = spent(fm.Bernoulli(rate=0.35), 1.0, 3, 1e-3, clients=7)
    result = private(fm.FedAvg(lr=LR), "loop", rounds=6, privacy=gaussian(accountant="pld", budget=budget))
    assert len(result.history) == 3
    assert result.info["stopped"] == "privacy budget"
    assert len(private(fm.FedAvg(lr=LR), "loop", rounds=6, privacy=gaussian(budget=budget)).history) < 3


def test_folders_of_earlier_versions_are_resumed(tmp_path):
    """They do not record which accountant computed ε."""
    assert structured(gaussian())["fields"].keys() == {"clip", "noise_multiplier", "delta", "budget", "adaptive"}
    assert structured(gaussian(accountant="pld"))["fields"]["accountant"] == "pld"
    result = private(fm.FedAvg(lr=LR), "loop", rounds=1, out=tmp_path / "run")
    assert result.info["option_values"]["privacy"] == structured(gaussian())
    assert len(private(fm.FedAvg(lr=LR), "loop", rounds=2, out=tmp_path / "run", resume=True).history) == 2


def test_configuration(tmp_path):
    privacy = {"name": "Gaussian", "clip": 1.0, "noise_multiplier": 1.0, "delta": 1e-3, "accountant": "pld"}
    run = {"rounds": 1, "data": {"name": "digits", "clients": 20}, "algorithm": {"name": "FedAvg", "lr": 0.01}}
    path = tmp_path / "run.toml"
    path.write_text(toml.dumps(TABLE | run | {"selection": {"name": "Bernoulli", "rate": 0.2}, "privacy": privacy}))
    settings = config.load(config.RunConfig, path, [])
    given = settings.arguments(settings.algorithm, settings.selection, settings.seed)
    assert given["privacy"] == fm.privacy.Gaussian(1.0, 1.0, 1e-3, accountant="pld")
    wrong = config.load(config.RunConfig, path, ["privacy.accountant=x"])
    with pytest.raises(ValueError, match=r"privacy.accountant: must be one of 'rdp', 'pld', got 'x'"):
        wrong.arguments(wrong.algorithm, wrong.selection, wrong.seed)


def test_the_command_line(tmp_path):
    asked = ("privacy", "plan", "--epsilon", "8", "--rounds", "50", "--clients", "500", "--accountant", "pld")
    done = command_line(*asked, "--rate", "0.1", "--delta", "1e-4", cwd=tmp_path)
    printed = float(done.stdout.split()[2])
    assert (
        spent(fm.Bernoulli(rate=0.1), printed, 50, 1e-4) <= 8 < spent(fm.Bernoulli(rate=0.1), printed - 2e-4, 50, 1e-4)
    )
    refused = command_line(*asked, "--m", "50", cwd=tmp_path)
    assert refused.returncode == 2
    assert "Cannot use accountant='pld' with Uniform because dp-accounting has no privacy loss" in refused.stderr
