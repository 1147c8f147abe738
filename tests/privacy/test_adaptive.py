"""Clipping that follows the median norm of the updates."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

import fedmos as fm
from helpers.conformance import EACH_SENDING, LOGISTIC, LR, close
from helpers.private import CLIENTS, Sums, arguments, gaussian, private

ONCE = [case for case in EACH_SENDING if not case.make().prepare_up]


def adaptive(clip: float = 0.05, noise: float = 1.0) -> fm.privacy.Gaussian:
    return gaussian(clip, noise, adaptive=True)


@pytest.mark.parametrize("first", [pytest.param(1e-3, marks=pytest.mark.extended), 30.0])
def test_the_bound_reaches_the_median(first):
    """With steps of a constant size, all updates keep their norms, and half of the clients are clipped at last."""

    class Lengths(fm.FedAvg):
        def finish(self, y, s, c, grad):
            direction = torch.ones_like(y) / math.sqrt(y.shape[-1])
            return {"delta": direction * (c.p * 7)}, {}

    result = private(Lengths(lr=LR), "loop", selection=fm.Full(), rounds=150, privacy=adaptive(first, 0.0))
    norms = np.sort(7 * LOGISTIC.p)
    bound = float(result.server_state["privacy.clip"])
    assert norms[2] * 0.9 <= bound <= norms[4] * 1.1


def test_one_step_of_the_bound():
    """C ← C exp(−0.2 (share − 0.5)): all are within a large bound, none within a small one."""
    for first, share in ((100.0, 1.0), (1e-6, 0.0)):
        result = private(fm.FedAvg(lr=LR), "loop", selection=fm.Full(), rounds=1, privacy=adaptive(first, 0.0))
        assert float(result.server_state["privacy.clip"]) == pytest.approx(first * math.exp(-0.2 * (share - 0.5)))


def test_noise_of_both_sums_is_accounted():
    """z⁻² is shared between the updates and the count, and ε is that of z."""
    sums = Sums(fm.FedAvg(lr=LR), engine="loop", privacy=adaptive(0.5, 2.0))
    mechanism = sums.state.algorithm._privacy_sums
    groups = mechanism.in_round(False)
    multipliers = [mechanism.multiplier(group, groups) for group in groups]
    assert sum(z**-2 for z in multipliers) == pytest.approx(2.0**-2)
    assert [group.bound for group in groups] == [0.5, 0.5]
    large = Sums(fm.FedAvg(lr=LR), engine="loop", privacy=adaptive(0.5, 0.01)).state.algorithm._privacy_sums
    assert large.count_multiplier == CLIENTS / 10
    how = {"selection": fm.Bernoulli(rate=0.35), "rounds": 2}
    fixed, moving = (private(fm.FedAvg(lr=LR), "loop", privacy=p, **how) for p in (gaussian(), adaptive()))
    assert [r.epsilon for r in fixed.history] == [r.epsilon for r in moving.history]


def test_noise_follows_the_bound():
    """After rounds without clients, whose count is noise alone, the noise of the updates is relative to the new bound."""
    seen = []

    class Watched(fm.FedAvg):
        def server(self, x, state, agg, ctx):
            seen.append(float(agg["A"].std() / state["privacy.clip"]) * CLIENTS)
            return super().server(x, state, agg, ctx)

    sums = Sums(Watched(lr=LR), engine="loop", privacy=adaptive(1e-3, 2.0))
    sums.state.sampler._prefetched = {n: sums.state.sampler.empty() for n in range(40)}
    sums.play(40)
    z = sums.state.algorithm._privacy_sums
    assert float(np.mean(seen)) == pytest.approx(z.multiplier(z.groups[0], z.groups), rel=0.15)
    assert float(sums.state.server_state["privacy.clip"]) != pytest.approx(1e-3, rel=1e-3)


@pytest.mark.parametrize("case", [c for c in ONCE if c.name in ("FedAvg", "Scaffold", "FedExP", "FedACG")], ids=str)
def test_what_clients_contribute_is_within_the_bound(case):
    sums = Sums(case.make(), engine="loop", privacy=adaptive(0.03, 0.0))
    sums.play(2)
    whole, rest = (sums.of(ids) for ids in (list(range(CLIENTS)), list(range(1, CLIENTS))))
    count = float(abs(whole.pop("train privacy.below") - rest.pop("train privacy.below")))
    moved = math.sqrt(sum(float(((whole[n] - rest[n]) ** 2).sum()) for n in whole))
    assert count == 0.5
    assert moved <= float(sums.state.server_state["privacy.clip"]) * (1 + 1e-9)
    assert sums.state.server_state["privacy.clip"] != 0.03


@pytest.mark.extended
@pytest.mark.filterwarnings("ignore:FedHBM with beta")
@pytest.mark.parametrize("case", ONCE, ids=str)
def test_engines_agree(case):
    one, other = (private(case.make(), engine, privacy=adaptive()) for engine in ("loop", "batched"))
    close(one.params, other.params, 1e-9)
    close(one.server_state["privacy.clip"], other.server_state["privacy.clip"], 1e-9)


def test_bytes_and_resume(tmp_path):
    """One number down and one up for each client, and the bound is part of a checkpoint."""
    how = {"selection": fm.Uniform(m=3), "privacy": adaptive()}
    plain = private(fm.Scaffold(lr=LR), "loop", rounds=1, **how | {"privacy": gaussian()}).history[0]
    whole = private(fm.Scaffold(lr=LR), "loop", rounds=4, **how)
    assert (whole.history[0].bytes_up, whole.history[0].bytes_down) == (plain.bytes_up + 24, plain.bytes_down + 24)
    for rounds in (2, 4):
        parts = private(fm.Scaffold(lr=LR), "loop", rounds=rounds, out=tmp_path / "run", resume=True, **how)
    assert torch.equal(parts.params, whole.params)
    assert torch.equal(parts.server_state["privacy.clip"], whole.server_state["privacy.clip"])


def test_merged_runs():
    given = arguments(fm.FedAvg(lr=LR), rounds=3, privacy=adaptive())
    given.pop("seed")
    for seed, result in zip((1, 2), fm.run_many([{"seed": 1}, {"seed": 2}], **given), strict=True):
        close(result.params, fm.run(**given, seed=seed).params, 1e-9)


def test_an_extra_phase_is_refused():
    with pytest.raises(ValueError, match="Cannot clip adaptively with Mime because in its extra phase clients do not"):
        private(fm.Mime(lr=LR), privacy=adaptive())
