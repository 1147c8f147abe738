"""Time loops as Triton kernels: on a GPU, or on a CPU in Triton's interpreter (TRITON_INTERPRET=1)."""

import os

import pytest
import torch
from torch import nn
from torch._subclasses import FakeTensorMode
from torch.func import functional_call, grad_and_value, vmap

from fedmos.core.cohort_recurrence import CohortRecurrence
from fedmos.kernels import recurrence_ops
from helpers.conformance import DEVICE

pytestmark = pytest.mark.skipif(
    DEVICE == "cpu" and not os.environ.get("TRITON_INTERPRET"), reason="needs a GPU, or Triton's interpreter"
)
on_gpu = pytest.mark.skipif(DEVICE == "cpu", reason="needs a GPU")
KINDS = list(recurrence_ops.GATES)
SHAPES = [  # steps, clients · directions, samples, units
    (1, 1, 1, 1),
    (3, 2, 5, 7),
    (4, 3, 16, 32),
    (2, 2, 33, 33),
    (3, 1, 17, 48),
    (2, 1, 1, 64),
    *([(40, 6, 32, 256), (9, 3, 70, 100), (5, 300, 10, 20)] if DEVICE != "cpu" else []),
]


@pytest.fixture(autouse=True)
def kernels(monkeypatch):
    """Use the kernels for float32 in the interpreter too; in float64, elementary operations are the reference."""
    torch.manual_seed(0)
    if DEVICE == "cpu":
        monkeypatch.setattr(recurrence_ops, "_own_kernel", lambda x, projection: x.dtype == torch.float32)


def tensors(kind, T, N, B, H):
    """Return the gates, states, recurrent weights, bias and projection."""
    G = recurrence_ops.GATES[kind] * H
    shapes = (
        (T, N, B, G),
        (N, B, H),
        (N, B, H if kind == "lstm" else 0),
        (N, G, H),
        (N, G if kind == "gru" else 0),
        (N, 0, 0),
    )
    gates, h, c, w, bias, projection = (torch.randn(shape).to(DEVICE) for shape in shapes)
    return gates, h, c, w / H**0.5, bias, projection


def backward_tensors(of_forward, results):
    """Return random gradients of the results, and what else the backward pass takes."""
    outputs, cells, kept = results
    _, h, c, w, _, projection = of_forward
    return torch.randn_like(outputs), torch.randn_like(cells), h, c, w, projection, outputs, cells, kept


def doubled(found):
    return [v.double() for v in found]


def assert_close(found, expected, error):
    for here, there in zip(found, expected, strict=True):
        assert here.dtype == torch.float32
        assert here.shape == there.shape
        assert float((here - there).norm()) <= error * float(there.norm())


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", KINDS)
def test_results_and_gradients_are_those_in_float64(kind, shape):
    given = tensors(kind, *shape)
    results = torch.ops.fedmos.recurrence(kind, *given)
    assert_close(results, torch.ops.fedmos.recurrence(kind, *doubled(given)), 5e-6)
    for trained in (True, False):
        gradients = backward_tensors(given, results)
        found = torch.ops.fedmos.recurrence_backward(kind, trained, *gradients)
        assert_close(found, torch.ops.fedmos.recurrence_backward(kind, trained, *doubled(gradients)), 5e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_tensors_may_have_any_strides(kind):
    given = list(tensors(kind, 3, 2, 5, 7))
    strided = [v.mT.contiguous().mT for v in given]
    strided[1], given[1] = given[1][:1, :1].expand(2, 5, 7), given[1][:1, :1].repeat(2, 5, 1)
    results = torch.ops.fedmos.recurrence(kind, *given)
    for here, there in zip(torch.ops.fedmos.recurrence(kind, *strided), results, strict=True):
        assert torch.equal(here, there)
    gradients = list(backward_tensors(given, results))
    gradients[0] = gradients[0][:1].repeat(3, 1, 1, 1)
    expected = torch.ops.fedmos.recurrence_backward(kind, True, *gradients)
    strided = [v.mT.contiguous().mT for v in gradients]
    strided[0] = gradients[0][:1].expand(3, -1, -1, -1)
    for here, there in zip(torch.ops.fedmos.recurrence_backward(kind, True, *strided), expected, strict=True):
        assert torch.allclose(here, there, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_a_sample_that_is_not_a_number_leaves_the_others_alone(kind):
    given = tensors(kind, 3, 2, 5, 7)
    given[0][:, 1, 2] = torch.nan
    results = torch.ops.fedmos.recurrence(kind, *given)
    found = torch.ops.fedmos.recurrence_backward(kind, True, *backward_tensors(given, results))
    for v in (results[0][0], results[0][-1], found[0][0], found[1]):
        wrong = torch.zeros(2, 5, dtype=torch.bool)
        wrong[1, 2] = True
        assert torch.equal(v.isnan().any(-1).cpu(), wrong) or kind == "rnn_relu"
    assert results[0][:, 1, 2].isnan().all()


@pytest.mark.parametrize("trained", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_compilers_know_shapes_and_strides(kind, trained):
    given = tensors(kind, 3, 2, 5, 7)
    results = torch.ops.fedmos.recurrence(kind, *given)
    gradients = backward_tensors(given, results)
    found = torch.ops.fedmos.recurrence_backward(kind, trained, *gradients)
    with FakeTensorMode() as mode:
        like = [mode.from_tensor(v) for v in given]
        expected = torch.ops.fedmos.recurrence(kind, *like)
        like = [mode.from_tensor(v) for v in gradients]
        expected = *expected, *torch.ops.fedmos.recurrence_backward(kind, trained, *like)
    for here, there in zip((*results, *found), expected, strict=True):
        assert (here.shape, here.stride()) == (there.shape, there.stride())


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_layers_of_a_cohort_agree_with_float64(kind, shared):
    """Two layers, two directions; with weights of their own, or shared, as gradients of single samples need them."""
    layer = kind(3, 6, num_layers=2, bidirectional=True, device=DEVICE)
    params = {name: torch.randn(3, *p.shape).to(DEVICE) / 2 for name, p in layer.named_parameters()}
    x = torch.randn(3, 5, 4, 3).to(DEVICE)

    def function(params, x):
        outputs, ends = functional_call(layer, params, (x,))
        ends = ends if kind is nn.LSTM else (ends,)
        return sum((number + v.sin() ** 2).sum() * (number + 1) for number, v in enumerate((outputs, *ends)))

    def of_cohort(params, x):
        with CohortRecurrence():
            axes = (None, 0) if shared else (0, 0)
            (of_params, of_x), value = vmap(grad_and_value(function, argnums=(0, 1)), in_dims=axes)(params, x)
        return [*of_params.values(), of_x, value]

    if shared:
        params = {name: p[0] for name, p in params.items()}
    found = of_cohort(params, x)
    layer.double()
    assert_close(found, of_cohort({name: p.double() for name, p in params.items()}, x.double()), 1e-5)


@on_gpu
def test_products_are_as_exact_as_the_settings_ask():
    given = tensors("lstm", 2, 3, 32, 256)
    exact = torch.ops.fedmos.recurrence("lstm", *doubled(given))[0]
    torch.backends.cuda.matmul.allow_tf32 = True
    try:
        short = torch.ops.fedmos.recurrence("lstm", *given)[0]
    finally:
        torch.backends.cuda.matmul.allow_tf32 = False
    error = float((short - exact).norm() / exact.norm())
    assert 1e-6 < error < 1e-2


@on_gpu
@pytest.mark.parametrize("kind", KINDS)
def test_a_captured_graph_repeats_the_results(kind):
    given = tensors(kind, 5, 3, 9, 20)
    gradients = backward_tensors(given, torch.ops.fedmos.recurrence(kind, *given))[:2]

    def compute():
        results = torch.ops.fedmos.recurrence(kind, *given)
        _, h, c, w, _, projection = given
        return *results, *torch.ops.fedmos.recurrence_backward(kind, True, *gradients, h, c, w, projection, *results)

    compute()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = compute()
    given[0].copy_(torch.randn_like(given[0]))
    graph.replay()
    for here, there in zip(found, compute(), strict=True):
        assert torch.equal(here, there)


@on_gpu
def test_steps_share_one_program(monkeypatch):
    """What changes from step to step is no constant of the compiled kernel."""
    knobs = pytest.importorskip("triton.knobs")
    compiled = []
    monkeypatch.setattr(knobs.runtime, "jit_post_compile_hook", lambda *_, **__: compiled.append(1))
    given = tensors("gru", 40, 2, 3, 21)
    results = torch.ops.fedmos.recurrence("gru", *given)
    torch.ops.fedmos.recurrence_backward("gru", True, *backward_tensors(given, results))
    assert len(compiled) == 3  # forward; backward for the last step and for the others
