"""The noise: its size, its streams, and an attack that tries to tell two federations apart."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import stats

import fedmos as fm
from helpers.conformance import LR
from helpers.distinguishing import DELTA, Constant, Still, lower_bound
from helpers.private import CLIENTS, Sums, gaussian, private


def observed(signs: list[float], noise: float, rounds: int, selection: fm.Selector, seed: int = 0) -> np.ndarray:
    """What an attacker sees of the rounds of a run with clients whose updates have these signs, in bounds of a client.

    A removed client has data of gradient zero.
    """
    data = fm.FederatedData.from_arrays([(np.full((2, 1), s, dtype=np.float32), np.zeros((2, 1))) for s in signs])
    seen: list[float] = []
    fm.run(
        Still(),
        data,
        Constant(seen=seen),
        selection,
        rounds=rounds,
        local_steps=1,
        loss=lambda outputs, targets: outputs.mean(),
        seed=seed,
        engine="loop",
        eval_every=rounds,
        privacy=fm.privacy.Gaussian(clip=0.5, noise_multiplier=noise, delta=DELTA),
    )
    size = len(signs) * selection.rate if isinstance(selection, fm.Bernoulli) else len(signs)
    return np.array(seen) * size / 0.5


@pytest.mark.extended
@pytest.mark.parametrize("selection", [fm.Bernoulli(rate=0.7), fm.Full()], ids=str)
def test_an_attack_does_not_prove_more_than_epsilon(selection):
    """On two clients, one of them present or not. With a tenth of the noise, the same attack proves more."""
    noise, rounds = 1.2, 1000
    epsilon = fm.privacy.epsilon(noise, rounds=1, delta=DELTA, selection=selection, clients=2)

    def attack(noise: float) -> float:
        there, gone = (observed([s, -1.0], noise, rounds, selection, seed) for s, seed in ((1.0, 0), (0.0, 1)))
        return lower_bound(there, gone)

    assert 0.1 < attack(noise) < epsilon
    assert attack(noise / 10) > epsilon


def test_the_noise_has_the_declared_deviation():
    values = observed([1.0, 1.0, -1.0, 0.0], 0.8, 600, fm.Full())
    assert values.mean() == pytest.approx(-1.0, abs=4 * 0.8 / math.sqrt(600))
    assert values.std() == pytest.approx(0.8, rel=0.12)
    assert abs(np.corrcoef(values[:-1], values[1:])[0, 1]) < 0.17
    assert stats.kstest((values + 1) / 0.8, "norm").pvalue > 1e-4


def noise_of(algorithm: fm.Algorithm, privacy: fm.privacy.Gaussian, t: int = 0) -> dict[str, torch.Tensor]:
    """The noise on each sum that the server of an algorithm gets in a round, times the expected cohort."""
    seen: dict[str, torch.Tensor] = {}

    class Watched(type(algorithm)):
        def server(self, x, state, agg, ctx):
            seen.update({f"server {name}": v.clone() for name, v in agg.items()})
            return super().server(x, state, agg, ctx)

    made = Watched(**{name: getattr(algorithm, name) for name in algorithm.__dataclass_fields__})
    sums = Sums(made, engine="loop", privacy=privacy)
    sampled = sums.state.sampler.empty()
    sums.state.sampler._prefetched = dict.fromkeys(range(t + 1), sampled)  # nobody takes part: noise alone
    sums.play(t + 1)
    return {name: v * CLIENTS for name, v in seen.items()}


def test_noise_of_several_sums_and_phases():
    """Sums of one upload have one noise. In a round with both phases, it is larger by √2."""
    privacy = gaussian(0.5, 4.0)
    cm = noise_of(fm.FedCM(lr=LR), privacy)
    assert torch.allclose(cm["server step"] * 3, cm["server A"])
    assert float(cm["server A"].std()) == pytest.approx(2.0, rel=0.5)
    dyn = noise_of(fm.FedDyn(lr=LR), privacy)
    assert torch.allclose(dyn["server P"], dyn["server A"])  # 1/N is 1/7, too
    first, later = (noise_of(fm.Stem(lr=LR), privacy, t) for t in (0, 1))
    again = noise_of(fm.FedAvg(lr=LR), privacy)
    assert torch.allclose(first["server A"], math.sqrt(2) * again["server A"])
    assert not torch.allclose(later["server A"], first["server A"])


def test_noise_of_bounds_by_upload():
    """The budget is split equally: each upload has √2 times its own bound."""
    split = noise_of(fm.Scaffold(lr=LR), gaussian({"delta": 0.5, "change": 0.01}, 4.0))
    joint = noise_of(fm.Scaffold(lr=LR), gaussian(0.5, 4.0))
    assert torch.allclose(split["server A"], math.sqrt(2) * joint["server A"])
    assert torch.allclose(split["server C"], math.sqrt(2) * 0.02 * joint["server C"])


def test_the_sum_of_the_extra_phase_has_one_noise():
    """What clients are sent, what the server computes with, and what it keeps are the same noisy sum."""
    seen: list[torch.Tensor] = []

    class Watched(fm.Mime):
        def broadcast(self, x, state, ctx):
            seen.append(state["c"])
            return super().broadcast(x, state, ctx)

        def server(self, x, state, agg, ctx):
            seen.append(state["c"])
            return super().server(x, state, agg, ctx)

    result = private(Watched(lr=LR), "loop", rounds=1, selection=fm.Full(), privacy=gaussian(0.5, 4.0))
    assert len(seen) == 2
    assert torch.equal(seen[0], seen[1])
    assert torch.equal(seen[0], result.server_state["c"])
    exact = private(fm.Mime(lr=LR), "loop", rounds=1, selection=fm.Full(), privacy=gaussian(0.5, 0.0))
    noise = (result.server_state["c"] - exact.server_state["c"]) * CLIENTS
    assert float(noise.std()) == pytest.approx(4.0 * math.sqrt(2) * 0.5, rel=0.5)


def test_a_round_without_clients_is_played():
    """Otherwise it would tell that nobody took part."""
    result = private(fm.FedAvgM(lr=LR), rounds=6, selection=fm.Bernoulli(rate=0.05))
    empty = [record for record in result.history if not record.cohort]
    assert len(empty) >= 3
    assert not any(record.abandoned for record in result.history)
    assert len({record.train_loss for record in result.history}) == 6


def test_seeds_determine_the_noise():
    one, same, other = (private(fm.FedAvg(lr=LR), "loop", seed=seed, rounds=2).params for seed in (1, 1, 2))
    assert torch.equal(one, same)
    assert not torch.allclose(one, other)
