"""The names of clients: given, kept and shown."""

import pytest
import torch

import fedmos as fm


def pair(n, label=0):
    return torch.randn(n, 3, generator=torch.Generator().manual_seed(n)), torch.full((n,), label)


def test_names_come_from_an_argument_or_a_dictionary():
    given = fm.FederatedData.from_arrays([pair(2), pair(5, 1)], names=["north", "south"])
    mapped = fm.FederatedData.from_arrays({"north": pair(2), "south": pair(5, 1)})
    assert given.names == mapped.names == ["north", "south"]
    assert torch.equal(given.x, mapped.x)
    assert torch.equal(given.client("south")[0], given.client(1)[0])
    with pytest.raises(KeyError, match=r"there is no client 'suth' \(did you mean 'south'\?\)"):
        given.client("suth")
    with pytest.raises(KeyError, match="there is no client 'north'"):
        fm.FederatedData.from_arrays([pair(2)]).client("north")


@pytest.mark.parametrize("names", [["a"], "ab", ["a", 1], 5, ["a", "b", "c"]])
def test_names_must_be_one_string_per_client(names):
    with pytest.raises(ValueError, match="'names' must be 2 strings, got "):
        fm.FederatedData.from_arrays([pair(2), pair(3)], names=names)


def test_names_must_differ():
    with pytest.raises(ValueError, match="'names' must differ, got 'a' twice"):
        fm.FederatedData.from_arrays([pair(2), pair(3)], names=["a", "a"])


def test_names_are_shown(tmp_path):
    data = fm.FederatedData.from_arrays({"north": pair(2), "so<uth": pair(5, 1)})
    assert "clients             2: north (2), so<uth (5)" in str(data.describe())
    data.describe().plot(tmp_path / "split.svg")
    with pytest.raises(ValueError, match=r"plot: 'path' must end in \.svg, got '.*split\.png'"):
        data.describe().plot(tmp_path / "split.png")
    assert "client so&lt;uth, class 1: 5" in (tmp_path / "split.svg").read_text()
    many = fm.FederatedData.from_arrays({f"c{i}": pair(1) for i in range(9)})
    assert "9: c0 (1), c1 (1), c2 (1), c3 (1), c4 (1), c5 (1), c6 (1), c7 (1), …" in str(many.describe())


def test_results_and_errors_name_clients(tmp_path):
    options = {"rounds": 2, "local_steps": 1, "batch_size": 2, "out": tmp_path / "run"}
    data = fm.FederatedData.from_arrays({"north": pair(2), "south": pair(5, 1)})
    result = fm.run(fm.models.logistic(3, 2), data, fm.FedAvg(lr=0.1), fm.Full(), **options)
    by_name = result.info["client_accuracy"]["clients"]
    assert list(by_name) == ["north", "south"]
    assert sorted(by_name.values()) == result.info["client_accuracy"]["sorted"]
    assert fm.Result.load(tmp_path / "run").info["client_accuracy"]["clients"] == by_name
    broken = fm.FederatedData.from_arrays({"north": pair(2), "south": (torch.full((2, 3), 1e30), torch.arange(2))})
    with pytest.raises(fm.DivergenceError, match=r"The update of client 1 \('south'\) in round 1 is not finite"):
        fm.run(fm.models.logistic(3, 2), broken, fm.FedAvg(lr=1e30), fm.Full(), **{**options, "out": None})
