"""Test samples of single clients, and clients that are set aside."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import fedmos as fm


def make_dataset(y, features=3):
    x = np.arange(len(y) * features, dtype=np.float32).reshape(len(y), features)
    return fm.Dataset("numbered", x, np.asarray(y))


def rows_of(pair):
    return {tuple(row) for row in pair[0].tolist()}


@settings(deadline=None, max_examples=20)
@given(st.integers(1, 12), st.floats(0.05, 0.9), st.integers(0, 5), st.integers(1, 4))
def test_holdout_divides_each_client_by_its_classes(clients, share, seed, classes):
    dataset = make_dataset(np.random.default_rng(seed).integers(0, classes, 120))
    whole = dataset.partition(fm.partition.QuantitySkew(), clients=clients, seed=seed)
    data = dataset.partition(fm.partition.QuantitySkew(), clients=clients, seed=seed, holdout=share)
    for i in range(clients):
        n, tested = int(whole.sizes[i]), data.tests[i]
        expected = 0 if n == 1 else min(max(1, int(share * n + 0.5)), n - 1)
        assert len(tested[1]) == expected
        assert int(data.sizes[i]) == n - expected
        assert rows_of(tested) | rows_of(data.client(i)) == rows_of(whole.client(i))
        assert not rows_of(tested) & rows_of(data.client(i))
        for label in range(classes):
            mine, held = (int((y == label).sum()) for y in (whole.client(i)[1], tested[1]))
            assert abs(held - mine * expected / n) < 1


def test_holdout_is_seeded_and_leaves_the_split_as_it_is():
    dataset = fm.datasets.load("digits")
    scheme = fm.partition.Dirichlet(alpha=0.3)
    assert dataset.partition(scheme, clients=20, seed=1).fingerprint() == "4652c79b164e77f7"
    data, again, other = (dataset.partition(scheme, clients=20, seed=s, holdout=0.2) for s in (1, 1, 2))
    assert data.fingerprint() == again.fingerprint() != other.fingerprint()
    assert torch.equal(data.tests.index, again.tests.index)
    assert data.x is data.tests.x  # nothing is copied


def test_every_sample_is_equally_likely_to_be_held_out():
    dataset = make_dataset(np.arange(10))  # as many classes as samples
    counts = np.zeros(10)
    for seed in range(200):
        data = dataset.partition(fm.partition.Fixed([range(10)]), seed=seed, holdout=0.3)
        counts[data.tests.index.numpy()] += 1
    assert counts.min() > 35  # 60 ± 6.5
    assert counts.max() < 85


@pytest.mark.parametrize(
    "targets",
    [
        np.linspace(0, 1, 40, dtype=np.float32),
        np.random.default_rng(0).integers(0, 2, (40, 3)).astype(np.float32),
        np.random.default_rng(0).integers(0, 9, (40, 5)),
    ],
    ids=["regression", "labels", "sequences"],
)
def test_holdout_of_targets_that_are_no_classes(targets):
    data = make_dataset(targets).partition(fm.partition.IID(), clients=4, holdout=0.25)
    assert data.tests.sizes.tolist() == [3, 3, 3, 3]  # of 10 each
    assert data.sizes.tolist() == [7, 7, 7, 7]
    assert data.describe().client_tests["samples"] == 12


def test_samples_are_held_out_of_a_federation():
    dataset = make_dataset(np.arange(60) % 3)
    whole = dataset.partition(fm.partition.QuantitySkew(), clients=5, seed=1)
    data, expected = whole.hold_out(0.3, seed=1), dataset.partition(fm.partition.QuantitySkew(), 5, 1, holdout=0.3)
    assert data.fingerprint() == expected.fingerprint()
    arrays = fm.FederatedData.from_arrays([whole.client(i) for i in range(5)], importance=[1, 2, 3, 4, 5])
    held = arrays.hold_out(0.3, seed=1)
    assert [rows_of(pair) for pair in held.tests] == [rows_of(pair) for pair in data.tests]
    assert torch.equal(held.importance, arrays.importance)
    with pytest.raises(ValueError, match="have some of their own already"):
        held.hold_out(0.1)
    with pytest.raises(ValueError, match="'share' must be"):
        whole.hold_out(0)


@pytest.mark.parametrize("holdout", [0, 1, -0.1, "a", True, float("nan")])
def test_invalid_shares_are_refused(holdout):
    with pytest.raises(ValueError, match="'holdout' must be a number > 0 and < 1"):
        make_dataset(np.zeros(10, int)).partition(fm.partition.IID(), clients=2, holdout=holdout)


def test_samples_of_two_clients_cannot_be_held_out():
    with pytest.raises(ValueError, match="assigns sample 3 more than once"):
        make_dataset(np.zeros(6, int)).partition(fm.partition.Fixed([[0, 3], [3, 4]]), holdout=0.5)


def test_marked_samples_are_the_tests_of_their_clients():
    marked = np.array([False, True, False, True, False, False])
    dataset = fm.Dataset("marked", np.arange(6.0)[:, None], np.zeros(6, np.int64), held_out=marked)
    data = dataset.partition(fm.partition.Fixed([[0, 1], [2, 4], [5, 3]]))
    assert [x.flatten().tolist() for x, _ in data.tests] == [[1.0], [], [3.0]]
    assert [data.client(i)[0].flatten().tolist() for i in range(3)] == [[0.0], [2.0, 4.0], [5.0]]
    with pytest.raises(ValueError, match="'holdout' must be None"):
        dataset.partition(fm.partition.Fixed([[0, 1], [2, 4], [5, 3]]), holdout=0.2)
    with pytest.raises(ValueError, match="no sample would be left"):
        dataset.partition(fm.partition.Fixed([[0, 2], [1, 3]]))


def clients_of(n, features=2):
    return [(np.full((4, features), i, np.float32), np.arange(4) % 2) for i in range(n)]


def test_tests_of_arrays():
    tests = [(np.ones((3, 2)), [0, 1, 0]), None, ([], [])]
    data = fm.FederatedData.from_arrays(clients_of(3), tests=tests)
    assert [len(y) for _, y in data.tests] == [3, 0, 0]
    assert data.tests[0][0].tolist() == np.ones((3, 2)).tolist()
    assert "2 clients without" in str(data.describe())
    plain = fm.FederatedData.from_arrays(clients_of(3))
    assert data.fingerprint() != plain.fingerprint()
    assert fm.FederatedData.from_arrays(clients_of(3), tests=[None] * 3).fingerprint() == plain.fingerprint()
    other = fm.FederatedData.from_arrays(clients_of(3), tests=[(np.ones((3, 2)), [0, 1, 1]), None, None])
    assert other.fingerprint() != data.fingerprint()


def test_tests_by_name():
    named = dict(zip("abc", clients_of(3), strict=True))
    data = fm.FederatedData.from_arrays(named, tests={"b": (np.ones((1, 2)), [1])})
    assert data.tests.sizes.tolist() == [0, 1, 0]
    assert (
        data.tests["b"][1].tolist()
        == data.tests[-2][1].tolist()
        == data.subset(["c", "b"]).tests["b"][1].tolist()
        == [1]
    )
    for wrong, kind, sentence in (
        ("d", KeyError, "there is no client 'd'"),
        (3, IndexError, "client must be in 0 … 2, got 3"),
        (-4, IndexError, "client must be in 0 … 2, got -4"),
        (1.5, ValueError, "a client must be the number or the name of one, got 1.5"),
        (None, ValueError, "a client must be the number or the name of one, got None"),
    ):
        for read in (data.tests.__getitem__, data.client):
            with pytest.raises(kind, match=sentence):
                read(wrong)
    with pytest.raises(ValueError, match="'tests' must name clients, got 'd'"):
        fm.FederatedData.from_arrays(named, tests={"d": (np.ones((1, 2)), [1])})
    numbered = fm.FederatedData.from_arrays(dict(enumerate(clients_of(3))), tests={2: (np.ones((1, 2)), [1])})
    assert numbered.tests.sizes.tolist() == [0, 0, 1]


@pytest.mark.parametrize(
    ("tests", "sentence"),
    [
        ([None], "'tests' must have one entry for each of 3 clients, got 1"),
        ([None, (np.ones((1, 3)), [0]), None], "x of the test set of client 1 must be like client 0's"),
        ([None, (np.ones((2, 2)), [0]), None], "x and y of the test set of client 1 must be equally long"),
        ([None, 5, None], "the test set of client 1 must be a pair"),
        (5, "'tests' must be a pair"),
    ],
)
def test_bad_tests_get_a_sentence(tests, sentence):
    with pytest.raises(ValueError, match="FederatedData") as error:
        fm.FederatedData.from_arrays(clients_of(3), tests=tests)
    assert sentence in str(error.value)


def test_tests_of_several_inputs_and_sequences():
    clients = [({"tokens": [[1, 2], [3]]}, [0, 1]) for _ in range(2)]
    tests = [None, ({"tokens": [[4, 5, 6]]}, [1])]
    data = fm.FederatedData.from_arrays(clients, tests=tests, padding=0, mask="mask")
    x, y = data.tests[1]
    assert x["tokens"].tolist() == [[4, 5, 6]]
    assert x["mask"].tolist() == [[True] * 3]
    assert y.tolist() == [1]
    assert data.client(0)[0]["tokens"].tolist() == [[1, 2, 0], [3, 0, 0]]


def test_subsets_keep_the_tests_of_their_clients():
    tests = [(np.full((i + 1, 2), float(i)), np.zeros(i + 1, int)) for i in range(3)]
    data = fm.FederatedData.from_arrays(clients_of(3), tests=tests)
    part = data.subset([2, 0])
    assert [x[0, 0].item() for x, _ in part.tests] == [2, 0]
    assert part.tests.sizes.tolist() == [3, 1]
    part.validate()


def test_arguments_of_data_sets_are_checked():
    digits = fm.datasets.load("digits")
    data = digits.partition(fm.partition.IID(), clients=4)
    for wrong, sentence in (
        (lambda: digits.fewer_tests(10, seed=1.5), "fewer_tests: 'seed' must be an integer of 64 bits, got 1.5"),
        (lambda: digits.declare(augment=0), "declare: 'augment' must be a fedmos.Augment or None, got 0"),
        (lambda: data.declare(normalize=""), "declare: 'normalize' must be a fedmos.Normalize or None, got ''"),
        (lambda: data.subset(torch.zeros(2, 2)), "subset: 'ids' must be numbers or names of clients, got"),
        (lambda: digits.partition(b"x", clients=2), "partition: 'scheme' must be a partition such as IID"),
    ):
        with pytest.raises(ValueError, match=sentence):
            wrong()


def test_clients_are_set_aside():
    data = fm.datasets.load("digits").partition(fm.partition.IID(), clients=20, holdout=0.2)
    seen, unseen = data.split_clients(0.1)
    assert (len(seen), len(unseen)) == (18, 2)
    assert seen.unseen is unseen
    assert (len(seen.tests), len(unseen.tests)) == (18, 2)
    every = torch.cat([seen.index, unseen.index]).sort().values
    assert torch.equal(every, data.index.sort().values)
    assert (
        seen.fingerprint()
        == data.split_clients(0.1)[0].fingerprint()
        != data.split_clients(0.1, seed=1)[0].fingerprint()
    )
    assert "2 more" in str(seen.describe())
    seen.validate()
    with pytest.raises(ValueError, match="some are already"):
        seen.split_clients(0.1)
    with pytest.raises(ValueError, match="'share' must be"):
        data.split_clients(1.5)
