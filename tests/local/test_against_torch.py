"""`fm.run` with one client is training with `torch.optim`, to twelve digits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fedmos as fm
from helpers.local import adam, muon_of, sgd

LR, STEPS, ROUNDS, RHO = 0.05, 4, 3, 0.1
ENGINES = ("loop", "batched")


def network() -> nn.Module:
    g = torch.Generator().manual_seed(2)
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).double()
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(0.5 * torch.randn(p.shape, generator=g, dtype=torch.float64))
    return model


def samples() -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(3)
    return torch.randn(9, 4, generator=g, dtype=torch.float64), torch.randint(3, (9,), generator=g)


def federated(local: Any, engine: str, **options: Any) -> fm.Result:
    return fm.run(
        network(),
        fm.FederatedData.from_arrays([samples()]),
        fm.FedAvg(lr=LR),
        options.pop("selection", fm.Full()),
        rounds=ROUNDS,
        local_steps=STEPS,
        dtype=torch.float64,
        device="cpu",
        engine=engine,
        local=local,
        **options,
    )


def gradients(model: nn.Module) -> Tensor:
    """Set the gradients of the parameters to those of the loss."""
    model.zero_grad()
    loss = nn.functional.cross_entropy(model(samples()[0]), samples()[1])
    loss.backward()
    return loss.detach()


def sharpness_aware(model: nn.Module, rho: float = RHO) -> Tensor:
    """Set the gradients to those at the perturbed model; return the loss at the model itself."""
    loss = gradients(model)
    norm = torch.sqrt(sum((p.grad**2).sum() for p in model.parameters()))
    moves = [rho * p.grad / norm for p in model.parameters()]
    with torch.no_grad():
        for p, e in zip(model.parameters(), moves, strict=True):
            p += e
    gradients(model)
    with torch.no_grad():
        for p, e in zip(model.parameters(), moves, strict=True):
            p -= e
    return loss


def centralised(
    make: Callable[[Any], torch.optim.Optimizer],
    afresh: bool = False,
    gradient: Callable[[nn.Module], Tensor] = gradients,
    change: Callable[[nn.Module], None] = lambda model: None,
) -> Tensor:
    """The model after as many steps of PyTorch's optimiser, which starts afresh in every round or goes on."""
    model = network()
    optimizer = make(model.parameters())
    for _ in range(ROUNDS):
        optimizer = make(model.parameters()) if afresh else optimizer
        for _ in range(STEPS):
            gradient(model)
            change(model)
            optimizer.step()
    return nn.utils.parameters_to_vector(model.parameters()).detach()


def same(result: fm.Result, expected: Tensor) -> None:
    torch.testing.assert_close(result.params, expected, rtol=1e-12, atol=1e-12)


CASES = {
    "SGD": (fm.local.SGD, torch.optim.SGD, {"momentum": 0.9, "weight_decay": 0.1}, {}),
    "SGD, nesterov": (fm.local.SGD, torch.optim.SGD, {"momentum": 0.9, "nesterov": True}, {}),
    "Adam": (fm.local.Adam, torch.optim.Adam, {"weight_decay": 0.1}, {}),
    "AdamW": (fm.local.AdamW, torch.optim.AdamW, {"weight_decay": 0.1}, {"beta1": 0.8, "beta2": 0.95}),
}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("state", ["scratch", "keep", "average"])
@pytest.mark.parametrize("name", CASES)
def test_torch_optim(name, state, engine):
    """State that starts in every round, that the client keeps, or that travels by the server, which averages one."""
    ours, theirs, fields, betas = CASES[name]
    options = {} if state == "scratch" else {state: True}
    expected = centralised(
        lambda parameters: theirs(
            parameters, lr=LR, **fields, **({"betas": (betas["beta1"], betas["beta2"])} if betas else {})
        ),
        afresh=state == "scratch",
    )
    same(federated(ours(**fields, **betas, **options), engine), expected)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("keep", [False, True])
def test_muon(keep, engine):
    """Against numpy in float64, with the gradients of autograd; weights are matrices, biases are not."""
    model = network()
    shapes = {name: tuple(p.shape) for name, p in model.named_parameters()}
    update, y, s = muon_of(shapes), nn.utils.parameters_to_vector(model.parameters()).detach(), {}
    for _ in range(ROUNDS):
        s = s if keep else {}
        for _ in range(STEPS):
            nn.utils.vector_to_parameters(y, model.parameters())
            gradients(model)
            d = torch.cat([p.grad.flatten() for p in model.parameters()])
            d, s = update(d.numpy(), y.numpy(), s, momentum=0.9, weight_decay=0.1)
            y = y - LR * torch.from_numpy(d)
    same(federated(fm.local.Muon(momentum=0.9, weight_decay=0.1, keep=keep), engine), y)


@pytest.mark.parametrize("engine", ENGINES)
def test_sam(engine):
    expected = centralised(lambda parameters: torch.optim.SGD(parameters, lr=LR), gradient=sharpness_aware)
    same(federated(fm.local.SAM(rho=RHO), engine), expected)
    assert (expected - federated(None, engine).params).abs().max() > 1e-3


@pytest.mark.parametrize("engine", ENGINES)
def test_sam_then_clipping_then_weight_decay(engine):
    """The perturbation is of the loss alone; the second gradient is clipped, and the decay is that of y."""

    def regularise(model: nn.Module) -> None:
        norm = nn.utils.clip_grad_norm_(model.parameters(), 0.2)
        assert norm > 0.2
        for p in model.parameters():
            p.grad += 0.3 * p.detach()

    expected = centralised(
        lambda parameters: torch.optim.SGD(parameters, lr=LR), gradient=sharpness_aware, change=regularise
    )
    found = federated(fm.local.SAM(rho=RHO), engine, clip=0.2, weight_decay=0.3).params
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)  # torch adds 1e-6 to the norm


@pytest.mark.parametrize("engine", ENGINES)
def test_sam_then_adam(engine):
    expected = centralised(lambda parameters: torch.optim.Adam(parameters, lr=LR), gradient=sharpness_aware)
    same(federated([fm.local.SAM(rho=RHO), fm.local.Adam(keep=True)], engine), expected)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_chain_goes_from_left_to_right(engine):
    """Adam, then momentum over its directions: what two optimisers in a row would do."""
    model = network()
    y, (s_adam, s_sgd) = nn.utils.parameters_to_vector(model.parameters()).detach(), ({}, {})
    for _ in range(ROUNDS * STEPS):
        nn.utils.vector_to_parameters(y, model.parameters())
        gradients(model)
        d = torch.cat([p.grad.flatten() for p in model.parameters()])
        d, s_adam = adam(d.numpy(), y.numpy(), s_adam, beta2=0.9)
        d, s_sgd = sgd(d, y.numpy(), s_sgd, momentum=0.5)
        y = y - LR * torch.from_numpy(d)
    result = federated([fm.local.Adam(beta2=0.9, keep=True), fm.local.SGD(momentum=0.5, keep=True)], engine)
    same(result, y)
    assert sorted(result.client_state(0)) == ["local.0.m", "local.0.t", "local.0.v", "local.1.m"]
    torch.testing.assert_close(
        result.client_state(0)["local.1.m"], torch.from_numpy(s_sgd["m"]), rtol=1e-11, atol=1e-12
    )


@dataclass(frozen=True)
class Watching(fm.Full):
    """All clients; keeps the losses that they report."""

    seen: list[float] = field(default_factory=list, compare=False)
    reports = ("loss",)
    prefetchable = False

    def select(self, view):
        self.seen.append(float(view.reported["loss"][0]))
        return super().select(view)


@pytest.mark.parametrize("engine", ENGINES)
def test_the_reported_loss_is_that_of_the_model(engine):
    """With SAM, the loss of a client is that at y, not that at the perturbed model."""
    model, losses = network(), []
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    for _ in range(STEPS):
        losses.append(sharpness_aware(model))
        optimizer.step()
    watching = Watching()
    federated(fm.local.SAM(rho=RHO), engine, selection=watching)
    assert watching.seen[1] == pytest.approx(float(torch.stack(losses).mean()), rel=1e-12)
