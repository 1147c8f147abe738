"""`fedmos privacy`."""

import pytest

import fedmos as fm
from helpers.command_line import command_line

pytest.importorskip("dp_accounting")


def test_plan_prints_the_noise(tmp_path):
    asked = ("privacy", "plan", "--epsilon", "4", "--rounds", "500", "--clients", "5000")
    done = command_line(*asked, "--rate", "0.02", "--delta", "1e-5", cwd=tmp_path)
    noise = fm.privacy.plan(4.0, rounds=500, delta=1e-5, selection=fm.Bernoulli(rate=0.02), clients=5000)
    assert done.returncode == 0
    assert f"noise_multiplier = {noise:.4f}" in done.stdout
    assert "at δ = 1e-05 after 500 rounds, one client added or removed" in done.stdout
    everyone = command_line(*asked, cwd=tmp_path)
    assert "Not amplified by sampling because Full draws no random cohorts" in everyone.stdout
    assert "δ = 8.53e-05" in everyone.stdout


def test_the_printed_noise_is_enough(tmp_path):
    """Noise is rounded up: with less, the run would exceed ε."""
    for rate in (0.02, 0.03, 0.05):
        how = {"rounds": 50, "delta": 1e-3, "selection": fm.Bernoulli(rate=rate), "clients": 500}
        asked = ("--epsilon", "2", "--rounds", "50", "--clients", "500", "--delta", "1e-3", "--rate", str(rate))
        printed = command_line("privacy", "plan", *asked, cwd=tmp_path).stdout.split()[2]
        assert fm.privacy.epsilon(float(printed), **how) <= 2 < fm.privacy.epsilon(float(printed) - 2e-4, **how)


def test_plan_of_other_mechanisms(tmp_path):
    asked = ("privacy", "plan", "--epsilon", "4", "--rounds", "50", "--clients", "500", "--m", "100", "--delta", "1e-3")
    how = {"rounds": 50, "delta": 1e-3, "selection": fm.Cyclic(m=100), "clients": 500}
    correlated = command_line(*asked, "--cyclic", "--mechanism", "MatrixFactorization", "--bands", "5", cwd=tmp_path)
    noise = float(correlated.stdout.split()[2])
    assert fm.privacy.epsilon(noise, mechanism="MatrixFactorization", bands=5, **how) == pytest.approx(4, rel=1e-3)
    local = command_line(*asked, "--cyclic", "--mechanism", "Local", cwd=tmp_path)
    assert fm.privacy.epsilon(float(local.stdout.split()[2]), mechanism="Local", **how) == pytest.approx(4, rel=1e-3)
    assert "For a client that takes part 10 times" in local.stdout
    refused = command_line(*asked, "--mechanism", "MatrixFactorization", cwd=tmp_path)
    assert "Cannot use MatrixFactorization with Uniform because a client may take part in any round" in refused.stderr


def test_mistakes(tmp_path):
    asked = ("privacy", "plan", "--epsilon", "4", "--rounds", "5", "--clients", "50")
    both = command_line(*asked, "--rate", "0.02", "--m", "3", cwd=tmp_path)
    assert both.returncode == 2
    assert "at most one of --rate and --m must be given, got both" in both.stderr
    assert "'m' must be ≤ the number of clients (50), got 60" in command_line(*asked, "--m", "60", cwd=tmp_path).stderr
