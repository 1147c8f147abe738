"""Partition schemes one by one: IID, by quantity, Dirichlet, shards, natural, fixed."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy import stats

import fedmos as fm
from fedmos.data.partition import (
    IID,
    Dirichlet,
    DirichletByClass,
    Fixed,
    Natural,
    QuantitySkew,
    Shards,
)
from helpers.partitions import CLIENTS, SEEDS, SIZES, VALUES, all_given, counts_of, dataset, divide, labels, says_why


@settings(deadline=None, max_examples=60)
@given(SIZES, CLIENTS, SEEDS)
def test_iid_is_exhaustive_and_balanced(sizes, clients, seed):
    y = labels(sizes, VALUES)
    if len(y) < clients:
        with pytest.raises(ValueError) as error:
            IID().split(y, clients, seed)
        return says_why(error.value)
    parts = divide(IID(), y, clients, seed)
    assert all_given(parts, y)
    assert np.ptp([len(part) for part in parts]) <= 1


@settings(deadline=None, max_examples=80)
@given(SIZES, CLIENTS, SEEDS, st.sampled_from(["power", "lognormal"]), st.floats(0.01, 50), st.integers(1, 4))
def test_quantity_skew_gives_everyone_the_least(sizes, clients, seed, law, skew, least):
    y, scheme = labels(sizes, VALUES), QuantitySkew(law=law, skew=skew, least=least)
    if len(y) < clients * least:
        with pytest.raises(ValueError) as error:
            scheme.split(y, clients, seed)
        return says_why(error.value)
    parts = divide(scheme, y, clients, seed)
    assert all_given(parts, y)
    assert min(map(len, parts)) >= least


@settings(deadline=None, max_examples=20)
@given(st.integers(2, 30), st.floats(0.1, 1.5), SEEDS)
def test_the_power_law_is_one(clients, skew, seed):
    y = labels([5000, 5000])
    sizes = np.sort([len(part) for part in divide(QuantitySkew(skew=skew), y, clients, seed)])[::-1]
    share = np.arange(1, clients + 1) ** -skew
    assert np.abs(sizes - len(y) * share / share.sum()).max() < 1


def test_ranks_are_given_at_random():
    largest = Counter(int(QuantitySkew().split(labels([100]), 4, seed).sizes.argmax()) for seed in range(200))
    assert stats.chisquare([largest[i] for i in range(4)]).pvalue > 1e-4


def test_the_lognormal_law_is_one():
    for skew in (0.3, 1.0):
        sizes = QuantitySkew(law="lognormal", skew=skew).split(labels([10**6]), 2000, 0).sizes
        logs = np.log(sizes)
        assert logs.std() == pytest.approx(skew, rel=0.08)
        assert abs(stats.skew(logs)) < 0.3


def test_quantity_skew_leaves_the_classes_alone():
    y = labels([3000] * 4)
    for law in ("power", "lognormal"):
        q = counts_of(QuantitySkew(law=law).split(y, 5, 1), y)
        assert stats.chi2_contingency(q).pvalue > 1e-3


@settings(deadline=None, max_examples=120)
@given(SIZES, CLIENTS, SEEDS, st.sampled_from([1e-6, 0.01, 0.3, 1.0, 30.0, 1e6]), st.sampled_from(["ones", "data"]))
def test_dirichlet_is_exhaustive_and_balanced(sizes, clients, seed, alpha, prior):
    y, scheme = labels(sizes, VALUES), Dirichlet(alpha=alpha, prior=prior)
    if len(y) < clients:
        with pytest.raises(ValueError) as error:
            scheme.split(y, clients, seed)
        return says_why(error.value)
    parts = divide(scheme, y, clients, seed)
    assert all_given(parts, y)
    assert np.ptp([len(part) for part in parts]) <= 1


@settings(deadline=None, max_examples=80)
@given(SIZES, st.integers(1, 60), SEEDS, st.sampled_from(["ones", "data"]))
def test_dirichlet_zero_is_one_class_each(sizes, clients, seed, prior):
    y, scheme = labels(sizes, VALUES), Dirichlet(alpha=0, prior=prior)
    held = np.unique(y, return_counts=True)[1]
    if len(y) < clients or clients < len(held):
        with pytest.raises(ValueError) as error:
            scheme.split(y, clients, seed)
        return says_why(error.value)
    parts = divide(scheme, y, clients, seed)
    assert all_given(parts, y)
    counts = counts_of(parts, y)
    assert ((counts > 0).sum(1) == 1).all()
    for column in counts.T:
        assert np.ptp(column[column > 0]) <= 1
    if not (held % (len(y) / clients)).any():  # classes are whole numbers of clients
        assert np.ptp(counts.sum(1)) <= 1


def test_dirichlet_zero_is_ghbms_split():
    """A hundred clients with five hundred samples of one class each."""
    y = labels([5000] * 10)
    counts = counts_of(divide(Dirichlet(alpha=0), y, 100), y)
    assert ((counts == 500).sum(1) == 1).all()
    assert counts.sum() == 50_000


@settings(deadline=None, max_examples=80)
@given(SIZES, st.integers(1, 12), SEEDS, st.sampled_from([0.05, 0.3, 2.0, 100.0]), st.integers(1, 3))
def test_dirichlet_by_class_gives_everyone_the_least(sizes, clients, seed, alpha, least):
    y, scheme = labels(sizes, VALUES), DirichletByClass(alpha=alpha, least=least, attempts=100)
    try:
        parts = divide(scheme, y, clients, seed)
    except ValueError as error:
        return says_why(error)
    assert len(y) >= clients * least
    assert all_given(parts, y)
    assert min(map(len, parts)) >= least


@pytest.mark.parametrize("alpha", [0.3, 1.0, 10.0])
def test_clients_with_enough_samples_get_none_of_the_next_class(alpha):
    """[POW]: clients already holding ≥ n/K get 0."""
    y = labels([37, 41, 29, 53, 31, 47])
    for seed in range(60):
        counts = counts_of(DirichletByClass(alpha=alpha, least=1).split(y, 7, seed), y)
        before = np.cumsum(counts, axis=1) - counts
        rich = before >= len(y) / 7
        assert (counts[rich] == 0).all(), f"seed {seed}: {counts[rich].max()} of a class to one that held enough"


def test_no_client_is_favoured_by_its_number():
    """Proportions ~ Dir(α·1) know nothing of the clients' order, nor should what rounding does with them."""
    y = labels([1, *[40] * 5])
    owners = Counter()
    for seed in range(300):
        counts = counts_of(DirichletByClass(alpha=1.0, least=1).split(y, 5, seed), y)
        owners[int(counts[:, 0].argmax())] += 1
    assert stats.chisquare([owners[i] for i in range(5)]).pvalue > 1e-4, owners


@settings(deadline=None, max_examples=100)
@given(SIZES, CLIENTS, SEEDS, st.integers(1, 4))
@example([10, 10], 10, 0, 2)
@example([8, 8, 8, 8], 4, 0, 2)
def test_shards_are_runs_of_the_sorted_data(sizes, clients, seed, per_client):
    y, scheme = labels(sizes, VALUES), Shards(per_client=per_client)
    shards = clients * per_client
    if len(y) < shards:
        with pytest.raises(ValueError) as error:
            scheme.split(y, clients, seed)
        return says_why(error.value)
    parts = divide(scheme, y, clients, seed)
    assert all_given(parts, y)
    small, large = len(y) // shards, -(-len(y) // shards)
    assert all(per_client * small <= len(part) <= per_client * large for part in parts)
    held = np.unique(y, return_counts=True)[1]
    classes = (counts_of(parts, y) > 0).sum(1)
    assert classes.sum() <= shards + len(held) - 1  # every cut between classes splits one shard at most
    if large <= held.min():
        assert classes.max() <= 2 * per_client
    if len(y) % shards == 0 and not (held % small).any():
        assert classes.max() <= per_client
    # Each part is per_client runs of small or large samples; in a run labels do not descend.
    for part in parts:
        assert (np.diff(y[part]) < 0).sum() <= per_client - 1


@settings(deadline=None, max_examples=80)
@given(SIZES, SEEDS, st.integers(1, 10), st.one_of(st.none(), st.integers(0, 20)), st.integers(0, 6))
def test_natural_keeps_what_is_somebodys(sizes, seed, least, more, fewer):
    y = labels(sizes, [3, 7, 100, 101, 2000, 5000])
    most = None if more is None else least + more
    scheme = Natural(least=least, most=most)
    who, held = np.unique(y, return_counts=True)
    who, held = who[held >= least], held[held >= least]
    clients = len(who) - fewer
    if clients < 1:
        with pytest.raises(ValueError) as error:
            scheme.split(y, len(who) + 1, seed)
        return says_why(error.value)
    parts = divide(scheme, y, clients, seed)
    owners = [int(y[part[0]]) for part in parts]
    assert all((y[part] == owner).all() for part, owner in zip(parts, owners, strict=True))
    assert owners == sorted(set(owners))
    assert set(owners) <= set(who.tolist())
    amount = dict(zip(who.tolist(), held.tolist(), strict=True))
    assert [len(part) for part in parts] == [min(amount[owner], most or len(y)) for owner in owners]
    everyone = scheme.split(y, None, seed)
    assert len(everyone) == len(who)


def test_natural_draws_owners_and_samples():
    y = labels([20] * 12)
    for scheme, clients in ((Natural(), 5), (Natural(most=7), 12)):
        drawn = Counter()
        for seed in range(150):
            drawn.update(np.concatenate(list(scheme.split(y, clients, seed))).tolist())
        times = np.array([drawn[i] for i in range(len(y))])
        assert times.min() > 0
        assert stats.chisquare(times.reshape(-1, 6).sum(1)).pvalue > 1e-6 or scheme.most is None


def test_names_follow_the_owners():
    y = labels([5, 1, 8, 4])
    made = fm.Dataset(
        "made", np.arange(len(y)), np.zeros_like(y), owner=y.copy(), owners=["anna", "bob", "cyd", "dora"]
    )
    assert made.partition(Natural()).names == ["anna", "bob", "cyd", "dora"]
    assert made.partition(Natural(least=4)).names == ["anna", "cyd", "dora"]
    data = made.partition(Natural(least=4), clients=2, seed=3)
    assert [int(y[data.client(i)[0][0]]) for i in range(2)] == [{"anna": 0, "cyd": 2, "dora": 3}[n] for n in data.names]
    assert made.partition(IID(), clients=3).names is None
    with pytest.raises(ValueError, match="because its samples have none"):
        fm.Dataset("made", np.arange(3), np.zeros(3, int)).partition(Natural())


def test_natural_asked_for_too_many_says_how_many_there_are():
    y = labels([5, 1, 8, 4])
    with pytest.raises(ValueError, match="Cannot make 4 clients because 3 of 4 owners have 4 samples or more"):
        Natural(least=4).split(y, 4, 0)
    with pytest.raises(ValueError, match="no owner has 50 samples"):
        Natural(least=50).split(y, None, 0)
    with pytest.raises(ValueError, match=r"Natural: 'most' must be ≥ 'least' \(5\), got 4"):
        Natural(least=5, most=4)


@pytest.mark.parametrize(
    "owners",
    [np.array([10**15, 5, 10**15, 5]), np.array([-3, 5, -3, 5]), np.array([0.5, 5, 0.5, 5]), np.array(list("abab"))],
    ids=["huge", "negative", "float", "words"],
)
def test_any_owners_are_told_apart_or_refused_in_words(owners):
    """Owners are "numbers": a user id of sixteen digits is one."""
    try:
        split = Natural().split(owners, None, 0)
    except ValueError as error:
        says_why(error)
    else:
        assert sorted(part.tolist() for part in split) == [[0, 2], [1, 3]]


@settings(deadline=None, max_examples=40)
@given(st.lists(st.lists(st.integers(0, 29), min_size=1, max_size=9), min_size=1, max_size=8))
def test_fixed_is_what_it_says(parts):
    y = labels([10, 10, 10])
    for given_parts in (parts, [np.array(part) for part in parts], [np.array(part, np.int32) for part in parts]):
        data = dataset(y).partition(Fixed(given_parts))
        assert [data.client(i)[0].tolist() for i in range(len(data))] == parts
        assert [part.tolist() for part in Fixed(given_parts).split(y, None, 0)] == parts
    assert len(dataset(y).partition(Fixed(parts), clients=len(parts))) == len(parts)
    with pytest.raises(ValueError, match=f"must give {len(parts) + 1} parts, got {len(parts)}"):
        dataset(y).partition(Fixed(parts), clients=len(parts) + 1)


@pytest.mark.parametrize(
    "parts",
    [
        [np.arange(6) < 2, np.arange(6) >= 2],  # masks are not sample numbers
        [[0.5, 1.5], [2.0]],
        [["1"], ["2"]],
        [[np.nan]],
        [[-1], [2]],
        [[0, 6]],
        [[], [1]],
        [],
        None,
        5,
    ],
    ids=["masks", "halves", "words", "nan", "negative", "beyond", "nobody", "nothing", "none", "a number"],
)
def test_fixed_refuses_what_are_not_sample_numbers(parts):
    with pytest.raises(ValueError) as error:
        dataset(labels([3, 3])).partition(Fixed(parts))
    assert "must" in str(error.value)
