"""Recurrent layers of a cohort: PyTorch's results and gradients, by as many operations for many clients as for two."""

import pytest
import torch
from torch import nn
from torch.func import functional_call, grad_and_value, vmap
from torch.profiler import ProfilerActivity, profile

from fedmos.core.cohort_recurrence import CohortRecurrence
from fedmos.kernels import recurrence
from helpers.conformance import DEVICE

T, B, I, H = 5, 4, 3, 6
LAYERS = {
    "LSTM": (nn.LSTM, {}),
    "LSTM, no bias, steps first": (nn.LSTM, {"bias": False, "batch_first": False}),
    "LSTM, two layers, two directions": (nn.LSTM, {"num_layers": 2, "bidirectional": True}),
    "LSTM, projected": (nn.LSTM, {"num_layers": 2, "proj_size": 2}),
    "LSTM, projected, two directions, no bias": (nn.LSTM, {"proj_size": 2, "bidirectional": True, "bias": False}),
    "GRU": (nn.GRU, {"batch_first": False}),
    "GRU, two layers, two directions": (nn.GRU, {"num_layers": 2, "bidirectional": True}),
    "GRU, no bias": (nn.GRU, {"bias": False}),
    "RNN": (nn.RNN, {"num_layers": 2}),
    "RNN, ReLU, two directions": (nn.RNN, {"nonlinearity": "relu", "bidirectional": True}),
}


def problem(case: str, M: int, dtype: torch.dtype = torch.float64):
    """Return a function of (parameters, inputs, state), and M sets of arguments."""
    torch.manual_seed(0)
    kind, options = LAYERS[case]
    layer = kind(I, H, **{"batch_first": True} | options).to(DEVICE, dtype)
    rows = layer.num_layers * (1 + layer.bidirectional)
    sizes = [layer.proj_size or H, H] if kind is nn.LSTM else [H]
    params = {name: torch.randn(M, *p.shape, dtype=dtype).to(DEVICE) / 2 for name, p in layer.named_parameters()}
    x = torch.randn(M, *((B, T) if layer.batch_first else (T, B)), I, dtype=dtype).to(DEVICE)
    states = [torch.randn(M, rows, B, n, dtype=dtype).to(DEVICE) for n in sizes]

    def function(params, x, *states):
        """Return a number to which outputs and last states contribute, weighted differently."""
        outputs, ends = functional_call(layer, params, (x, states if kind is nn.LSTM else states[0]))
        ends = ends if kind is nn.LSTM else (ends,)
        return sum((number + v.sin() ** 2).sum() * (number + 1) for number, v in enumerate((outputs, *ends)))

    return function, (params, x, *states)


def by_autograd(function, params, *others):
    """Return what `grad_and_value` returns. On a GPU, recurrent layers do not run within it."""
    params = {name: p.clone().requires_grad_() for name, p in params.items()}
    others = [v.clone().requires_grad_() for v in others]
    value = function(params, *others)
    found = iter(torch.autograd.grad(value, [*params.values(), *others]))
    return ({name: next(found) for name in params}, *found), value


def of_cohort(function, arguments):
    with CohortRecurrence():
        return vmap(grad_and_value(function, argnums=tuple(range(len(arguments)))))(*arguments)


@pytest.mark.parametrize("case", LAYERS)
def test_results_and_gradients_are_pytorchs(case, monkeypatch):
    function, arguments = problem(case, 3)
    cohorts = []
    whole = recurrence._Recurrence.vmap
    monkeypatch.setattr(recurrence._Recurrence, "vmap", staticmethod(lambda *a: cohorts.append(1) or whole(*a)))
    (params, *others), values = of_cohort(function, arguments)
    assert cohorts
    for m in range(3):
        own = ({name: p[m] for name, p in arguments[0].items()}, *(v[m] for v in arguments[1:]))
        (expected, *rest), value = by_autograd(function, *own)
        assert torch.allclose(values[m], value, rtol=1e-12)
        for name, g in expected.items():
            assert torch.allclose(params[name][m], g, rtol=1e-10, atol=1e-12), name
        for here, there in zip(others, rest, strict=True):
            assert torch.allclose(here[m], there, rtol=1e-10, atol=1e-12)


def test_shared_weights_or_inputs_have_no_client_axis():
    """Gradients of single samples share the weights; evaluation of several models shares the inputs."""
    function, (params, x, *states) = problem("GRU, two layers, two directions", 3)
    shared = {name: p[0] for name, p in params.items()}
    with CohortRecurrence():
        of_inputs = vmap(grad_and_value(function), in_dims=(None, 0, 0))(shared, x, *states)[1]
        of_models = vmap(function, in_dims=(0, None, None))(params, x[0], *(s[0] for s in states))
    for m in range(3):
        assert torch.allclose(of_inputs[m], function(shared, x[m], *(s[m] for s in states)), rtol=1e-12)
        own = {name: p[m] for name, p in params.items()}
        assert torch.allclose(of_models[m], function(own, x[0], *(s[0] for s in states)), rtol=1e-12)


@pytest.mark.parametrize("bidirectional", [False, True])
def test_outputs_can_be_viewed_and_weights_flattened(bidirectional):
    """As users do in their forward pass."""
    layer = nn.GRU(I, H, num_layers=2, bidirectional=bidirectional, device=DEVICE)
    params = {name: torch.randn(3, *p.shape, device=DEVICE) for name, p in layer.named_parameters()}

    def flat(params, x):
        layer.flatten_parameters()
        assert [v.data_ptr() for v in params.values()] == [0] * len(params)  # what that does on a GPU
        outputs, state = functional_call(layer, params, (x,))
        return outputs.view(T * B, -1), state.view(-1)

    with CohortRecurrence():
        outputs, states = vmap(flat)(params, torch.randn(3, T, B, I, device=DEVICE))
    assert outputs.shape == (3, T * B, H * (1 + bidirectional))
    assert states.shape == (3, 2 * (1 + bidirectional) * B * H)


@pytest.mark.parametrize("case", ["LSTM, projected", "GRU", "RNN"])
def test_operations_do_not_grow_with_the_number_of_clients(case):
    def operations(M: int) -> int:
        function, arguments = problem(case, M)
        with profile(activities=[ProfilerActivity.CPU]) as seen:
            of_cohort(function, arguments)
        return sum(event.count for event in seen.key_averages() if event.key.startswith("aten::"))

    assert operations(2) == operations(9) > 0


def test_steps_take_few_operations():
    """A step of a GRU, forward and backward, has two products and fewer than ten elementwise operations."""
    function, (params, x, *states) = problem("GRU", 3)
    counted = []
    for steps in (10, 20):
        arguments = (params, x[:, :1].expand(-1, steps, -1, -1), *states)
        with profile(activities=[ProfilerActivity.CPU]) as seen:
            of_cohort(function, arguments)
        counted.append({event.key: event.count for event in seen.key_averages()})
    products = [sum(c.get(name, 0) for name in ("aten::bmm", "aten::baddbmm_")) for c in counted]
    assert products[1] - products[0] == 2 * 10
    elementwise = (
        "aten::add",
        "aten::sigmoid_",
        "aten::addcmul",
        "aten::tanh_",
        "aten::lerp",
        "aten::mul",
        "aten::copy_",
    )
    extra = sum(counted[1].get(name, 0) - counted[0].get(name, 0) for name in (*elementwise, "aten::addcmul_"))
    assert 0 < extra < 10 * 10


def test_reduced_precision_is_close():
    function, arguments = problem("LSTM, two layers, two directions", 2, torch.float32)
    exact = of_cohort(function, arguments)[0][0]
    with torch.autocast(DEVICE, torch.bfloat16):
        short = of_cohort(function, arguments)[0][0]
    for name, g in exact.items():
        assert short[name].dtype == torch.float32
        assert 0 < float((g - short[name]).norm() / g.norm()) < 0.05, name
