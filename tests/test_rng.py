"""Streams are the same everywhere, independent of each other, and uniform."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedmos.rng import (
    Purpose,
    at_least,
    choose,
    choose_one,
    draws,
    fold,
    number,
    permute,
    salt,
    signed,
    stream,
    uniform,
    words,
)
from helpers import fresh


def splitmix64(state: int) -> int:
    """The published generator's output function, in Python integers."""
    mask = 2**64 - 1
    z = state & mask
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
    return z ^ (z >> 31)


@given(st.integers(-(2**63), 2**63 - 1), st.integers(0, 2**40))
def test_fold_is_splitmix64(key, data):
    expected = splitmix64(key + 0x9E3779B97F4A7C15 * (data + 1))
    assert int(fold(torch.tensor(key), data)) % 2**64 == expected
    assert int(fold(torch.tensor(key), torch.tensor(data))) % 2**64 == expected


def test_integers_of_numpy_give_the_same_streams():
    assert stream(np.int64(3), np.int32(2), np.int64(1), Purpose.BATCH) == stream(3, 2, 1, Purpose.BATCH)


def test_streams_differ_in_every_coordinate():
    keys = {
        int(stream(seed, round, client, purpose))
        for seed in (0, 1, -1, 2**60)
        for round in range(5)
        for client in range(5)
        for purpose in (Purpose.BATCH, Purpose.SELECT)
    }
    assert len(keys) == 4 * 5 * 5 * 2


def test_streams_are_the_same_in_another_process():
    code = "from fedmos.rng import *; print(draws(stream(7, 3, 11, Purpose.BATCH), 3).tolist())"
    done = fresh.run(code)
    assert done.stdout.strip() == str(draws(stream(7, 3, 11, Purpose.BATCH), 3).tolist())


def test_a_stream_of_many_clients_is_the_streams_of_each():
    together = stream(0, 4, torch.tensor([5, 2, 9]), Purpose.BATCH)
    assert together.tolist() == [int(stream(0, 4, i, Purpose.BATCH)) for i in (5, 2, 9)]


@given(st.integers(0, 2**64 - 1), st.integers(0, 10**6), st.integers(0, 10**6), st.integers(1, 300))
def test_single_numbers_are_those_of_tensors(seed, t, client, n):
    key = stream(seed, t, client, Purpose.SELECT)
    assert number(seed, t, client, Purpose.SELECT) == uniform(key).item()
    assert choose_one(seed, t, client, Purpose.SELECT, n) == choose(key[None], n, 1).item()


def test_draws_are_uniform():
    u = draws(stream(0, 0, 0, Purpose.SELECT), 100_000).numpy()
    counts = np.histogram(u, bins=100, range=(0, 1))[0]
    assert ((counts - 1000) ** 2 / 1000).sum() < 149  # the 99.9 % point of χ² with 99 degrees of freedom
    assert abs(np.corrcoef(u[:-1], u[1:])[0, 1]) < 0.01


def test_permute_orders_each_row_by_its_own_size():
    key = stream(0, 0, torch.arange(3), Purpose.BATCH)
    size = torch.tensor([1, 4, 7])
    rows = permute(key, size, 7)
    for row, n in zip(rows.tolist(), size.tolist(), strict=True):
        assert sorted(row[:n]) == list(range(n))


def test_permute_does_not_depend_on_the_padding():
    key = stream(0, 0, 0, Purpose.BATCH)
    assert permute(key, torch.tensor(5), 5).tolist() == permute(key, torch.tensor(5), 50)[:5].tolist()


@settings(deadline=None)
@given(st.integers(1, 2000), st.data())
def test_choose_gives_distinct_numbers_in_range(n, data):
    m = data.draw(st.integers(1, n))
    chosen = choose(stream(data.draw(st.integers(0, 100)), 0, 0, Purpose.SELECT), n, m).tolist()
    assert len(set(chosen)) == m
    assert all(0 <= i < n for i in chosen)


@pytest.mark.parametrize(("n", "m"), [(40, 3), (6, 3)])
def test_choose_is_uniform_without_replacement(n, m):
    rounds = 4000
    counts = np.zeros(n)
    for t in range(rounds):
        counts[choose(stream(1, t, 0, Purpose.SELECT), n, m)] += 1
    q = m / n
    z = (counts - rounds * q) / np.sqrt(rounds * q * (1 - q))
    assert np.abs(z).max() < 4


@pytest.mark.parametrize("keep", [1, 7, 40, 41])
def test_the_beginning_of_an_order_is_that_of_the_whole(keep):
    keys, sizes = fold(torch.tensor(3), torch.arange(60)), torch.arange(60) % 41
    some, whole = permute(keys, sizes, 41, keep), permute(keys, sizes, 41)
    counts = torch.arange(keep) < sizes[:, None]
    assert some.shape == (60, keep)
    assert torch.equal(some[counts], whole[:, :keep][counts])


@pytest.mark.parametrize("p", [0.0, 2**-53, 0.1, 0.3, 0.5, 1 - 2**-53, 1.0])
@pytest.mark.parametrize(("shape", "count"), [((), 70_000), ((3,), 0), ((0,), 4), ((2, 40), 1000), ((50_000,), 1)])
def test_comparisons_with_a_bound_are_those_of_the_numbers(shape, count, p):
    key = torch.randint(-(2**63), 2**63 - 1, shape, generator=torch.Generator().manual_seed(0))
    expected = uniform(fold(key.unsqueeze(-1), torch.arange(count))) >= p
    assert torch.equal(at_least(key, count, p), expected)


@pytest.mark.parametrize(("keys", "count"), [((), 5), ((3,), 0), ((7,), 100), ((5,), 20_000), ((2, 3), 40_000)])
def test_words_are_folded_keys(keys, count):
    key = stream(0, 0, torch.arange(max(1, torch.Size(keys).numel())), Purpose.ALGORITHM).reshape(keys)
    assert torch.equal(words(key, count), fold(key.unsqueeze(-1), torch.arange(count)))


def test_salts_give_other_streams():
    key = stream(0, 0, 0, Purpose.ALGORITHM)
    assert salt(0) == 0
    assert [salt(i) for i in (1, 2)] == [signed(splitmix64((i + 1) * 0x9E3779B97F4A7C15)) for i in (1, 2)]
    several = torch.cat([words(key ^ salt(i), 1000) for i in range(20)])
    assert len(several.unique()) == 20_000
