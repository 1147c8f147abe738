"""Noise that is correlated over rounds: its factorisation, sensitivity, ε, and runs with it."""

from __future__ import annotations

import math
from itertools import combinations, pairwise

import numpy as np
import pytest
import torch

import fedmos as fm
from fedmos.codecs import Quantize
from fedmos.privacy.matrix_factorization import coefficients, sensitivity
from fedmos.privacy.participation import participation_of
from helpers.conformance import EACH, LOGISTIC, LR, SENDING, close
from helpers.gaussian_curve import exact_epsilon
from helpers.private import CLIENTS, Sums, arguments, gaussian, private

CYCLIC = fm.Cyclic(m=3)  # three groups
SOME = [case for case in EACH if str(case) in ("Stem(a=0.6)", "Scaffold(server_lr=0.7,option=1)")]


def correlated(clip=0.05, noise: float = 1.0, bands: int = 3, **more) -> fm.privacy.MatrixFactorization:
    return fm.privacy.MatrixFactorization(clip, noise, 1e-3, bands=bands, **more)


def run(algorithm: fm.Algorithm, engine: str = "batched", **changes) -> fm.Result:
    return private(algorithm, engine, **{"selection": CYCLIC, "privacy": correlated(), **changes})


def matrix(bands: int, rounds: int) -> np.ndarray:
    c = np.zeros(rounds)
    c[: min(bands, rounds)] = coefficients(bands)[:rounds]
    return np.array([[c[i - j] if i >= j else 0.0 for j in range(rounds)] for i in range(rounds)])


def test_the_factor_is_the_square_root_of_prefix_sums():
    square = matrix(20, 20) @ matrix(20, 20)
    np.testing.assert_allclose(square, np.tril(np.ones((20, 20))), atol=1e-12)


@pytest.mark.parametrize("bands", [1, 2, 3, 5, 9])
@pytest.mark.parametrize("separation", [1, 2, 3, 4])
def test_sensitivity_is_the_most_of_all_participations(bands, separation):
    """Over all sets of rounds, and over random contributions of norm one."""
    draw = np.random.default_rng(0)
    for rounds in (1, 4, 9):
        C = matrix(bands, rounds)
        for times in range(1, -(-rounds // separation) + 1):
            most = 0.0
            for own in combinations(range(rounds), times):
                if all(b - a >= separation for a, b in pairwise(own)):
                    most = max(most, float(np.linalg.norm(C[:, own].sum(1))))
                    u = draw.normal(size=(times, 3))
                    u /= np.linalg.norm(u, axis=1, keepdims=True)
                    assert np.linalg.norm(C[:, own] @ u) <= most + 1e-12
            assert sensitivity(bands, rounds, separation, times) == pytest.approx(most, rel=1e-12)


def test_participation_of_selectors():
    assert participation_of(fm.Full(), 10)[:2] == (1, 1)
    cyclic = participation_of(fm.Cyclic(m=3), 10)
    assert (cyclic.separation, [cyclic.times(t) for t in (1, 4, 5, 8, 9)]) == (4, [1, 1, 2, 2, 3])
    fixed = participation_of(fm.FixedCohorts([[0], [1, 2], [1], [3], [2]]), 10)
    assert fixed.separation == 1
    assert [fixed.times(t) for t in (1, 2, 3, 5, 8)] == [1, 1, 2, 2, 4]
    assert participation_of(fm.Uniform(m=3), 10) is None


@pytest.mark.parametrize("selector", [fm.Cyclic(m=4), fm.FixedCohorts([[0, 1], [2], [1], [3]])], ids=str)
def test_participation_is_what_cohorts_are(selector):
    found = participation_of(selector, CLIENTS)
    cohorts = [r.cohort for r in private(fm.FedAvg(lr=LR), "loop", selection=selector, rounds=9).history]
    rounds = [[t for t, cohort in enumerate(cohorts) if i in cohort] for i in range(CLIENTS)]
    assert max(map(len, rounds)) == found.times(9)
    assert min(b - a for own in rounds for a, b in pairwise(own)) == found.separation


@pytest.mark.parametrize("noise", [0.5, 3.0, 20.0])
@pytest.mark.parametrize("delta", [1e-3, 1e-7])
def test_epsilon_is_that_of_one_gaussian_mechanism(noise, delta):
    for rounds, m, bands in ((1, 10, 4), (60, 10, 8), (500, 2, 64), (40, 100, 5)):
        groups = 100 // m
        own = list(range(0, rounds, groups))
        norm = np.linalg.norm(matrix(bands, rounds)[:, own].sum(1))
        how = {"rounds": rounds, "delta": delta, "selection": fm.Cyclic(m=m), "clients": 100}
        found = fm.privacy.epsilon(noise, mechanism="MatrixFactorization", bands=bands, **how)
        assert found == pytest.approx(exact_epsilon(noise / norm, delta), rel=1e-6, abs=1e-9)


def test_records_and_plans():
    result = run(fm.FedAvg(lr=LR), "loop", rounds=6)
    spent = [record.epsilon for record in result.history]
    assert spent == sorted(set(spent))
    how = {"rounds": 6, "delta": 1e-3, "selection": CYCLIC, "clients": CLIENTS}
    how |= {"mechanism": "MatrixFactorization", "bands": 3}
    assert spent[-1] == fm.privacy.epsilon(1.0, **how)
    noise = fm.privacy.plan(2.0, **how)
    assert fm.privacy.epsilon(noise, **how) <= 2.0 < fm.privacy.epsilon(0.999 * noise, **how)
    stopped = run(fm.FedAvg(lr=LR), "loop", rounds=6, privacy=correlated(budget=spent[3]))
    assert (len(stopped.history), stopped.info["stopped"]) == (4, "privacy budget")


def noises(algorithm: fm.Algorithm, privacy, rounds: int) -> dict[str, np.ndarray]:
    """The noise on the sums of each round, if nobody takes part."""
    seen: dict[str, list[np.ndarray]] = {}

    class Watched(type(algorithm)):
        def server(self, x, state, agg, ctx):
            for name, v in agg.items():
                seen.setdefault(name, []).append(v.numpy().ravel().copy())
            return super().server(x, state, agg, ctx)

    made = Watched(**{name: getattr(algorithm, name) for name in algorithm.__dataclass_fields__})
    sums = Sums(made, engine="loop", privacy=privacy)
    sums.state.sampler._prefetched = {t: sums.state.sampler.empty() for t in range(rounds)}
    sums.play(rounds)
    return {name: np.stack(v) for name, v in seen.items()}


def test_the_noise_is_that_of_independent_rounds_times_the_inverse():
    """C W = Z, where Z is the noise of `Gaussian` with the same seed; for each upload."""
    for algorithm, bands in ((fm.FedAvg(lr=LR), 4), (fm.Scaffold(lr=LR), 20), (fm.FedNova(lr=LR), 2)):
        independent = noises(algorithm, gaussian(0.5, 2.0), 9)
        for name, w in noises(algorithm, correlated(0.5, 2.0, bands), 9).items():
            np.testing.assert_allclose(matrix(bands, 9) @ w, independent[name], atol=1e-9)


def test_extra_phases_have_noise_of_one_size():
    """In every round √2 times that of one phase, also where the extra phase is left out (STEM after round 0)."""
    independent = noises(fm.FedAvg(lr=LR), gaussian(0.5, 2.0), 5)["A"]
    w = noises(fm.Stem(lr=LR), correlated(0.5, 2.0, 3), 5)["A"]
    np.testing.assert_allclose(matrix(3, 5) @ w, math.sqrt(2) * independent, atol=1e-9)
    state = run(fm.Mime(lr=LR), "loop", rounds=2).server_state
    assert {name for name in state if name.startswith("privacy")} >= {"privacy.noise.delta"}
    assert any(name.startswith("privacy.noise.prepare.") for name in state)


@pytest.mark.extended
def test_prefix_sums_have_less_noise():
    """At the same ε, the error of the sum of 200 rounds is that of the matrices, and less than half."""
    errors = {}
    for bands in (1, 16):
        w = noises(fm.FedAvg(lr=LR), correlated(1.0, 1 / sensitivity(16, 200, 20, 10), bands), 200)["A"]
        scale = sensitivity(bands, 200, 20, 10) / sensitivity(16, 200, 20, 10)
        errors[bands] = float(np.sqrt((w.cumsum(0) ** 2).mean())) * scale
    assert errors[16] < 0.55 * errors[1]


@pytest.mark.parametrize("bands", [1, 3])
def test_one_band_is_gaussian(bands):
    one, other = (run(fm.Scaffold(lr=LR), privacy=p).params for p in (correlated(bands=bands), gaussian()))
    assert torch.equal(one, other) == (bands == 1)


def assert_close(one: fm.Result, other: fm.Result) -> None:
    close(one.params, other.params, 1e-9)
    for name, v in one.server_state.items():
        close(v, other.server_state[name], 1e-9, name)
    assert [r.epsilon for r in one.history] == [r.epsilon for r in other.history]


@pytest.mark.parametrize("case", SOME, ids=str)
def test_engines_agree(case):
    assert_close(*(run(case.make(), engine) for engine in ("loop", "batched")))


@pytest.mark.extended
@pytest.mark.filterwarnings("ignore:FedHBM with beta")
@pytest.mark.parametrize("case", SENDING, ids=str)
def test_every_algorithm(case, tmp_path):
    how = {"rounds": 5, "uplink": Quantize(4)}
    whole = run(case.make(), "loop", **how)
    assert_close(whole, run(case.make(), "batched", **how))
    for rounds in (2, 5):
        parts = run(case.make(), "loop", out=tmp_path / "run", resume=True, **how | {"rounds": rounds})
    assert torch.equal(parts.params, whole.params)


def test_a_resumed_run_is_the_run(tmp_path):
    """Also one that is continued with more rounds: the size of the noise does not depend on their number."""
    algorithm = fm.Mime(lr=LR)
    whole = run(algorithm, "loop", rounds=6)
    for rounds in (2, 6):
        parts = run(algorithm, "loop", rounds=rounds, out=tmp_path / "run", resume=True)
    assert torch.equal(parts.params, whole.params)
    assert all(torch.equal(v, whole.server_state[name]) for name, v in parts.server_state.items())
    with pytest.raises(ValueError, match="privacy"):
        run(algorithm, "loop", rounds=7, out=tmp_path / "run", resume=True, privacy=correlated(bands=4))


def test_merged_runs():
    given = arguments(fm.Scaffold(lr=LR), rounds=3, selection=CYCLIC, privacy=correlated())
    given.pop("seed")
    for seed, result in zip((1, 2), fm.run_many([{"seed": 1}, {"seed": 2}], **given), strict=True):
        assert_close(result, fm.run(**given, seed=seed))


def test_an_abandoned_round_does_not_shift_the_noise():
    """A server step that fails leaves the model, not the noise, as it is."""

    class Overflow(fm.FedAvg):
        def server(self, x, state, agg, ctx):
            return (x * float("inf") if ctx.t == 1 else x + agg["A"]), {}

    result = run(Overflow(lr=LR), "loop", rounds=3, on_bad_update="drop", data=LOGISTIC.data())
    plain = run(fm.FedAvg(lr=LR), "loop", rounds=3)
    assert [record.abandoned for record in result.history] == [False, True, False]
    assert torch.equal(result.server_state["privacy.noise.delta"], plain.server_state["privacy.noise.delta"])


@pytest.mark.parametrize("selection", [fm.Bernoulli(rate=0.3), fm.Uniform(m=3), fm.ACS(m=3)], ids=str)
def test_selectors_without_a_schedule_are_refused(selection):
    with pytest.raises(ValueError, match=f"Cannot use MatrixFactorization with {type(selection).__name__} because a"):
        run(fm.FedAvg(lr=LR), selection=selection)
    with pytest.raises(ValueError, match="because a client may take part in any round"):
        fm.privacy.epsilon(1.0, rounds=2, delta=1e-3, selection=selection, clients=9, mechanism="MatrixFactorization")


def test_a_subclass_may_draw_other_cohorts():
    class Mine(fm.Cyclic):
        def select(self, view):
            return torch.arange(2), torch.ones(2) / 2

    with pytest.raises(ValueError, match="Cannot use MatrixFactorization with Mine because a client may take part"):
        run(fm.FedAvg(lr=LR), selection=Mine(m=2))


def test_over_selection_brings_clients_back_earlier():
    system = fm.System(over_select=2.0, down=1e9, up=1e9)
    more = run(fm.FedAvg(lr=LR), "loop", rounds=5, system=system, selection=fm.Cyclic(m=2))
    same = run(fm.FedAvg(lr=LR), "loop", rounds=5, selection=fm.Cyclic(m=4))
    assert [r.epsilon for r in more.history] == [r.epsilon for r in same.history]


def test_uploads_of_unknown_length_are_refused():
    class PerLayer(fm.FedAvg):
        up = ("delta", ("norms", "layers"))
        reduce = {"A": ("delta", "w"), "norms": ("norms", "w")}

    with pytest.raises(ValueError, match="Cannot use MatrixFactorization with PerLayer because its upload 'norms' has"):
        run(PerLayer(lr=LR))
    with pytest.raises(ValueError, match="MatrixFactorization: 'bands' must be an integer ≥ 1, got 0"):
        correlated(bands=0)
