"""Hard requests and bad settings."""

import numpy as np
import pytest

import fedmos as fm
from fedmos.data.partition import (
    IID,
    ByClass,
    Dirichlet,
    DirichletByClass,
    Natural,
    QuantitySkew,
    Shards,
)
from helpers.partitions import EXTREME, RANDOM, check_crowd, dataset, labels, says_why
from helpers.work import counting_calls

MOST_CALLS = 250_000
"""Function calls within which a split is made or refused. DirichletByClass makes up to 177,000 before it gives up."""

HARD = {
    "more clients than samples": (labels([3, 3]), 50),
    "as many clients as samples": (labels([20] * 5), 100),
    "one class only": (labels([100]), 10),
    "an empty class": (labels([50, 0, 50]), 10),
    "one sample per class": (np.arange(50), 10),
    "one sample of each of many classes": (np.arange(120), 24),
    "one client": (labels([20] * 5), 1),
    "a rare class": (labels([5000, 1, 1]), 100),
    "real targets": (labels([20] * 5).astype(float), 5),
    "targets in columns": (np.stack([labels([20] * 5)] * 2, axis=1), 5),
    "words": (labels([20] * 5).astype(str), 5),
    "yes and no": (labels([50, 50]) == 1, 5),
    "negative labels": (labels([20] * 5) - 9, 5),
    "no samples": (np.empty(0, int), 5),
}


def split_or_refusal(scheme, y, clients):
    """The split, or None where it is refused with a reason; either after a bounded number of operations."""
    try:
        return counting_calls(lambda: scheme.split(y, clients, 0), MOST_CALLS)
    except ValueError as error:
        says_why(error)
        return None


OWNED = {"real targets", "targets in columns", "words", "negative labels"}
"""Not for Natural, which divides by owners; see test_any_owners_… for those."""


@pytest.mark.parametrize(
    ("name", "case"), [(name, case) for name in RANDOM for case in HARD if name != "Natural" or case not in OWNED]
)
def test_hard_requests_are_met_or_refused(name, case):
    y, clients = HARD[case]
    y.flags.writeable = False
    split = split_or_refusal(RANDOM[name], y, clients)
    if split is None:
        return
    assert len(split) == clients
    assert min(map(len, split)) >= 1
    everything = np.concatenate(list(split))
    assert len(np.unique(everything)) == len(everything)
    if name.startswith(("IID", "Dirichlet", "Quantity", "Shards")):
        assert len(everything) == len(y)


@pytest.mark.parametrize(("scheme", "clients"), EXTREME, ids=repr)
def test_extreme_settings_are_met_or_refused(scheme, clients):
    y = labels([600] * 10)
    split = split_or_refusal(scheme, y, clients)
    if split is None:
        return
    assert len(split) == clients
    assert min(split.sizes) >= 1
    assert len(np.unique(split.entries)) == len(split.entries) == len(y)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: Dirichlet(alpha=-0.1), "Dirichlet: 'alpha' must be ≥ 0, got -0.1"),
        (lambda: Dirichlet(alpha=float("nan")), "Dirichlet: 'alpha' must be ≥ 0, got nan"),
        (lambda: Dirichlet(alpha=float("inf")), "Dirichlet: 'alpha' must be ≥ 0, got inf"),
        (lambda: Dirichlet(alpha="0.5"), "Dirichlet: 'alpha' must be ≥ 0, got '0.5'"),
        (lambda: Dirichlet(alpha=0.5, prior="uniform"), "Dirichlet: 'prior' must be one of 'ones', 'data'"),
        (lambda: DirichletByClass(alpha=0), "DirichletByClass: 'alpha' must be > 0, got 0"),
        (lambda: DirichletByClass(alpha=-1), "DirichletByClass: 'alpha' must be > 0, got -1"),
        (lambda: DirichletByClass(alpha=float("nan")), "DirichletByClass: 'alpha' must be > 0, got nan"),
        (lambda: DirichletByClass(alpha=1, least=0), "DirichletByClass: 'least' must be an integer ≥ 1, got 0"),
        (lambda: DirichletByClass(alpha=1, attempts=0), "DirichletByClass: 'attempts' must be an integer ≥ 1"),
        (lambda: ByClass(classes=2.0), "ByClass: 'classes' must be an integer ≥ 1, got 2.0"),
        (lambda: ByClass(classes=2, size="10"), "ByClass: 'size' must be"),
        (lambda: ByClass(classes=2, size=(1, 2, 3)), "ByClass: 'size' must be"),
        (lambda: ByClass(classes=2, size=((3, 4), 5)), "ByClass: 'size' must be"),
        (lambda: ByClass(classes=2, size=((3, 4), (5, 1))), "ByClass: 'size' must be ≥ 'classes'"),
        (lambda: ByClass(classes=2, share="equal"), "ByClass: 'share' must be one of 'random', 'even'"),
        (lambda: Shards(per_client=0), "Shards: 'per_client' must be an integer ≥ 1, got 0"),
        (lambda: QuantitySkew(skew=0), "QuantitySkew: 'skew' must be > 0, got 0"),
        (lambda: QuantitySkew(skew=float("nan")), "QuantitySkew: 'skew' must be > 0, got nan"),
        (lambda: QuantitySkew(law="zipf"), "QuantitySkew: 'law' must be one of 'power', 'lognormal'"),
        (lambda: QuantitySkew(least=0), "QuantitySkew: 'least' must be an integer ≥ 1, got 0"),
        (lambda: Natural(least=0), "Natural: 'least' must be an integer ≥ 1, got 0"),
    ],
)
def test_bad_settings_get_a_sentence(make, sentence):
    with pytest.raises(ValueError) as error:
        make()
    assert sentence in str(error.value)


@pytest.mark.parametrize("clients", [0, -1, 1.5, True, "5", None, float("nan")])
def test_bad_numbers_of_clients_get_a_sentence(clients):
    for scheme in (IID(), Dirichlet(alpha=1.0), Shards()):
        with pytest.raises(ValueError, match="partition: 'clients' must be an integer ≥ 1"):
            dataset(labels([20, 20])).partition(scheme, clients=clients)


def test_bad_schemes_and_seeds_get_a_sentence():
    made = dataset(labels([20, 20]))
    for scheme in (IID, None, "IID", 5):
        with pytest.raises(ValueError, match="'scheme' must be a partition such as IID"):
            made.partition(scheme, clients=2)
    for seed in (0.5, None, "0", True):
        with pytest.raises(ValueError, match="'seed' must be an integer"):
            made.partition(IID(), clients=2, seed=seed)
    assert len(made.partition(IID(), clients=np.int64(2), seed=np.int64(3))) == 2


def test_a_refusal_names_the_class_as_the_user_knows_it():
    y = labels([50, 50, 2], [3, 7, 100])
    with pytest.raises(ValueError, match="class 100"):
        ByClass(classes=1).split(y, 20, 0)


@pytest.mark.slow
@pytest.mark.parametrize(
    "scheme",
    [
        IID(),
        ByClass(classes=2, size=4),
        ByClass(classes=2, size=(2, 7), share="even"),
        ByClass(classes=1, size=5),
        ByClass(classes=2),
        Dirichlet(alpha=0.5),
        Dirichlet(alpha=0.5, prior="data"),
        Dirichlet(alpha=0),
        DirichletByClass(alpha=100.0, least=1),
        Shards(),
        QuantitySkew(),
        QuantitySkew(law="lognormal"),
        Natural(),
    ],
    ids=repr,
)
def test_a_million_clients(scheme):
    """benchmarks/million_clients.py measures the time."""
    N = 10**6
    y = np.repeat(np.arange(N), 5) if isinstance(scheme, Natural) else labels([N // 2] * 10)
    split = scheme.split(y, N, 0)
    assert len(split) == N
    assert split.sizes.min() >= 1
    assert len(np.unique(split.entries)) == len(split.entries)
    if isinstance(scheme, ByClass):
        low, high = scheme.size if isinstance(scheme.size, tuple) else (scheme.size or 1, scheme.size or len(y))
        check_crowd(split, y, scheme.classes, low, high, scheme.share == "even")
    else:
        assert len(split.entries) == len(y)
    if isinstance(scheme, IID | Dirichlet):
        assert np.ptp(split.sizes) <= 1
    made = dataset(y)
    if isinstance(scheme, Natural):
        made = fm.Dataset("made", made.x_train, made.y_train % 10, owner=made.owner)
    data = made.partition(scheme, clients=N, seed=0)
    assert len(data) == N
    assert str(data.describe())


def test_natural_clients_of_some_owners_only():
    owner = np.array([3, 3, 5, 7, 7, 7])
    split = Natural(only=(7, 3)).split(owner, None, 0)
    assert [split[i].tolist() for i in range(len(split))] == [[0, 1], [3, 4, 5]]
    with pytest.raises(ValueError, match="Natural: 'only' must be numbers of owners, got 4"):
        Natural(only=(4,)).split(owner, None, 0)
    for only in ((), 0, "0"):
        with pytest.raises(ValueError, match="Natural: 'only' must be numbers of owners, got"):
            Natural(only=only)
