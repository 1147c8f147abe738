"""Each local optimiser against PyTorch's, step by step on plain tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import fedmos as fm
from fedmos.local.muon import newton_schulz
from helpers.local import SHAPES, muon_of, orthogonal

STEPS, CLIENTS, LR = 7, 3, 0.03


def directions(dtype: torch.dtype = torch.float64) -> Tensor:
    """A direction for each step and client, (STEPS, CLIENTS, D), one of them zero."""
    g = torch.Generator().manual_seed(4)
    given = torch.randn(STEPS, CLIENTS, fm.Layers(SHAPES).size, generator=g, dtype=torch.float64)
    given[2, 1] = 0
    return given.to(dtype)


def start(dtype: torch.dtype = torch.float64) -> Tensor:
    g = torch.Generator().manual_seed(5)
    return torch.randn(CLIENTS, fm.Layers(SHAPES).size, generator=g, dtype=torch.float64).to(dtype)


def columns(optimizer: fm.local.LocalOptimizer, lead: Sequence[int], dtype: torch.dtype) -> dict[str, Tensor]:
    size = fm.Layers(SHAPES).size
    return {
        name if isinstance(name, str) else name[0]: torch.zeros(
            *lead, size if isinstance(name, str) else 1, dtype=dtype
        )
        for name in optimizer.state
    }


def trained(optimizer: fm.local.LocalOptimizer, y: Tensor, given: Tensor) -> list[Tensor]:
    """The models after each step: y ← y − lr · d'."""
    s, lr, found = columns(optimizer, y.shape[:-1], y.dtype), torch.tensor(LR, dtype=y.dtype), []
    for d in given:
        d, s = optimizer.update(d, y, s, lr, fm.Layers(SHAPES))
        y = y - lr * d
        found.append(y)
    return found


def by_torch(kind: type[torch.optim.Optimizer], y: Tensor, given: Tensor, **options: Any) -> list[Tensor]:
    """The same of one client by an optimiser of PyTorch, with a parameter for each layer."""
    layers = fm.Layers(SHAPES)
    parameters = {name: torch.nn.Parameter(v.clone()) for name, v in layers.split(y).items()}
    optimizer, found = kind(parameters.values(), lr=LR, **options), []
    for d in given:
        for name, v in layers.split(d).items():
            parameters[name].grad = v.clone()
        optimizer.step()
        found.append(layers.join({name: p.detach().clone() for name, p in parameters.items()}))
    return found


PAIRS = {
    "SGD": (fm.local.SGD(), torch.optim.SGD, {}),
    "SGD, decay": (fm.local.SGD(weight_decay=0.1), torch.optim.SGD, {"weight_decay": 0.1}),
    "SGD, momentum": (fm.local.SGD(momentum=0.9), torch.optim.SGD, {"momentum": 0.9}),
    "SGD, nesterov": (
        fm.local.SGD(momentum=0.8, nesterov=True, weight_decay=0.2),
        torch.optim.SGD,
        {"momentum": 0.8, "nesterov": True, "weight_decay": 0.2},
    ),
    "Adam": (fm.local.Adam(), torch.optim.Adam, {}),
    "Adam, decay": (
        fm.local.Adam(beta1=0.7, beta2=0.95, eps=1e-3, weight_decay=0.3),
        torch.optim.Adam,
        {"betas": (0.7, 0.95), "eps": 1e-3, "weight_decay": 0.3},
    ),
    "Adam, beta 0": (fm.local.Adam(beta1=0.0, beta2=0.0), torch.optim.Adam, {"betas": (0.0, 0.0)}),
    "AdamW": (fm.local.AdamW(), torch.optim.AdamW, {"weight_decay": 0.0}),
    "AdamW, decay": (
        fm.local.AdamW(beta1=0.7, beta2=0.95, weight_decay=0.3),
        torch.optim.AdamW,
        {"betas": (0.7, 0.95), "weight_decay": 0.3},
    ),
}


@pytest.mark.parametrize("name", PAIRS)
def test_every_step_is_that_of_torch(name):
    """A cohort of three clients, and each of them alone; every step to twelve digits."""
    optimizer, kind, options = PAIRS[name]
    y, given = start(), directions()
    cohort = trained(optimizer, y, given)
    for i in range(CLIENTS):
        alone = trained(optimizer, y[i], given[:, i])
        for k, expected in enumerate(by_torch(kind, y[i], given[:, i], **options)):
            torch.testing.assert_close(cohort[k][i], expected, rtol=1e-12, atol=1e-12)
            torch.testing.assert_close(alone[k], expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", ["Adam", "AdamW, decay"])
def test_bias_correction_in_single_precision(name):
    """1 − βᵗ loses four digits in float32 if it is computed as it is written."""
    optimizer, kind, options = PAIRS[name]
    y, given = start(torch.float32), directions(torch.float32)
    found = trained(optimizer, y, given)
    for k, expected in enumerate(by_torch(kind, y[0].double(), given[:, 0].double(), **options)):
        torch.testing.assert_close(found[k][0].double(), expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    "options", [{}, {"momentum": 0.5, "nesterov": False, "weight_decay": 0.2, "steps": 3}], ids=str
)
def test_muon_is_that_of_the_equations(options):
    """numpy in float64, matrices and kernels orthogonalised, biases and scales by momentum."""
    y, given = start(), directions()
    cohort = trained(fm.local.Muon(**options), y, given)
    for i in range(CLIENTS):
        alone = trained(fm.local.Muon(**options), y[i], given[:, i])
        expected, s = y[i].numpy(), {}
        for k in range(STEPS):
            d, s = muon_of(SHAPES)(given[k, i].numpy(), expected, s, **options)
            expected = expected - LR * d
            np.testing.assert_allclose(cohort[k][i], expected, rtol=1e-12, atol=1e-12)
            np.testing.assert_allclose(alone[k], expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("nesterov", [True, False])
def test_muon_is_that_of_torch_to_the_precision_of_bfloat16(nesterov):
    """`torch.optim.Muon` takes matrices only, and iterates in bfloat16."""
    layers, y, given = fm.Layers(SHAPES), start()[0], directions()[:, 0]
    found = trained(fm.local.Muon(nesterov=nesterov, weight_decay=0.1), y, given)
    for name in ("tall", "wide"):
        parameter = torch.nn.Parameter(layers.split(y)[name].clone())
        optimizer = torch.optim.Muon([parameter], lr=LR, momentum=0.95, nesterov=nesterov, weight_decay=0.1)
        for k, d in enumerate(given):
            parameter.grad = layers.split(d)[name].clone()
            optimizer.step()
            step = LR * (k + 1)  # the entries of an orthogonal matrix are at most 1
            torch.testing.assert_close(layers.split(found[k])[name], parameter.detach(), rtol=0, atol=0.03 * step)


def test_newton_schulz_brings_singular_values_near_one():
    g = torch.Generator().manual_seed(6)
    for shape in ((4, 6, 3), (4, 3, 6), (2, 2, 5, 5)):
        u = torch.randn(shape, generator=g, dtype=torch.float64)
        found = newton_schulz(u, 5)
        values = torch.linalg.svdvals(found)
        assert values.min() > 0.5
        assert values.max() < 1.3
        U, _, Vh = torch.linalg.svd(u, full_matrices=False)  # the singular vectors stay as they are
        torch.testing.assert_close(U @ torch.diag_embed((U.mT @ found @ Vh.mT).diagonal(dim1=-2, dim2=-1)) @ Vh, found)
    assert newton_schulz(torch.zeros(2, 3), 5).equal(torch.zeros(2, 3))
    np.testing.assert_allclose(newton_schulz(u[0, 0], 5), orthogonal(u[0, 0].numpy(), 5), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: fm.local.SGD(momentum=-1), "SGD: 'momentum' must be ≥ 0, got -1"),
        (lambda: fm.local.SGD(nesterov=True), "SGD: 'nesterov' must be False where 'momentum' is 0, got True"),
        (lambda: fm.local.SGD(weight_decay=-0.1), "SGD: 'weight_decay' must be ≥ 0, got -0.1"),
        (lambda: fm.local.SGD(keep=True), "SGD: 'keep' must be False where the optimiser has no state, got True"),
        (lambda: fm.local.SGD(average=True), "SGD: 'average' must be False where the optimiser has no state, got True"),
        (lambda: fm.local.Adam(beta1=1), "Adam: 'beta1' must be in [0, 1), got 1"),
        (lambda: fm.local.AdamW(beta2=-0.1), "AdamW: 'beta2' must be in [0, 1), got -0.1"),
        (lambda: fm.local.Adam(eps=0), "Adam: 'eps' must be > 0, got 0"),
        (lambda: fm.local.Adam(keep=1), "Adam: 'keep' must be true or false, got 1"),
        (lambda: fm.local.Muon(steps=0), "Muon: 'steps' must be an integer ≥ 1, got 0"),
        (lambda: fm.local.Muon(momentum=1.0), "Muon: 'momentum' must be in [0, 1), got 1.0"),
        (lambda: fm.local.SAM(rho=-1), "SAM: 'rho' must be ≥ 0, got -1"),
        (
            lambda: fm.local.AdamW(keep=True, average=True),
            "Cannot use AdamW with keep=True and average=True because its state is either the client's or the server's; "
            "use one of them",
        ),
    ],
)
def test_values_out_of_range_are_refused(make, sentence):
    with pytest.raises(ValueError) as caught:
        make()
    assert str(caught.value) == sentence


def test_fields_by_position_are_those_of_the_documentation():
    """`keep` and `average` are given by name."""
    assert fm.local.SGD(0.9, True) == fm.local.SGD(momentum=0.9, nesterov=True)
    assert fm.local.AdamW(0.5, 0.9, 1e-6, 0.1, keep=True).weight_decay == 0.1
    assert fm.local.Muon(0.9, 3) == fm.local.Muon(momentum=0.9, steps=3)


@pytest.mark.parametrize(
    ("state", "sentence"),
    [
        ("m", "'state' must be a tuple of names, got 'm'"),
        (3, "'state' must be a tuple of names, got 3"),
        (("m", "m"), "'state' must hold each name once, got 'm' twice"),
        ((("m", -1),), "'state' must hold names and (name, shape)"),
    ],
    ids=str,
)
def test_an_invalid_declaration_is_refused(state, sentence):
    kind = type("Mine", (fm.local.LocalOptimizer,), {"state": state})
    with pytest.raises(ValueError) as error:
        kind()
    assert str(error.value).startswith(f"Mine: {sentence}")
