"""Integers modulo 2^bits: encoding, exact sums, no overflow."""

from __future__ import annotations

import math
from random import Random

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from fedmos import aggregation
from fedmos.aggregation.ring import Quantizer, Ring

numbers = st.floats(-40, 40, allow_nan=False, width=32)


@st.composite
def cohorts(draw):
    """Bits, factors and rows of a cohort that the ring can sum."""
    S, n = draw(st.integers(1, 12)), draw(st.integers(1, 4))
    rows = draw(st.lists(st.lists(numbers, min_size=n, max_size=n), min_size=S, max_size=S))
    factors = draw(st.lists(st.floats(0, 5), min_size=S, max_size=S))
    return draw(st.integers(8, 48)), torch.tensor(factors, dtype=torch.float64), torch.tensor(rows)


@given(cohorts(), st.booleans(), st.randoms())
@example((8, torch.tensor([5e-324], dtype=torch.float64), torch.tensor([[0.0]])), False, Random(0))
def test_sums_are_exact_in_any_order_and_close_to_those_of_numbers(cohort, toward_zero, random):
    bits, factors, rows = cohort
    bound, S = 10.0, len(rows)
    total = math.fsum(factors.tolist())
    quantizer = Quantizer.of(bits, bound=bound, total=total, clients=S, toward_zero=toward_zero)
    q = quantizer.encode(rows, factors)
    order = random.sample(range(S), S)
    masks = torch.tensor([random.getrandbits(62) for _ in range(S)])
    masked = quantizer.ring.reduced(q + masks[:, None])  # as the server gets them
    decoded = quantizer.decode(masked[order].sum(0) - masks.sum())
    assert torch.equal(decoded, quantizer.decode(q.sum(0)))
    exact = [sum(column) for column in q.T.tolist()]  # Python's integers do not wrap
    assert decoded.tolist() == [n * quantizer.step for n in exact]
    assert all(abs(n) < 2 ** (bits - 1) for n in exact)
    clamped = rows.to(torch.float64).clamp(-bound, bound)
    error = (decoded - factors @ clamped).abs().max()
    assert error <= S * quantizer.step * (1 if toward_zero else 0.5) + 1e-9 * bound * total
    if toward_zero:
        assert bool((q.abs().double() * quantizer.step <= (clamped.abs() * factors[:, None]) * (1 + 1e-12)).all())


@given(st.integers(8, 48), st.integers(2, 40))
def test_the_largest_values_do_not_overflow(bits, clients):
    """And hardly less than the whole ring is used."""
    if 2 ** (bits - 1) < 2 * clients + 4:
        with pytest.raises(ValueError, match=f"Cannot sum {clients} clients in {bits} bits"):
            Quantizer.of(bits, bound=1.0, total=1.0, clients=clients)
        return
    weights = torch.full((clients,), 1 / clients, dtype=torch.float64)
    quantizer = Quantizer.of(bits, bound=3.0, total=float(weights.sum()), clients=clients)
    for sign in (-1, 1):
        total = quantizer.encode(torch.full((clients, 1), sign * 1e9), weights).sum()
        assert 2 ** (bits - 1) - 2 * clients - 4 <= sign * int(total) < 2 ** (bits - 1)
        assert quantizer.decode(total).item() == pytest.approx(3.0 * sign, rel=clients * quantizer.step)


@given(st.integers(8, 48), st.integers(-(2**60), 2**60))
def test_signed_is_the_remainder_next_to_zero(bits, n):
    ring, half = Ring(bits), 2 ** (bits - 1)
    signed = int(ring.signed(torch.tensor(n)))
    assert -half <= signed < half
    assert (signed - n) % 2**bits == 0
    assert int(ring.reduced(torch.tensor(n))) == n % 2**bits


def test_values_above_the_bound_are_counted():
    quantizer = Quantizer.of(16, bound=1.0, total=1.0, clients=2)
    assert int(quantizer.saturated(torch.tensor([[1.0, -1.5, 0.3], [2.0, 0.0, -1.0]]))) == 2


def test_the_rule_on_rows_is_the_weighted_sum():
    rows = torch.from_numpy(np.random.default_rng(0).normal(size=(6, 50))).float()
    weights = torch.tensor([0.1, 0.2, 0.3, 0.15, 0.15, 0.1])
    torch.testing.assert_close(aggregation.Secure().aggregate(rows, weights), weights @ rows, rtol=1e-5, atol=1e-6)
    coarse = aggregation.Secure(bits=10, bound=4.0).aggregate(rows, weights)
    assert 1e-3 < float((coarse - weights @ rows).abs().max()) < 0.05


@pytest.mark.parametrize(
    ("given_", "text"),
    [
        ({"bits": 7}, "Secure: 'bits' must be a whole number from 8 to 48, got 7"),
        ({"bits": 49}, "got 49"),
        ({"bits": 16.0}, "Secure: 'bits'"),
        ({"bound": 0}, "Secure: 'bound' must be a number > 0, numbers > 0 by upload, or None, got 0"),
        ({"bound": {"delta": -1}}, "Secure: 'bound'"),
        ({"bound": {}}, "Secure: 'bound'"),
        ({"threshold": 0.5}, r"Secure: 'threshold' must be in \(0.5, 1\], got 0.5"),
    ],
)
def test_arguments_out_of_range_are_refused(given_, text):
    with pytest.raises(ValueError, match=text):
        aggregation.Secure(**given_)


def test_the_clients_that_a_round_needs():
    assert [aggregation.Secure().needed(n) for n in (1, 2, 3, 4, 6, 16)] == [2, 2, 2, 3, 4, 11]
    assert [aggregation.Secure(threshold=1).needed(n) for n in (2, 4, 16)] == [2, 4, 16]
