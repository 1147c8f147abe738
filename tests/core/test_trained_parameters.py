"""Networks that would not train what they seem to train, or train otherwise on each engine, are refused."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint

import fedmos as fm

SIZES = (5, 2, 4)


def data(sizes=SIZES, shape=(8,)) -> fm.FederatedData:
    rng = np.random.default_rng(1)
    pairs = [(rng.normal(size=(n, *shape)).astype("float32"), rng.integers(3, size=n)) for n in sizes]
    return fm.FederatedData.from_arrays(pairs)


def train(model: nn.Module, engine: str = "loop", **how) -> fm.Result:
    given = {"data": data(), "algorithm": fm.FedAvg(lr=0.1), "selection": fm.Full(), "rounds": 2, "local_steps": 2}
    return fm.run(model, **given | how, engine=engine)


class Net(nn.Module):
    """A linear layer, and another whose inputs come from a function of the network."""

    def __init__(self, inner=None) -> None:
        super().__init__()
        self.body, self.head, self.inner = nn.Linear(8, 8), nn.Linear(8, 3), inner

    def forward(self, x):
        return self.head(x if self.inner is None else self.inner(self, x))


def checkpointed(net, x):
    return checkpoint(lambda v: torch.tanh(v @ net.body.weight), x, use_reentrant=False)


def of_a_list() -> nn.Module:
    net = Net(lambda net, x: net.layers[1](torch.tanh(net.layers[0](x))))
    net.layers = [nn.Linear(8, 8), nn.Linear(8, 8)]
    return net


def of_a_tensor() -> nn.Module:
    net = Net(lambda net, x: x * net.scale)
    net.scale = torch.ones(8, requires_grad=True)
    return net


def by_a_lambda() -> nn.Module:
    net = Net()
    net.inner = lambda copy, x: torch.tanh(net.body(x))
    return net


def by_a_global() -> nn.Module:
    layer = nn.Linear(8, 8)
    return Net(lambda net, x: layer(x))


def hooked() -> nn.Module:
    net = Net(lambda net, x: net.body(x))
    net.body.weight.register_hook(lambda g: g * 0.1)
    return net


@pytest.mark.parametrize("engine", ["loop", "batched", "auto"])
@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: Net(checkpointed), r"recomputes .* \(torch.utils.checkpoint\); turn gradient checkpointing off"),
        (of_a_list, r"shape \(8, 8\) with requires_grad in its attribute 'layers', .*; use nn.ModuleList"),
        (of_a_tensor, r"shape \(8,\) with requires_grad in its attribute 'scale', which is not among its parameters"),
        (by_a_lambda, "a function or hook of it uses 'body.weight' of the given object, while a run trains a copy"),
        (by_a_global, "with requires_grad in an object that is not part of it"),
        (hooked, "Cannot train 'body.weight' with a hook on its gradient because clients train copies"),
    ],
    ids=["checkpoint of a function", "list", "tensor", "lambda", "global", "hook on a gradient"],
)
def test_what_would_not_be_trained_is_refused(make, sentence, engine):
    with pytest.raises(ValueError, match=sentence):
        train(make(), engine)


@pytest.mark.parametrize("engine", ["loop", "batched"])
@pytest.mark.parametrize("outputs", [torch.detach, lambda o: F.one_hot(o.argmax(1), 3)])
def test_outputs_without_a_gradient_are_refused(outputs, engine):
    with pytest.raises(ValueError, match="its outputs are no differentiable function of its trainable parameters"):
        train(Net(), engine, outputs=outputs)


class CountsEvaluations(Net):
    matters = True
    calls = 0

    def forward(self, x):
        self.calls += not self.training
        return super().forward(x) + self.matters * self.calls * torch.arange(3)


def test_state_of_evaluation_is_refused_if_it_matters():
    net = CountsEvaluations()
    with pytest.raises(ValueError, match=r"Cannot evaluate the model because its forward pass changes .* 'calls'"):
        train(net)
    net.matters = False
    assert train(net).history


def test_tensors_of_the_forward_pass_and_frozen_layers_in_lists_are_no_parameters():
    net = of_a_list()
    for layer in net.layers:
        layer.requires_grad_(False)
    assert torch.allclose(train(net).params, train(net, "batched").params, atol=1e-6)

    net = Net(lambda net, x: x + torch.zeros(8, requires_grad=True))
    same = train(net).params
    net.inner = None
    assert torch.equal(same, train(net).params)


def test_weight_norm_of_a_recurrent_layer():
    torch.manual_seed(0)
    net = Net(lambda net, x: net.body(x)[0][:, -1])
    net.body, net.head = parametrizations.weight_norm(nn.LSTM(8, 5, batch_first=True), "weight_hh_l0"), nn.Linear(5, 3)
    how = {"data": data(shape=(6, 8)), "dtype": torch.float64, "batch_size": 2}
    loop, batched = (train(net, engine, **how).params for engine in ("loop", "batched"))
    assert torch.allclose(loop, batched, rtol=0, atol=1e-12)
    start = torch.cat([p.detach().flatten() for p in net.parameters()])
    assert (loop - start).abs().max() > 1e-3


MIXING = {
    "the largest value of the batch": lambda net, x: x / x.abs().max(),
    "the range of each column": lambda net, x: (x - x.amin(0)) / (1 + x.amax(0) - x.amin(0)),
    "the number of samples": lambda net, x: x * len(x),
    "the next sample": lambda net, x: x + x.roll(1, 0),
}


@pytest.mark.parametrize("name", MIXING)
@pytest.mark.parametrize("turn", range(3))
def test_an_influence_of_other_samples_is_found_whichever_sample_it_comes_from(name, turn, caplog):
    """Padding, and batches of evaluation, would change the outputs."""
    net, given = Net(MIXING[name]), data((3, 3))
    x, y = given.client(0)
    x = x.roll(turn, 0)
    given = fm.FederatedData.from_arrays([(x, y), (x, y), (x[:2], y[:2])])
    with pytest.raises(
        ValueError, match=r"samples of a batch influence each other.*would be padded; use engine='loop'"
    ):
        train(net, "batched", data=given)
    assert train(net, "auto", data=given).info["engine"] == "loop"
    assert "depend on the other samples of its batch, or on their number" in caplog.text


def test_padding_that_batch_norm_leaves_out_may_still_be_counted_elsewhere():
    net = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), Net())
    how = {"batchnorm": "local", "batch_size": 4}
    loop, batched = (train(net, engine, **how, dtype=torch.float64).params for engine in ("loop", "batched"))
    assert torch.allclose(loop, batched, rtol=0, atol=1e-12)
    net[2].inner = MIXING["the number of samples"]
    with pytest.raises(ValueError, match="samples of a batch influence each other"):
        train(net, "batched", **how)


def test_equal_samples_do_not_hide_an_influence():
    """The first samples of a federation may be blank."""
    blank = np.zeros((4, 8), "float32")
    x, y = data((4,)).client(0)
    given = fm.FederatedData.from_arrays([(blank, y), (x, y), (x[:3], y[:3])])
    with pytest.raises(ValueError, match="samples of a batch influence each other"):
        train(Net(MIXING["the next sample"]), "batched", data=given)


def test_a_model_that_removes_the_axis_of_a_single_sample_is_refused_where_there_is_one():
    net, given = Net(lambda net, x: x.squeeze()), data((5, 1, 4))
    for engine in ("loop", "auto"):
        with pytest.raises(ValueError, match=r"one sample \(client 1\) because .* shape \(3,\) .* instead of \(1, 3\)"):
            train(net, engine, data=given)
    assert train(net).history


def test_integers_for_a_model_of_real_numbers_get_a_hint():
    x, y = np.arange(24, dtype="uint8").reshape(3, 8), np.arange(3)
    with pytest.raises(ValueError, match=r"fails there: .*; use real numbers, x.astype\('float32'\), or data.declare"):
        train(Net(), data=fm.FederatedData.from_arrays([(x, y)]))
    result = train(Net(), data=fm.FederatedData.from_arrays([(x, y)]).declare(normalize=fm.Normalize(mean=0, std=1)))
    assert F.softmax(result.predict(x), 1).isfinite().all()
