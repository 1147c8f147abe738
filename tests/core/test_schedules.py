"""Schedules of the step size."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedmos as fm
from fedmos.core.schedules import factor_of


@given(st.integers(1, 500), st.floats(0, 1), st.integers(0, 1000))
def test_cosine_falls_from_one_to_its_final_factor(rounds, final, t):
    schedule = fm.schedules.Cosine(rounds, final=final)
    assert schedule(0) == pytest.approx(1)
    assert schedule(rounds + t) == pytest.approx(final, abs=1e-12)
    assert schedule(t + 1) <= schedule(t) + 1e-12
    if t <= rounds:
        expected = final + (1 - final) * (1 + math.cos(math.pi * t / rounds)) / 2
        assert schedule(t) == pytest.approx(expected, abs=1e-12)


def test_warmup_rises_to_one_and_hands_over():
    alone = fm.schedules.Warmup(4)
    assert [alone(t) for t in range(6)] == [0.25, 0.5, 0.75, 1, 1, 1]
    assert [fm.schedules.Warmup(2, start=0.5)(t) for t in range(3)] == [0.75, 1, 1]
    chained = fm.schedules.Warmup(3, then=fm.schedules.Warmup(2, then=lambda t: 1 / (t + 1)))
    assert [chained(t) for t in range(3, 8)] == [0.5, 1, 1, 1 / 2, 1 / 3]


def test_step_multiplies_after_every_so_many_rounds():
    assert [fm.schedules.Step(every=3, factor=0.5)(t) for t in range(7)] == [1, 1, 1, 0.5, 0.5, 0.5, 0.25]
    assert fm.schedules.Step(every=1, factor=1e300)(2) == math.inf


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: fm.schedules.Cosine(0), "Cosine: 'rounds' must be an integer ≥ 1, got 0"),
        (lambda: fm.schedules.Cosine(5, final=-1), "Cosine: 'final' must be ≥ 0, got -1"),
        (lambda: fm.schedules.Warmup(2.5), "Warmup: 'rounds' must be an integer ≥ 1, got 2.5"),
        (lambda: fm.schedules.Warmup(2, then=0.5), "Warmup: 'then' must be a function of the round or None, got 0.5"),
        (lambda: fm.schedules.Warmup(2, then=fm.schedules.Cosine), "Warmup: 'then' must be a function of the round"),
        (lambda: fm.schedules.Step(every=2, factor=0), "Step: 'factor' must be > 0, got 0"),
    ],
)
def test_wrong_fields_get_a_sentence(make, sentence):
    with pytest.raises(ValueError) as error:
        make()
    assert sentence in str(error.value)


@pytest.mark.parametrize("value", [-0.1, math.nan, math.inf, "1", None, True, 1j])
def test_a_factor_is_a_finite_number_of_at_least_zero(value):
    def mine(t):
        return value

    with pytest.raises(ValueError, match=r"run: 'lr_decay' must give factors ≥ 0, got .* in round 3 of mine"):
        factor_of(mine, 3)
