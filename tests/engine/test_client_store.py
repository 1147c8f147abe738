"""Client state on disk is client state in memory."""

from dataclasses import dataclass
from types import SimpleNamespace

import pytest
import torch

import fedmos as fm
from fedmos.engine import client_store
from fedmos.engine.client_store import ClientStore


def test_client_state_on_disk_is_client_state_in_memory(tmp_path):
    """The file is sparse, starts from the initial values, and gives back what was written."""
    initial = {"c_i": torch.zeros(1000), "r_i": torch.arange(1000.0)}
    stores = [ClientStore(initial, clients=100_000, folder=tmp_path, in_memory=limit) for limit in (2**40, 0)]
    for store in stores:
        store.write(torch.tensor([7, 99_999]), {"c_i": torch.ones(2, 1000) * torch.tensor([[1.0], [2.0]])})
        store.write(torch.tensor([7]), {"r_i": torch.full((1, 1000), 5.0)})
        store.note(torch.tensor([7, 99_999]), 3)
    memory, disk = (store.read(torch.tensor([7, 0, 99_999])) for store in stores)
    for name in initial:
        assert torch.equal(memory[name], disk[name])
    assert torch.equal(disk["r_i"][2], initial["r_i"])
    assert list(stores[0]) == list(stores[1]) == [7, 99_999]
    assert torch.equal(stores[1][7]["c_i"], torch.ones(1000))
    with pytest.raises(KeyError):
        stores[1][0]
    (file,) = tmp_path.rglob("c_i")
    assert file.stat().st_size == 100_000 * 4000
    assert file.stat().st_blocks * 512 < 100_000
    del stores, store
    assert not list(tmp_path.iterdir())


def test_a_run_with_its_client_state_on_disk_is_the_same_run(quick, monkeypatch, tmp_path):
    algorithm = fm.Scaffold(lr=0.1)
    memory = quick(algorithm=algorithm)
    monkeypatch.setattr(ClientStore.__init__, "__defaults__", (None, 0, (0, 1)))
    disk = quick(algorithm=algorithm, out=tmp_path / "run")
    assert torch.equal(memory.params, disk.params)
    assert list(memory.clients) == list(disk.clients)
    loaded = fm.Result.load(tmp_path / "run")
    for i in memory.clients:
        assert torch.equal(memory.client_state(i)["c_i"], disk.client_state(i)["c_i"])
        assert torch.equal(memory.client_state(i)["c_i"], loaded.client_state(i)["c_i"])


def test_a_gpu_keeps_more_client_state_in_its_memory(monkeypatch):
    """A quarter of the device's memory, where that is more than the limit of a CPU."""
    monkeypatch.setattr(client_store, "total_memory", lambda device: 100 * 2**30)
    on_cpu = {"c_i": torch.zeros(2)}
    on_gpu = {"c_i": SimpleNamespace(device=torch.device("cuda"))}
    assert client_store._in_memory(on_cpu) == client_store._in_memory({}) == 4 * 2**30
    assert client_store._in_memory(on_gpu) == 25 * 2**30
    monkeypatch.setattr(client_store, "total_memory", lambda device: 8 * 2**30)
    assert client_store._in_memory(on_gpu) == 4 * 2**30


def test_the_state_of_other_ranks_is_not_stored_here():
    store = ClientStore({"c_i": torch.zeros(3)}, clients=4, share=(1, 2))
    assert [store.stores(i) for i in range(4)] == [False, True, False, True]
    assert not ClientStore({}, clients=4).stores(0)


@dataclass(frozen=True, kw_only=True)
class LastModel(fm.Algorithm):
    lr: float = 0.1
    client_state = ("y_i",)

    def finish(self, y, s, c, grad):
        return {"delta": y - c.x}, {"y_i": y}

    def personal(self, c):
        return c.own["y_i"]


def test_no_personal_model_from_the_state_of_another_rank(quick, monkeypatch):
    result = quick(algorithm=LastModel(), rounds=1)
    client = result.history[0].cohort[0]
    result.personal_model(client)
    monkeypatch.setattr(ClientStore, "stores", lambda self, i: False)
    with pytest.raises(ValueError, match=f"Cannot give client {client} a model of its own because its state is not"):
        result.personal_model(client)


def test_names_of_state_need_not_be_names_of_files(tmp_path):
    store = ClientStore({"a/b": torch.zeros(3), "a%b": torch.ones(3)}, clients=2, folder=tmp_path, in_memory=0)
    store.write(torch.tensor([1]), {"a/b": torch.full((1, 3), 2.0)})
    assert store.read(torch.tensor([1]))["a/b"].tolist() == [[2.0] * 3]
    assert store.read(torch.tensor([1]))["a%b"].tolist() == [[1.0] * 3]
