"""Properties that all partition schemes share."""

import random

import numpy as np
import pytest
import torch

import fedmos as fm
from fedmos.data.partition import (
    IID,
)
from helpers.partitions import RANDOM, VALUES, dataset, divide, labels

by_name = pytest.mark.parametrize("name", RANDOM)


@by_name
def test_another_seed_is_another_split(name):
    y = labels([60] * 8)
    splits = [np.concatenate(divide(RANDOM[name], y, 8, seed)) for seed in (0, 1, -1, 2**63)]
    for i, one in enumerate(splits):
        assert not any(np.array_equal(one, other) for other in splits[:i])


@by_name
def test_only_the_order_of_labels_matters(name):
    """The same classes under other numbers, of another type, are split in the same way."""
    y = labels([60] * 6)
    expected = np.concatenate(list(RANDOM[name].split(y, 6, 3)))
    others = [y.astype(np.uint8), y.astype(np.int32), y * 10 + 3]
    if name != "Natural":
        others += [VALUES[y], y - 3]
    for other in others:
        assert np.array_equal(np.concatenate(list(RANDOM[name].split(other, 6, 3))), expected)


@by_name
def test_global_random_generators_are_not_used(name):
    before = np.random.get_state()[1].copy(), random.getstate(), torch.get_rng_state()  # noqa: NPY002
    RANDOM[name].split(labels([60] * 6), 6, 0)
    assert np.array_equal(np.random.get_state()[1], before[0])  # noqa: NPY002
    assert random.getstate() == before[1]
    assert torch.equal(torch.get_rng_state(), before[2])


@by_name
def test_strided_and_byte_swapped_labels_are_accepted(name):
    y = labels([60] * 6)
    expected = np.concatenate(list(RANDOM[name].split(y, 6, 3)))
    for other in (np.stack([y, y[::-1]], 1)[:, 0], y.astype(">i8")):
        assert np.array_equal(np.concatenate(list(RANDOM[name].split(other, 6, 3))), expected)


def test_read_only_labels_are_accepted():
    """Such as `np.load(..., mmap_mode="r")` gives: they are not to be written, so there is nothing to warn of."""
    y = labels([60] * 6)
    x = np.arange(len(y))
    x.flags.writeable = False
    always = torch.is_warn_always_enabled()
    torch.set_warn_always(True)  # PyTorch warns once in a process otherwise
    try:
        data = fm.Dataset("made", x, y, x, y, owner=y).partition(IID(), clients=6, seed=3)
    finally:
        torch.set_warn_always(always)
    assert np.array_equal(data.client(2)[0], IID().split(y, 6, 3)[2])


def test_a_custom_scheme_cannot_write_into_the_data():
    class Vandal:
        def split(self, labels, clients, seed):
            labels[:] = 0
            return np.array_split(np.arange(len(labels)), clients)

    y = np.array([1, 2, 3])
    with pytest.raises(ValueError, match="read-only"):
        dataset(y).partition(Vandal(), clients=2)
    assert y.tolist() == [1, 2, 3]
    assert y.flags.writeable


def test_a_split_reads_as_a_sequence():
    split = IID().split(labels([10]), 4, 0)
    parts = [part.tolist() for part in split]
    assert [len(part) for part in parts] == [3, 3, 2, 2]
    assert split[-1].tolist() == parts[3]
    assert [part.tolist() for part in split[1:3]] == parts[1:3]
    assert [part.tolist() for part in reversed(split)] == parts[::-1]
    for i in (4, -5):
        with pytest.raises(IndexError):
            split[i]
