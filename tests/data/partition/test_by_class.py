"""Partition by class."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

import fedmos as fm
from fedmos.data.partition import (
    ByClass,
)
from helpers.partitions import (
    CLIENTS,
    SEEDS,
    SIZES,
    VALUES,
    all_given,
    check_crowd,
    counts_of,
    dataset,
    divide,
    labels,
    says_why,
)
from helpers.work import counting_calls


@settings(deadline=None, max_examples=80)
@given(SIZES, CLIENTS, SEEDS, st.integers(1, 4), st.tuples(st.integers(0, 6), st.integers(0, 6)), st.booleans())
def test_by_class_with_a_size(sizes, clients, seed, classes, extra, even):
    low, high = classes + min(extra), classes + max(extra)
    y = labels(sizes, VALUES)
    scheme = ByClass(classes=classes, size=(low, high) if low < high else low, share="even" if even else "random")
    try:
        parts = divide(scheme, y, clients, seed)
    except ValueError as error:
        # There must be a reason: too few classes, or supplies so tight that somebody may go without.
        held = np.unique(y, return_counts=True)[1]
        plenty = classes <= len(held) and clients * high <= held.min() * len(held) / 2
        return says_why(error, unless=plenty)
    counts = counts_of(parts, y)
    assert ((counts > 0).sum(1) == classes).all()
    assert ((counts.sum(1) >= low) & (counts.sum(1) <= high)).all()
    if even:
        assert all(np.ptp(row[row > 0]) <= 1 for row in counts)


@settings(deadline=None, max_examples=80)
@given(SIZES, CLIENTS, SEEDS, st.integers(1, 4), st.sampled_from(["random", "even"]))
def test_by_class_without_a_size(sizes, clients, seed, classes, share):
    y, scheme = labels(sizes, VALUES), ByClass(classes=classes, share=share)
    held = np.unique(y, return_counts=True)[1]
    possible = classes <= len(held) and held.min() >= -(-clients * classes // len(held))
    try:
        parts = divide(scheme, y, clients, seed)
    except ValueError as error:
        return says_why(error, unless=possible)
    counts = counts_of(parts, y)
    assert ((counts > 0).sum(1) == classes).all()
    if clients * classes >= len(held):
        assert all_given(parts, y)
    for column in counts.T:  # a class in equal parts among those that hold it
        assert not column.any() or np.ptp(column[column > 0]) <= 1


def test_by_class_draws_alike_for_few_and_for_many():
    """A crowd is served in blocks; sizes, classes and the division of six samples into 1+5, 2+4 or 3+3 are drawn
    by the same law."""
    y, smaller = labels([30_000] * 6), []
    for clients in (2000, 20_001):
        counts = counts_of(ByClass(classes=2, size=(3, 7)).split(y, clients, 0), y)
        assert stats.chisquare(np.bincount(counts.sum(1), minlength=8)[3:]).pvalue > 1e-4
        assert stats.chisquare((counts > 0).sum(0)).pvalue > 1e-4
        six = np.sort(counts[counts.sum(1) == 6], axis=1)[:, -2]
        smaller.append(np.bincount(six, minlength=4)[1:] / len(six))
    assert np.abs(smaller[0] - smaller[1]).max() < 0.08
    assert min(map(min, smaller)) > 0.1


def test_by_class_in_groups_of_clients():
    """FedMoS's released CIFAR-10 split: so many clients of each size, five classes each in equal parts."""
    y = np.arange(50_000) % 10
    groups = [[50, 200], [100, 150], [150, 100], [150, 50], [50, 20]]
    split = ByClass(classes=5, size=groups, share="even").split(y, 500, 3)
    counts = counts_of(split, y)
    sizes = counts.sum(1)
    assert sorted(sizes) == sorted(n for clients, n in groups for _ in range(clients))
    assert ((counts == sizes[:, None] / 5).sum(1) == 5).all()
    assert not (sizes == np.sort(sizes)).all()
    with pytest.raises(ValueError, match="'size' must be of all 400 clients, got pairs for 500"):
        ByClass(classes=5, size=groups).split(y, 400, 3)


@pytest.mark.parametrize(
    ("clients", "classes", "size", "share", "spare"),
    [
        (20_001, 2, (2, 7), "random", 1.1),
        (20_001, 3, 5, "even", 1.02),
    ],
)
@pytest.mark.extended
def test_by_class_with_a_crowd(clients, classes, size, share, spare):
    low, high = size if isinstance(size, tuple) else (size, size)
    y = labels([int(clients * (low + high) / 2 * spare) // 6] * 6, VALUES)
    scheme = ByClass(classes=classes, size=size, share=share)
    split = counting_calls(lambda: scheme.split(y, clients, 5), most=100 * clients)
    assert len(split) == clients
    # Where supplies are tight a client may have to divide its samples evenly after all, but never the other way.
    check_crowd(split, y, classes, low, high, share == "even")


def test_a_crowd_that_uses_up_everything():
    """One class each, five samples each, and exactly so many: all of them find theirs."""
    y = labels([20_005] * 5)
    data = dataset(y).partition(ByClass(classes=1, size=5), clients=20_005)
    split = fm.partition.Split(data.index.numpy(), data.sizes.numpy())
    assert check_crowd(split, y, 1, 5, 5, True).sum() == len(y)
