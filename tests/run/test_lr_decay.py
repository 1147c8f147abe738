"""The option `lr_decay` as a function of the round."""

import math
from dataclasses import dataclass

import numpy as np
import pytest
import torch

import fedmos as fm

SCHEDULES = fm.schedules


@pytest.fixture
def given(run_arguments):
    return run_arguments | {"algorithm": fm.FedCM(lr=0.1), "selection": fm.Uniform(m=3), "rounds": 4}


@pytest.mark.parametrize("engine", ["loop", "batched"])
def test_a_function_gives_the_factor_of_each_round(given, engine):
    by_rounds = dict.fromkeys((1, 2, 3), 0.5)
    expected = fm.run(**given, engine=engine, lr_decay=by_rounds)
    for decay in (SCHEDULES.Step(every=1, factor=0.5), lambda t: 0.5**t, lambda t: np.float32(0.5) ** t):
        result = fm.run(**given, engine=engine, lr_decay=decay)
        assert torch.equal(result.params, expected.params)
    assert not torch.equal(fm.run(**given, engine=engine).params, expected.params)


def test_the_round_counts_from_zero_and_a_factor_may_be_zero(given):
    """FedAvg with the factor 0 in all rounds but one is FedAvg for one round."""
    given |= {"algorithm": fm.FedAvg(lr=0.1), "selection": fm.Full(), "batch_size": None}
    only = fm.run(**given, lr_decay=lambda t: float(t == 2))
    once = fm.run(**given | {"rounds": 1})
    assert torch.equal(only.params, once.params)


def test_runs_side_by_side_have_schedules_of_their_own(given):
    decays = [1.0, SCHEDULES.Cosine(rounds=4), SCHEDULES.Warmup(2, then=SCHEDULES.Cosine(2)), lambda t: 1 / (t + 1)]
    together = fm.run_many([{"lr_decay": decay} for decay in decays], **given, engine="batched")
    for decay, result in zip(decays, together, strict=True):
        alone = fm.run(**given, engine="batched", lr_decay=decay)
        torch.testing.assert_close(result.params, alone.params, rtol=1e-5, atol=1e-6)
    assert len({result.params.norm().item() for result in together}) == len(decays)


def test_it_is_recorded_and_resumes_to_the_same_bits(given, tmp_path):
    decay = SCHEDULES.Warmup(2, then=SCHEDULES.Cosine(rounds=2, final=0.1))
    expected = fm.run(**given, lr_decay=decay)
    fm.run(**given | {"rounds": 2}, lr_decay=decay, out=tmp_path)
    result = fm.run(**given, lr_decay=SCHEDULES.Warmup(2, decay.then), out=tmp_path, resume=True)
    assert torch.equal(result.params, expected.params)
    assert result.info["lr_decay"] == "Warmup(rounds=2, then=Cosine(rounds=2, final=0.1), start=0.0)"
    with pytest.raises(ValueError, match=r"because its 'lr_decay' is 'Warmup\(.*final=0.1.*got 'Cosine\(rounds=4"):
        fm.run(**given | {"rounds": 5}, lr_decay=SCHEDULES.Cosine(4), out=tmp_path, resume=True)


def test_a_function_is_compared_by_its_factors(given, tmp_path):
    def schedule(factor):
        def mine(t):
            return factor if t > 900 else 1.0

        return mine

    fm.run(**given | {"rounds": 2}, lr_decay=schedule(0.5), out=tmp_path)
    assert len(fm.run(**given, lr_decay=schedule(0.5), out=tmp_path, resume=True).history) == 4
    with pytest.raises(ValueError, match=r"because its 'lr_decay' is .*mine, got one with other values"):
        fm.run(**given | {"rounds": 5}, lr_decay=schedule(0.4), out=tmp_path, resume=True)


@pytest.mark.parametrize(
    ("decay", "sentence"),
    [
        (lambda t: -1.0, "run: 'lr_decay' must give factors ≥ 0, got -1.0 in round 0 of <lambda>"),
        (lambda t: math.nan if t == 3 else 1.0, "got nan in round 3 of <lambda>"),
        (lambda: 1.0, "Cannot use <lambda> as 'lr_decay' because it fails in round 0: TypeError"),
        ([1.0, 0.5].__getitem__, "because it fails in round 2: IndexError"),
        (SCHEDULES.Cosine, "run: 'lr_decay' must be > 0, or factors > 0 by round"),
        (lambda t: 1e300, "FedCM: 'lr' must stay finite in float32 over 4 rounds, got 0.1 with lr_decay"),
        (SCHEDULES.Step(every=1, factor=1e200), "run: 'lr_decay' must give factors ≥ 0, got inf in round 2 of Step"),
    ],
)
def test_wrong_schedules_are_refused_before_the_first_round(given, decay, sentence):
    with pytest.raises(ValueError) as error:
        fm.run(**given, lr_decay=decay, callbacks=[lambda record: pytest.fail("it began")])
    assert sentence in str(error.value)


def test_a_function_is_not_asked_beyond_the_last_round(given):
    """Neither by the diagnostics after the last round nor by personal models."""
    factors = [1.0, 0.5, 0.25]
    given |= {"rounds": 3, "callbacks": [fm.Diagnostics(every=1)]}
    result = fm.run(**given, lr_decay=lambda t: factors[t])
    assert result.history[-1].diagnostics is not None


@dataclass(frozen=True, kw_only=True)
class OwnModel(fm.Algorithm):
    lr: float = 0.1
    client_state = ("y_i",)

    def finish(self, y, s, c, grad):
        return {"delta": y - c.x}, {"y_i": y}

    def personal(self, c):
        return c.own["y_i"] * c.lr / c.lr


def test_personal_models_after_the_last_round(given):
    factors = [1.0, 0.5]
    result = fm.run(**given | {"algorithm": OwnModel(), "rounds": 2}, lr_decay=lambda t: factors[t])
    client = result.history[-1].cohort[0]
    flat = torch.cat([p.flatten() for p in result.personal_model(client).parameters()])
    assert torch.allclose(flat, result.client_state(client)["y_i"])


@pytest.mark.parametrize("algorithm", [fm.FedCM(lr=0.1), fm.Scaffold(lr=0.1)], ids=["server", "client"])
def test_a_method_that_divides_by_a_step_size_of_zero_is_told_so(given, algorithm):
    with pytest.raises(fm.DivergenceError, match="round 2 is not finite; use an 'lr_decay' that stays above 0"):
        fm.run(**given | {"algorithm": algorithm}, lr_decay=lambda t: float(t == 0))
