"""Frozen parameters are stored once: clients share them, and only the others are trained, sent and counted."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import fedmos as fm
from fedmos.core.flat_model import FlatModel
from fedmos.core.losses import Loss
from fedmos.core.trial import try_model
from fedmos.engine.program import Program
from helpers.compiling import scalar_code
from helpers.conformance import DEVICE

M, B, C = 6, 2, 4  # clients, samples, channels
WIDE = 61  # of the frozen layer; a prime, so that its weights are recognised by their shape


class Net(nn.Module):
    """A frozen layer of WIDE units between two small trainable ones."""

    def __init__(self, first, layer, last, pick=lambda returned: returned) -> None:
        super().__init__()
        self.first, self.layer, self.last, self.pick = first, layer, last, pick
        self.layer.requires_grad_(False)

    def forward(self, x):
        x = self.last(self.pick(self.layer(self.first(x))))
        return x.flatten(2).mean(2) if x.ndim == 4 else x.mean(1)


class SecondLayer(nn.Module):
    """A layer that takes sequences with the samples second."""

    def __init__(self, layer) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x):
        return self.layer(x.transpose(0, 1)).transpose(0, 1)


def of_images(layer, out=WIDE, **more):
    return Net(nn.Conv2d(3, WIDE, 1), layer, nn.Conv2d(out, 3, 1), **more)


def of_sequences(layer, out=WIDE, **more):
    return Net(nn.Linear(C, WIDE), layer, nn.Linear(out, 3), **more)


def recurrent(kind, **more):
    layer = kind(WIDE, WIDE, batch_first=True, **more)
    return of_sequences(layer, WIDE * (1 + layer.bidirectional), pick=lambda returned: returned[0])


def encoder():
    layer = nn.TransformerEncoderLayer(WIDE, 1, WIDE, 0.0, batch_first=True)
    return of_sequences(nn.TransformerEncoder(layer, 1, enable_nested_tensor=False))


NETWORKS = {
    "Linear": lambda: of_sequences(nn.Linear(WIDE, WIDE)),
    "Linear, samples second": lambda: of_sequences(SecondLayer(nn.Linear(WIDE, WIDE))),
    "LayerNorm": lambda: of_sequences(nn.Sequential(nn.LayerNorm(WIDE), nn.Linear(WIDE, WIDE, bias=False))),
    "attention": encoder,
    "LSTM": lambda: recurrent(nn.LSTM),
    "LSTM, both ways": lambda: recurrent(nn.LSTM, bidirectional=True),
    "LSTM, projected": lambda: Net(
        nn.Linear(C, WIDE),
        nn.LSTM(WIDE, WIDE, batch_first=True, proj_size=5),
        nn.Linear(5, 3),
        pick=lambda returned: returned[0],
    ),
    "GRU": lambda: recurrent(nn.GRU),
    "RNN": lambda: recurrent(nn.RNN, num_layers=2),
    "Conv2d": lambda: of_images(nn.Conv2d(WIDE, WIDE, 3, padding=1)),
    "Conv2d, strided": lambda: of_images(nn.Conv2d(WIDE, WIDE, 3, stride=2, bias=False)),
    "Conv2d, dilated": lambda: of_images(nn.Conv2d(WIDE, WIDE, 3, padding=2, dilation=2)),
    "GroupNorm": lambda: of_images(nn.Sequential(nn.Conv2d(WIDE, WIDE, 1), nn.GroupNorm(1, WIDE))),
    "ConvTranspose2d": lambda: of_images(nn.ConvTranspose2d(WIDE, WIDE, 2, 2)),
}


def inputs(model, n, dtype=torch.float64, side=3) -> torch.Tensor:
    shape = (n, 3, side, side) if isinstance(model.first, nn.Conv2d) else (n, 3, C)
    return torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=dtype)


def federation(model, sizes=(3, 2, 3), dtype=torch.float64) -> fm.FederatedData:
    rng = np.random.default_rng(0)
    return fm.FederatedData.from_arrays(
        [(inputs(model, n, dtype).numpy() + i, rng.integers(3, size=n)) for i, n in enumerate(sizes)]
    )


def network(name) -> nn.Module:
    torch.manual_seed(0)
    return NETWORKS[name]()


def train(model, **changes) -> fm.Result:
    how = {"rounds": 1, "local_steps": 2, "batch_size": 2, "dtype": torch.float64, "device": DEVICE}
    how |= {"data": federation(model), "algorithm": fm.FedAvg(lr=0.3), "selection": fm.Full()}
    return fm.run(model, **how | changes)


@pytest.mark.parametrize("name", NETWORKS)
def test_engines_agree(name):
    model = network(name)
    loop, batched = (train(model, engine=engine).params for engine in ("loop", "batched"))
    assert len(loop) == sum(p.numel() for p in (*model.first.parameters(), *model.last.parameters()))
    assert torch.allclose(loop, batched, rtol=0, atol=1e-10)


@pytest.mark.parametrize("name", ["attention", "GRU", "Conv2d"])
@pytest.mark.extended
def test_compiled_programs_agree(name, monkeypatch):
    model = network(name)
    loop = train(model, engine="loop", local_steps=1).params
    monkeypatch.setenv("FEDMOS_ENGINE", "compiled")
    with scalar_code():
        result = train(model, local_steps=1)
    assert result.info["compiled"]
    assert torch.allclose(loop, result.params, rtol=0, atol=1e-10)


class Recorder(TorchDispatchMode):
    """Records, for every tensor that is newly stored, its number of bytes, and the shapes of all matrix products."""

    def __init__(self) -> None:
        super().__init__()
        self.stored, self.products = [], []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        returned = func(*args, **kwargs or {})
        given = [v for v in tree_leaves((args, kwargs)) if isinstance(v, torch.Tensor)]
        known = {v.untyped_storage().data_ptr() for v in given}
        for v in tree_leaves(returned):
            if isinstance(v, torch.Tensor) and v.untyped_storage().data_ptr() not in known:
                self.stored.append(v.untyped_storage().nbytes())
        if func in (torch.ops.aten.mm.default, torch.ops.aten.bmm.default):
            self.products.append((func is torch.ops.aten.bmm.default, *(tuple(v.shape) for v in given)))
        return returned


def gradient(model, dtype=torch.float64, side=3) -> Recorder:
    """Compute the gradients of M clients, and record what is computed."""
    flat = FlatModel(model, torch.device("cpu"), dtype)
    x = inputs(model, M * B, dtype, side)
    try_model(flat, x)
    program = Program(flat, Loss("cross_entropy"), 0.0, False)
    y, weight = flat.initial().expand(M, -1).clone(), torch.full((M, B), 1 / B, dtype=dtype)
    with torch.no_grad(), Recorder() as recorder:
        program(y, x.unflatten(0, (M, B)), torch.zeros(M, B, dtype=torch.int64), weight, None)
    return recorder


@pytest.mark.filterwarnings("ignore:LSTM with projections")
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("name", NETWORKS)
def test_weights_are_not_copied_for_every_client(name, dtype):
    model = network(name)
    weights = sum(p.numel() for p in model.layer.parameters()) * dtype.itemsize
    assert max(gradient(model, dtype).stored) < M / 2 * weights


def test_large_convolutions_on_a_cpu():
    """Layers with own weights compute clients one after another there."""
    model = network("Conv2d")
    assert max(gradient(model, torch.float32, side=32).stored) < 2 * M * B * WIDE * 32 * 32 * 4
    results = [
        train(
            model,
            dtype=torch.float32,
            data=fm.FederatedData.from_arrays([(inputs(model, 3, torch.float32, side=32).numpy(), np.arange(3))] * 2),
            engine=engine,
            lr_decay=0.1,
        )
        for engine in ("loop", "batched")
    ]
    assert torch.allclose(results[0].params, results[1].params, rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", ["Linear", "Linear, samples second", "attention", "LSTM"])
def test_rows_of_all_clients_are_one_product(name):
    model = network(name)
    rows = M * B * 3
    of_frozen = [p for p in gradient(model).products if min(p[-1][-2:]) == WIDE]
    assert of_frozen
    assert all(not batched and a[0] == rows for batched, a, _ in of_frozen)


def test_no_gradient_is_computed_below_the_first_trainable_layer():
    model = network("Linear")
    between = gradient(model).products
    model.first.requires_grad_(False)
    below = gradient(model).products
    assert sum(p[-1] == (WIDE, WIDE) for p in between) == 2  # forward and backward
    assert sum(p[-1] == (WIDE, WIDE) for p in below) == 1
    assert len(between) - len(below) == 3  # nor those of the inputs of the last, and the weights of the first layer


def test_runs_side_by_side_share_the_frozen_parameters(monkeypatch):
    model, made = network("Linear"), []
    from fedmos.run import build

    monkeypatch.setattr(build, "FlatModel", lambda *given: made.append(FlatModel(*given)) or made[-1])
    shared = {"model": model, "data": federation(model), "algorithm": fm.FedAvg(lr=0.3), "selection": fm.Full()}
    shared |= {"rounds": 1, "local_steps": 2, "batch_size": 2, "dtype": torch.float64, "engine": "batched"}
    together = fm.run_many([{"seed": 0}, {"seed": 1}], **shared)
    first, second = (flat.module for flat in made)
    assert first.layer.weight is second.layer.weight
    assert first.layer.weight is not model.layer.weight
    assert first.first.weight is not second.first.weight
    for seed, result in enumerate(together):
        alone = fm.run(**shared, seed=seed)
        assert torch.allclose(result.params, alone.params, rtol=0, atol=1e-10)
        assert torch.equal(result.model.layer.weight, model.layer.weight.double())


def test_only_trainable_parameters_are_counted_and_kept():
    model = network("Linear")
    result = train(model, algorithm=fm.Scaffold(lr=0.1), engine="batched")
    D = len(result.params)
    assert sum(p.numel() for p in model.layer.parameters()) > 3 * D
    assert result.history[0].bytes_up == 3 * 2 * D * 8  # of each client, an update of x and of its control variate
    assert result.client_state(0)["c_i"].shape == (D,)
    x = inputs(model, 5)
    with torch.no_grad():
        assert torch.allclose(result.predict(x), result.model.eval()(x), rtol=0, atol=1e-12)
    assert torch.equal(result.model.layer.weight, model.layer.weight.double())


def test_a_model_without_trainable_parameters_is_refused():
    model = network("Linear").requires_grad_(False)
    with pytest.raises(ValueError, match=r"has no trainable parameters; set requires_grad=True .* fm\.models\.lora"):
        train(model)


def test_a_parameter_with_two_names_is_frozen_at_both():
    model = Net(nn.Embedding(7, C), nn.Linear(C, C), nn.Linear(C, 7, bias=False))
    model.last.weight = model.first.weight
    model.first.requires_grad_(False)
    model.layer.requires_grad_(True)
    data = fm.FederatedData.from_arrays([(np.arange(6).reshape(3, 2) % 7, np.arange(3))] * 3)
    loop, batched = (train(model, data=data, engine=engine) for engine in ("loop", "batched"))
    assert len(loop.params) == C * C + C
    assert torch.allclose(loop.params, batched.params, rtol=0, atol=1e-10)
    assert torch.equal(loop.model.last.weight, model.first.weight.double())


@pytest.mark.parametrize("frozen", [True, False])
def test_two_parameters_on_the_same_memory_are_refused(frozen):
    model = network("Linear")
    model.layer.weight = nn.Parameter(torch.zeros(WIDE * WIDE).view(WIDE, WIDE), requires_grad=False)
    model.last.weight = nn.Parameter(model.layer.weight.data[:3], requires_grad=not frozen)
    if frozen:
        assert train(model).params.isfinite().all()
        return
    with pytest.raises(ValueError, match=r"Cannot train 'last.weight' because it shares memory with 'layer.weight'"):
        train(model)


def test_a_buffer_on_the_memory_of_a_trained_parameter_is_refused():
    model = network("Linear")
    model.first.register_buffer("other", model.first.weight.data[1:])
    with pytest.raises(ValueError, match=r"Cannot train 'first.weight' because it shares memory with 'first.other'"):
        train(model)


def test_a_frozen_embedding_with_a_largest_norm():
    torch.manual_seed(0)
    model = Net(nn.Identity(), nn.Embedding(7, C, max_norm=0.5), nn.Linear(C, 3))
    data = fm.FederatedData.from_arrays([(np.arange(6).reshape(3, 2) + i, np.arange(3)) for i in range(2)])
    weights = model.layer.weight.clone()
    loop, batched = (train(model, data=data, engine=engine) for engine in ("loop", "batched"))
    assert torch.allclose(loop.params, batched.params, rtol=0, atol=1e-10)
    assert torch.equal(loop.model.layer.weight, weights.double())
    x = torch.arange(6).view(3, 2)
    with torch.no_grad():
        assert torch.allclose(loop.predict(x), loop.model.eval()(x), rtol=0, atol=1e-12)
