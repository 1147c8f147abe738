"""Networks as users write them train alike on every engine, or say why not."""

import warnings

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import fedmos as fm
from fedmos.engine import compiled
from helpers.conformance import DEVICE
from helpers.unvectorised_networks import CLIENT_BY_CLIENT
from helpers.user_networks import NETWORKS, Case


def train(case: Case, engine: str, algorithm: fm.Algorithm | None = None, **changes) -> fm.Result:
    how = {"rounds": 1, "local_steps": 2, "batch_size": 4, "dtype": torch.float64, "device": DEVICE} | case.options
    how |= {"algorithm": algorithm or fm.FedAvg(lr=0.1), "selection": fm.Full(), "engine": engine}
    return fm.run(case.model(), case.data(), **how | changes)


def assert_equal(loop: fm.Result, other: fm.Result, case: Case) -> None:
    start = torch.cat([p.detach().double().flatten() for p in case.model().parameters()])
    assert bool(loop.params.isfinite().all())
    assert float((loop.params.cpu() - start).norm()) > 1e-3
    assert torch.allclose(loop.params, other.params, rtol=0, atol=1e-10)
    assert loop.history[-1].train_loss == pytest.approx(other.history[-1].train_loss, abs=1e-10)


@pytest.mark.filterwarnings("ignore:`torch.nn.utils.weight_norm` is deprecated")
@pytest.mark.parametrize("name", NETWORKS)
def test_engines_agree(name):
    case = NETWORKS[name]
    assert_equal(train(case, "loop"), train(case, "batched"), case)


@pytest.mark.filterwarnings("ignore:`torch.nn.utils.weight_norm` is deprecated")
@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.extended
def test_engines_agree_with_momentum_and_in_programs_for_the_compiler(name, monkeypatch):
    case, algorithm = NETWORKS[name], fm.FedMoS(lr=0.1)
    loop = train(case, "loop", algorithm, rounds=3)
    assert_equal(loop, train(case, "batched", algorithm, rounds=3), case)
    monkeypatch.setattr(torch._inductor, "compile", lambda program, arguments: program)
    monkeypatch.setenv("FEDMOS_ENGINE", "compiled")
    compiled = train(case, "auto", algorithm, rounds=3)
    assert compiled.info["compiled"]
    assert_equal(loop, compiled, case)


@pytest.mark.parametrize("name", CLIENT_BY_CLIENT)
def test_networks_that_are_trained_client_by_client_say_why(name, caplog):
    case, sentence = CLIENT_BY_CLIENT[name]
    with pytest.raises(
        ValueError, match=f"Cannot vectorise the model or the loss because .*{sentence}.*use engine='loop'"
    ):
        train(case, "batched")
    assert train(case, "auto").info["engine"] == "loop"
    assert "Training client by client" in caplog.text
    assert "functorch" not in caplog.text


def rows_of(model: nn.Module, **how) -> fm.Result:
    rng = np.random.default_rng(0)
    data = fm.FederatedData.from_arrays([(rng.normal(size=(4, 8)), rng.integers(3, size=4)) for _ in range(2)])
    return fm.run(model, data, fm.FedAvg(lr=0.1), fm.Full(), rounds=1, local_steps=1, batch_size=4, **how)


class Refused(nn.Module):
    def __init__(self, how: str) -> None:
        super().__init__()
        self.a, self.head, self.how = nn.Linear(8, 8), nn.Linear(8, 3), how
        self.copy = nn.Linear(8, 8).requires_grad_(False)
        self.copy.load_state_dict(self.a.state_dict())
        if how == "complex":
            self.weight = nn.Parameter(torch.randn(8, dtype=torch.complex64))

    def forward(self, x):
        if self.how == "momentum":
            for mine, other in zip(self.copy.parameters(), self.a.parameters(), strict=True):
                mine.data.lerp_(other.data, 0.1)
        if self.how == "normalised":
            self.a.weight.data = self.a.weight.data / self.a.weight.data.norm()
        if self.how == "noise":
            x = x + torch.randn_like(x)
        if self.how == "checkpoint":
            return self.head(checkpoint(self.a, x + self.head.bias.sum(), use_reentrant=True))
        return self.head(self.a(x) + self.copy(x))


@pytest.mark.parametrize("engine", ["loop", "batched"])
@pytest.mark.parametrize(
    ("how", "sentence"),
    [
        ("momentum", "its forward pass changes 'copy.weight', which is not trained and which clients would share"),
        ("normalised", "its forward pass changes its parameters in place; compute with a changed copy instead"),
        ("noise", r"it draws from PyTorch's global generator \(torch\.randn_like in Refused\), so its runs"),
        ("complex", "Cannot train the complex parameter 'weight' because .*use a real parameter"),
        ("checkpoint", "it recomputes activations in the backward pass .*turn gradient checkpointing off"),
    ],
)
def test_networks_that_cannot_be_trained_are_refused(how, sentence, engine):
    with pytest.raises(ValueError, match=sentence):
        rows_of(Refused(how), engine=engine)


def test_a_model_that_was_called_before_is_copied_without_its_graph():
    case = NETWORKS["stored_features"]
    model = case.model()
    model(torch.zeros(2, 8))
    assert not model.features.is_leaf
    result = rows_of(model, engine="batched")
    assert torch.equal(result.params, rows_of(case.model(), engine="batched").params)
    assert not model.features.is_leaf


def test_complex_buffers_keep_their_imaginary_parts():
    case = NETWORKS["rotary_attention_with_complex_numbers"]
    model, result = case.model(), train(case, "batched")
    assert result.model.turns.dtype == torch.complex128
    assert torch.equal(result.model.turns, model.turns.to(torch.complex128))


def test_operations_that_are_computed_client_by_client_are_mentioned_once(caplog):
    """PyTorch warns of each at every call."""
    pooled = nn.Sequential(nn.Linear(8, 8), Unpooled(), nn.Linear(8, 3))
    with caplog.at_level("INFO"), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = rows_of(pooled, engine="batched")
    assert "computed client by client within a vectorised program: max_unpool2d" in caplog.text
    assert not [w for w in caught if "performance drop" in str(w.message)]
    assert torch.allclose(result.params, rows_of(pooled, engine="loop").params, rtol=0, atol=1e-6)


class Unpooled(nn.Module):
    def forward(self, x):
        x = x.view(len(x), 1, 2, 4)
        return F.max_unpool2d(*F.max_pool2d(x, 2, return_indices=True), 2).flatten(1)


def test_a_run_goes_on_where_compiling_fails(monkeypatch, caplog):
    def fail(self, *arguments):
        raise RuntimeError("the compiler gave up")

    model = nn.Linear(8, 3)
    batched = rows_of(model, engine="batched").params
    monkeypatch.setattr(compiled.Compiled, "_compile", fail)
    monkeypatch.setenv("FEDMOS_ENGINE", "compiled")
    assert torch.equal(rows_of(model).params, batched)
    assert "Not compiling because it fails: the compiler gave up" in caplog.text
