"""Federations, partitions and data sets."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import fedmos as fm


def test_from_arrays_keeps_what_it_is_given():
    clients = [(np.arange(6, dtype=np.float32).reshape(3, 2), [0, 1, 2]), (torch.ones(1, 2), torch.tensor([1]))]
    data = fm.FederatedData.from_arrays(clients, test=(np.zeros((2, 2), np.float32), [0, 0]))
    assert len(data) == 2
    assert data.sizes.tolist() == [3, 1]
    assert data.importance.tolist() == [0.75, 0.25]
    x, y = data.client(0)
    assert x.dtype == torch.float32
    assert x.tolist() == [[0, 1], [2, 3], [4, 5]]
    assert y.tolist() == [0, 1, 2]
    assert data.test[0].shape == (2, 2)


def test_importances_are_scaled_to_one():
    clients = [(np.zeros((1, 1)), [0])] * 3
    assert fm.FederatedData.from_arrays(clients, importance=[1, 1, 2]).importance.tolist() == [0.25, 0.25, 0.5]
    assert fm.FederatedData.from_arrays(clients, importance=[0.2, 0.3, 0.5]).importance.tolist() == [0.2, 0.3, 0.5]


@pytest.mark.parametrize(
    ("clients", "more", "sentence"),
    [
        ([], {}, "'clients' must hold at least one client"),
        ([(np.zeros((0, 2)), [])], {}, "client 0 must have at least one sample"),
        ([(np.zeros((2, 2)), [0])], {}, "x and y of client 0 must be equally long, got 2 and 1"),
        ([(np.full((1, 2), np.nan), [0])], {}, "x of client 0 must be finite"),
        ([(np.zeros((1, 2)), [np.inf])], {}, "y of client 0 must be finite"),
        ([(np.array([["a"]]), [0])], {}, "x of client 0 must be an array of numbers"),
        ([([[1], [1, 2]], [0, 0])], {}, "x of client 0 must be an array of numbers"),
        ([(np.zeros((1, 2)), [0]), (np.zeros((1, 3)), [0])], {}, "x of client 1 must be like client 0's"),
        ([(np.zeros((1, 2)), [0])], {"test": (np.zeros((1, 3)), [0])}, "x of the test set must be like client 0's"),
        ([(np.zeros((1, 2)), [0])], {"importance": [1, 1]}, "'importance' must hold 1 numbers"),
        ([(np.zeros((1, 2)), [0])], {"importance": [-1]}, "'importance' must be numbers ≥ 0"),
        ([5], {}, "client 0 must be a pair"),
    ],
)
def test_bad_arrays_get_a_sentence(clients, more, sentence):
    with pytest.raises(ValueError, match="FederatedData") as error:
        fm.FederatedData.from_arrays(clients, **more)
    assert sentence in str(error.value)


def labels(sizes: list[int], seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).permutation(np.repeat(np.arange(len(sizes)), sizes))


@settings(deadline=None, max_examples=50)
@given(st.integers(1, 60), st.integers(0, 5))
def test_iid_shares_out_everything(clients, seed):
    parts = fm.partition.IID().split(labels([30, 40, 10]), clients, seed)
    assert sorted(np.concatenate(parts).tolist()) == list(range(80))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


@settings(deadline=None, max_examples=50)
@given(st.integers(1, 20), st.integers(1, 4), st.integers(0, 5), st.sampled_from(["random", "even"]))
def test_by_class_gives_the_right_classes_and_sizes(clients, classes, seed, share):
    y = labels([200] * 5)
    parts = fm.partition.ByClass(classes=classes, size=(4, 12), share=share).split(y, clients, seed)
    everything = np.concatenate(parts)
    assert len(set(everything.tolist())) == len(everything)
    for part in parts:
        counts = np.unique(y[part], return_counts=True)[1]
        assert len(counts) == classes
        assert 4 <= len(part) <= 12
        assert share == "random" or counts.max() - counts.min() <= 1


@settings(deadline=None, max_examples=30)
@given(st.integers(3, 20), st.integers(1, 5), st.integers(0, 5))
def test_by_class_without_a_size_shares_out_everything(clients, classes, seed):
    y = labels([100] * 5)
    parts = fm.partition.ByClass(classes=classes).split(y, clients, seed)
    held = [len(np.unique(y[part])) for part in parts]
    assert held == [classes] * clients
    everything = np.concatenate(parts)
    assert len(set(everything.tolist())) == len(everything)
    if clients * classes >= 5:
        assert len(everything) == 500


def test_partitions_are_seeded():
    scheme, y = fm.partition.ByClass(classes=2, size=(10, 50)), labels([300] * 10)
    one, same, other = (np.concatenate(scheme.split(y, 20, seed)) for seed in (0, 0, 1))
    assert np.array_equal(one, same)
    assert not np.array_equal(one, other)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: fm.partition.ByClass(classes=0), "ByClass: 'classes' must be an integer ≥ 1, got 0"),
        (lambda: fm.partition.ByClass(classes=2, size=(50, 10)), "ByClass: 'size' must be"),
        (lambda: fm.partition.ByClass(classes=3, size=2), "ByClass: 'size' must be ≥ 'classes' (3), got 2"),
        (lambda: fm.partition.ByClass(classes=3).split(labels([9, 9]), 2, 0), "must be ≤ the data's 2 classes, got 3"),
        (lambda: fm.partition.ByClass(classes=1, size=9).split(labels([9, 9]), 5, 0), "use fewer clients or a smaller"),
        (lambda: fm.partition.IID().split(labels([3]), 4, 0), "Cannot divide 3 samples among 4 clients"),
    ],
)
def test_impossible_partitions_say_why(make, sentence):
    with pytest.raises(ValueError) as error:
        make()
    assert sentence in str(error.value)


def test_digits_are_real_and_split_once():
    digits = fm.datasets.load("digits")
    assert digits.x_train.shape == (1438, 1, 8, 8)
    assert digits.x_test.shape == (359, 1, 8, 8)
    assert digits.x_train.dtype == np.uint8
    assert digits.classes == 10
    pixels = digits.normalize(torch.from_numpy(digits.x_train), torch.float64)
    assert abs(float(pixels.mean())) < 0.01
    assert abs(float(pixels.std()) - 1) < 0.01


def test_npz_files_are_found_and_checked(tmp_path, monkeypatch):
    arrays = {
        "x_train": np.arange(2 * 4 * 4 * 3, dtype=np.uint8).reshape(2, 4, 4, 3),
        "y_train": np.array([0, 1], np.uint8),
        "x_test": np.zeros((1, 4, 4, 3), np.uint8),
        "y_test": np.array([1], np.uint8),
    }
    np.savez(tmp_path / "cifar10.npz", **arrays)
    monkeypatch.setenv("FEDMOS_DATA", str(tmp_path))
    loaded = fm.datasets.load("cifar10")
    assert loaded.x_train.shape == (2, 3, 4, 4)
    assert loaded.x_train[0, :, 0, 0].tolist() == [0, 1, 2]
    assert loaded.y_train.dtype == np.int64

    with pytest.raises(FileNotFoundError, match=r"mnist\.npz does not exist"):
        fm.datasets.load("mnist")
    (tmp_path / "mnist.npz").write_bytes(b"PK\x03\x04 but not a zip")
    with pytest.raises(ValueError, match="not a valid data set"):
        fm.datasets.load("mnist")
    np.savez(tmp_path / "fmnist.npz", **arrays | {"y_train": np.array([{"code": 1}, None], dtype=object)})
    with pytest.raises(ValueError, match="not a valid data set"):  # an object array would need unpickling
        fm.datasets.load("fmnist")
    with pytest.raises(ValueError, match="did you mean 'mnist'"):
        fm.datasets.load("mnsit")


def test_channels_are_normalised_separately():
    normalize = fm.Normalize(mean=(0.0, 0.5), std=(1.0, 0.5), scale=10.0)
    x = torch.full((1, 2, 1, 1), 10, dtype=torch.uint8)
    assert normalize(x, torch.float32).flatten().tolist() == [1.0, 1.0]


class TestSubset:
    @pytest.fixture
    def data(self):
        clients = {name: (np.full((n, 1), n, np.float32), [n] * n) for n, name in enumerate("abcd", 1)}
        return fm.FederatedData.from_arrays(clients, test=(np.zeros((2, 1), np.float32), [0, 0]))

    def test_it_holds_the_clients_in_the_given_order(self, data):
        some = data.subset([3, "a"])
        some.validate()
        assert some.names == ["d", "a"]
        assert some.sizes.tolist() == [4, 1]
        for i, original in enumerate((3, 0)):
            for mine, theirs in zip(some.client(i), data.client(original), strict=True):
                assert torch.equal(mine, theirs)
        assert torch.equal(some.test[0], data.test[0])

    def test_importances_keep_their_ratios(self, data):
        assert data.subset(["b", 2]).importance.tolist() == [0.4, 0.6]
        given = fm.FederatedData.from_arrays([(np.zeros((1, 1)), [0])] * 3, importance=[1, 1, 2])
        assert given.subset(np.array([0, 2])).importance.tolist() == [1 / 3, 2 / 3]

    def test_subsets_of_partitions_and_of_subsets(self):
        data = fm.datasets.load("digits").partition(fm.partition.Dirichlet(alpha=0.5), clients=10)
        again = data.subset(torch.tensor([7, 2, 5])).subset([2, 0])
        assert all(torch.equal(a, b) for a, b in zip(again.client(0), data.client(5), strict=True))
        assert all(torch.equal(a, b) for a, b in zip(again.client(1), data.client(7), strict=True))
        model = fm.models.logistic(features=64)
        result = fm.run(model, again, fm.FedAvg(lr=0.1), fm.Full(), rounds=1, local_steps=1, batch_size=8)
        assert result.history[-1].cohort == [0, 1]
        assert result.history[-1].accuracy is not None

    @pytest.mark.parametrize(
        ("ids", "sentence"),
        [
            ([], "'ids' must name at least one client"),
            ([0, "a"], "must be different clients, got 0 twice"),
            ([4], "must be numbers in 0 … 3 or names of clients, got 4"),
            ([-1], "got -1"),
            ([True, False], "got True"),
            ([0.0], "got 0.0"),
            ("a", "must be numbers or names of clients, got 'a'"),
            (3, "got 3"),
            (["e"], "there is no client 'e'"),
        ],
    )
    def test_wrong_clients_get_a_sentence(self, data, ids, sentence):
        with pytest.raises(ValueError, match="subset") as error:
            data.subset(ids)
        assert sentence in str(error.value)

    def test_clients_without_importance_are_refused(self):
        data = fm.FederatedData.from_arrays([(np.zeros((1, 1)), [0])] * 3, importance=[0, 0, 1])
        with pytest.raises(ValueError, match="all of its clients have the importance 0"):
            data.subset([0, 1])
