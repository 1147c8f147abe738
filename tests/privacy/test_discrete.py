"""Integer noise of clients under secure aggregation: the sampler, rounding, ε, dropouts, and runs with it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from scipy import stats

import fedmos as fm
from fedmos import rng
from fedmos.privacy.discrete import Grid, concentrated_loss, discrete_gaussian, rounded
from fedmos.privacy.distributed import distributed_noise
from fedmos.run.spec import RunSpec
from helpers.conformance import EACH_SENDING, LR, SENDING, close
from helpers.private import CLIENTS, arguments, private

SECURE = fm.aggregation.Secure()
SOME = [case for case in EACH_SENDING if str(case) in ("Scaffold(server_lr=0.7,option=1)", "Mime()")]


def discrete(clip=0.05, noise: float = 1.0, **more) -> fm.privacy.DiscreteGaussian:
    return fm.privacy.DiscreteGaussian(clip, noise, 1e-3, **more)


def given(algorithm: fm.Algorithm, engine: str = "batched", **changes) -> dict:
    options = {"selection": fm.Uniform(m=4), "aggregation": SECURE, "privacy": discrete(), **changes}
    return arguments(algorithm, engine, **options)


def run(algorithm: fm.Algorithm, engine: str = "batched", **changes) -> fm.Result:
    return fm.run(**given(algorithm, engine, **changes))


@pytest.mark.parametrize("scale", [0.8, 5.0, 700.0])
def test_the_sampler_has_the_discrete_gaussian_law(scale):
    words = rng.words(rng.stream(0, 0, torch.arange(4), rng.Purpose.ALGORITHM), 20_000)
    values = discrete_gaussian(words, scale).numpy().ravel()
    assert values.dtype == np.int64
    support = np.arange(-math.ceil(12 * scale), math.ceil(12 * scale) + 1)
    law = np.exp(-(support**2) / (2 * scale**2))
    law /= law.sum()
    assert values.std() == pytest.approx(math.sqrt((law * support**2).sum()), rel=0.02)
    edges = np.unique(np.quantile(values, np.linspace(0, 1, 12)[1:-1]).astype(int))
    seen = np.histogram(values, [-np.inf, *(edges + 0.5), np.inf])[0]
    wanted = np.array([part.sum() for part in np.split(law, np.searchsorted(support, edges, "right"))]) * len(values)
    assert stats.chisquare(seen, wanted * seen.sum() / wanted.sum()).pvalue > 1e-4
    assert abs((values > 0).mean() - (values < 0).mean()) < 0.015


def test_rounding_is_unbiased():
    v = torch.tensor([[0.25, -1.5, 3.0]], dtype=torch.float64)
    keys = rng.stream(0, torch.arange(4000), 0, rng.Purpose.ALGORITHM)
    found = rounded(v.expand(4000, 3), keys)
    assert set(found[:, 0].tolist()) == {0.0, 1.0}
    assert found.mean(0).tolist() == pytest.approx(v[0].tolist(), abs=0.03)


def test_the_grid():
    grid = Grid.of(1.0, 2.0, 1000, bits=32, clients=50, least=34)
    assert math.log2(grid.step).is_integer()
    assert grid.scale * grid.step == pytest.approx(2.0 / math.sqrt(34))
    assert grid.scale <= 4096
    assert (50 * 1.0 + 9 * 2.0 * math.sqrt(50 / 34)) / grid.step < 2**31
    units = 1 / grid.step
    assert units < grid.largest < math.sqrt(units**2 + 1000 / 4 + 5 * (units + 16))
    coarse = Grid.of(1.0, 2.0, 1000, bits=12, clients=50, least=34)
    assert (50 + 9 * 2.0 * math.sqrt(50 / 34)) / coarse.step < 2**11
    with pytest.raises(
        ValueError, match=r"Cannot add noise of 0\.\d+ in units of .* that 8 bits permit for 50 clients"
    ):
        Grid.of(1.0, 2.0, 1000, bits=8, clients=50, least=34)


@pytest.mark.parametrize("clip", [1.32, 1.3229, 1.0, 127 / 96])
def test_rounding_does_not_overflow_without_noise(clip):
    """All clients may round the same number up."""
    grid = Grid.of(clip, 0.0, 1, bits=8, clients=3, least=2)
    assert 3 * math.ceil(clip / grid.step) < 2**7


@pytest.mark.parametrize("noise", [0.5, 2.0, 12.0])
@pytest.mark.parametrize("delta", [1e-3, 1e-7])
def test_epsilon_is_that_of_concentrated_privacy(noise, delta):
    """An independent calculation, at the orders of dp-accounting."""
    rdp = pytest.importorskip("dp_accounting.rdp")
    for selection, rounds, times, most, least in (
        (fm.Full(), 20, 20, 100, 67),
        (fm.Cyclic(m=30), 20, 5, 30, 7),  # the last of four groups has ten clients
        (fm.Uniform(m=9), 20, 20, 9, 6),
    ):
        grid = Grid.of(1.0, noise, 5000, bits=24, clients=most, least=least)
        apart = 10 * sum(math.exp(-2 * math.pi**2 * grid.scale**2 * k / (k + 1)) for k in range(1, most))
        first = math.sqrt(grid.largest**2 / (least * grid.scale**2) + apart * 5000 / 2)
        second = grid.largest / (math.sqrt(least) * grid.scale) + apart * math.sqrt(5000)
        rho = times * min(first, second) ** 2 / 2
        orders = np.array(rdp.RdpAccountant().orders)
        curve = orders * rho + np.log1p(-1 / orders) - np.log(delta * orders) / (orders - 1)
        how = {"rounds": rounds, "delta": delta, "selection": selection, "clients": 100, "parameters": 5000}
        found = fm.privacy.epsilon(noise, mechanism="DiscreteGaussian", secure=fm.aggregation.Secure(bits=24), **how)
        assert found == pytest.approx(max(0, curve.min()), rel=1e-6)


def test_plans_and_too_few_bits():
    how = {"rounds": 20, "delta": 1e-5, "selection": fm.Uniform(m=50), "clients": 100, "mechanism": "DiscreteGaussian"}
    fine, coarse = (fm.privacy.plan(4.0, secure=fm.aggregation.Secure(bits=b), **how) for b in (32, 18))
    assert 1 < coarse / fine < 20  # rounding costs noise
    assert fm.privacy.epsilon(fine, **how) <= 4.0 < fm.privacy.epsilon(0.999 * fine, **how)
    plain = fm.privacy.plan(4.0, rounds=20, delta=1e-5, selection=fm.Full(), clients=100)
    assert fine == pytest.approx(plain, rel=0.02)  # the cost of a fine grid is small


def test_a_record_has_the_loss_of_the_run():
    spec = RunSpec(**given(fm.Scaffold(lr=LR), selection=fm.Cyclic(m=4)))
    noise = distributed_noise(spec.composed_algorithm)
    assert (noise.clients, noise.least) == (4, 2)  # groups of 4 and 3 clients, of which 2/3 must stay
    assert noise.grids[0].size == 2 * sum(p.numel() for p in spec.model.parameters())
    assert noise.loss == concentrated_loss(noise.grids, 4, 2) == pytest.approx(0.5, rel=0.01)
    spent = [r.epsilon for r in run(fm.Scaffold(lr=LR), "loop", selection=fm.Cyclic(m=4)).history]
    assert spent[0] == spent[1] < spent[2] == spent[3]


def noises(noise: float, rounds: int, **changes) -> np.ndarray:
    """The noise of the sums of a run whose clients upload zeros, in units of the bound."""
    seen = []

    class Zeros(fm.FedAvg):
        def finish(self, y, s, c, grad):
            return {"delta": torch.zeros_like(y)}, {}

        def server(self, x, state, agg, ctx):
            seen.append(agg["A"].numpy().copy())
            return x, {}

    run(Zeros(lr=LR), "loop", rounds=rounds, privacy=discrete(0.5, noise), **changes)
    return np.stack(seen) * 4 / 0.5


def test_the_noise_of_a_sum():
    """z times the bound where only the threshold is left, here 3 of 4 clients; more if nobody drops out."""
    values = noises(2.0, 30)
    assert values.std() == pytest.approx(2.0 * math.sqrt(4 / 3), rel=0.12)
    slow = fm.System(speed=fm.PerClient([1.0, *[1e6] * (CLIENTS - 1)]), down=1e12, up=1e12, deadline=1.0)
    late = noises(2.0, 30, system=slow, selection=fm.FixedCohorts([[0, 1, 2, 3]]))
    assert late.std() == pytest.approx(2.0, rel=0.12)


def test_with_too_few_clients_a_round_is_abandoned():
    speeds = fm.PerClient([1.0, 1.0, *[1e6] * (CLIENTS - 2)])
    slow = fm.System(speed=speeds, down=1e12, up=1e12, deadline=1.0)
    result = run(
        fm.FedAvg(lr=LR), "loop", system=slow, selection=fm.FixedCohorts([[0, 1, 2, 3], [2, 3, 4, 5]]), rounds=2
    )
    assert [record.abandoned for record in result.history] == [True, False]


def test_clients_that_fail_count_as_dropped_out():
    """They add no noise, so with too many of them the round is abandoned."""

    @dataclass(frozen=True, kw_only=True)
    class Overflow(fm.FedAvg):
        limit: float

        def finish(self, y, s, c, grad):
            return {"delta": (y - c.x) / (c.p > self.limit)}, {}

    for limit, abandoned in ((0.06, False), (0.1, True)):  # two and three of seven clients; five are needed
        how = {"selection": fm.Full(), "on_bad_update": "drop", "rounds": 1}
        assert run(Overflow(lr=LR, limit=limit), "loop", **how).history[0].abandoned == abandoned


@pytest.mark.parametrize(
    "case", [pytest.param(c, marks=() if c in SOME else pytest.mark.extended) for c in EACH_SENDING], ids=str
)
def test_sums_are_on_the_grid_and_bounded(case):
    """Without noise, a client moves a sum by no more than the bound after rounding."""
    from fedmos.core.composition import recast

    seen = []
    algorithm = case.make()

    class Watched(type(algorithm)):
        def server(self, x, state, agg, ctx):
            seen.append({name: v.clone() for name, v in agg.items()})
            return super().server(x, state, agg, ctx)

    how = {"selection": fm.FixedCohorts([[0, 1]]), "rounds": 1, "privacy": discrete(0.03, 0.0)}
    run(recast(algorithm, Watched), "loop", **how)
    spec = RunSpec(**given(algorithm, **how))
    noise = distributed_noise(spec.composed_algorithm)
    names = dict(algorithm.reduce.items())
    factor = spec.composed_algorithm._privacy_sums.factor
    sums = {upload: seen[0][name] / factor(rule) for name, (upload, rule) in names.items()}
    grid = noise.grids[0]
    units = torch.cat([v.flatten() for v in sums.values()]).double() / grid.step
    assert (units - units.round()).abs().max() < 1e-3
    assert float(units.norm()) <= 2 * grid.largest


def test_rounding_is_all_that_differs():
    """Without noise, a fine grid gives the run of `Gaussian` without noise."""
    fine = run(fm.Scaffold(lr=LR), privacy=discrete(0.5, 0.0))
    plain = private(fm.Scaffold(lr=LR), selection=fm.Uniform(m=4), privacy=fm.privacy.Gaussian(0.5, 0.0, 1e-3))
    close(fine.params, plain.params, 1e-5)


@pytest.mark.parametrize("case", SOME, ids=str)
def test_engines_agree(case):
    """To the bits of the sums; local training rounds differently."""
    one, other = (run(case.make(), engine) for engine in ("loop", "batched"))
    close(one.params, other.params, 1e-6)


@pytest.mark.extended
@pytest.mark.filterwarnings("ignore:FedHBM with beta")
@pytest.mark.parametrize("case", SENDING, ids=str)
def test_every_algorithm(case, tmp_path):
    whole = run(case.make(), "loop", rounds=5)
    close(whole.params, run(case.make(), "batched", rounds=5).params, 1e-4)
    for rounds in (2, 5):
        parts = run(case.make(), "loop", out=tmp_path / "run", resume=True, rounds=rounds)
    assert torch.equal(parts.params, whole.params)


def test_resume_and_merged_runs(tmp_path):
    whole = run(fm.Scaffold(lr=LR), "loop", rounds=5)
    for rounds in (2, 5):
        parts = run(fm.Scaffold(lr=LR), "loop", out=tmp_path / "run", resume=True, rounds=rounds)
    assert torch.equal(parts.params, whole.params)
    shared = given(fm.Scaffold(lr=LR), rounds=3)
    shared.pop("seed")
    for seed, result in zip((1, 2), fm.run_many([{"seed": 1}, {"seed": 2}], **shared), strict=True):
        close(result.params, fm.run(**shared, seed=seed).params, 1e-6)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"aggregation": None}, "Cannot use DiscreteGaussian without secure aggregation because the noise of a single"),
        (
            {"selection": fm.Bernoulli(rate=0.5)},
            "Cannot use DiscreteGaussian with Bernoulli because its cohorts may be",
        ),
        ({"selection": fm.MD(m=4)}, "Cannot use DiscreteGaussian with MD because its cohorts may be small"),
        ({"availability": fm.Alternating(groups=2)}, "Cannot use DiscreteGaussian with 'availability' because smaller"),
        ({"aggregation": fm.aggregation.Secure(bits=8), "privacy": discrete(noise=0.01)}, "Cannot add noise of"),
    ],
    ids=lambda v: "" if isinstance(v, str) else str(next(iter(v))),
)
def test_what_is_refused(changes, sentence):
    with pytest.raises(ValueError) as error:
        run(fm.FedAvg(lr=LR), **changes)
    assert sentence in str(error.value)


@pytest.mark.extended
@pytest.mark.parametrize("noise", [1.5, 0.15])
def test_an_attack_does_not_prove_more_than_epsilon(noise):
    """On a sum of two clients, with or without the upload of one. With a tenth of the noise, it proves more."""
    from helpers.distinguishing import DELTA, Constant, Still, lower_bound

    def sums(sign: float, seed: int) -> np.ndarray:
        seen: list[float] = []
        signs = (sign, -1.0)
        data = fm.FederatedData.from_arrays([(np.full((2, 1), s, dtype=np.float32), np.zeros((2, 1))) for s in signs])
        how = {"rounds": 2000, "local_steps": 1, "loss": lambda outputs, targets: outputs.mean(), "eval_every": 2000}
        privacy = fm.privacy.DiscreteGaussian(clip=0.5, noise_multiplier=noise, delta=DELTA)
        how |= {"aggregation": SECURE, "privacy": privacy, "engine": "loop", "seed": seed}
        fm.run(Still(), data, Constant(seen=seen), fm.Full(), **how)
        return np.array(seen) * 2 / 0.5

    how = {"rounds": 1, "delta": DELTA, "selection": fm.Full(), "clients": 2, "parameters": 1}
    epsilon = fm.privacy.epsilon(1.5, mechanism="DiscreteGaussian", **how)
    proved = lower_bound(sums(1.0, 0), sums(0.0, 1))
    assert (0.1 < proved < epsilon) if noise == 1.5 else proved > epsilon
