"""The accuracy of a binary classifier with one logit."""

import pytest
import torch
from torch import nn

import fedmos as fm


class OneLogit(nn.Module):
    def __init__(self, squeeze: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear, self.squeeze = nn.Linear(3, 1), squeeze

    def forward(self, x):
        return self.linear(x).squeeze(1) if self.squeeze else self.linear(x)


def federation(column: bool, dtype=torch.float32, soft: bool = False) -> fm.FederatedData:
    generator = torch.Generator().manual_seed(1)
    clients = []
    for n in (5, 9, 14, 7):
        x = torch.randn(n, 3, generator=generator)
        y = (x[:, 0] - x[:, 1] > 0).to(dtype)
        y = y * 0.9 if soft else y
        clients.append((x, y[:, None] if column else y))
    return fm.FederatedData.from_arrays(clients[:3], test=clients[3])


def train(data, loss="bce", engine="batched", column=False, **more):
    options = {"rounds": 3, "local_steps": 2, "batch_size": 4, "engine": engine, "loss": loss, **more}
    return fm.run(OneLogit(not column), data, fm.FedAvg(lr=0.5), fm.Uniform(m=2), **options)


def by_hand(result, x, y, column):
    model = OneLogit(not column)
    torch.nn.utils.vector_to_parameters(result.params, model.parameters())
    return float(((model(x) > 0) == (y > 0.5)).double().mean())


@pytest.mark.parametrize("engine", ["loop", "batched"])
@pytest.mark.parametrize("column", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64])
def test_one_logit_has_an_accuracy(engine, column, dtype, tmp_path):
    data = federation(column, dtype)
    result = train(data, engine=engine, column=column, out=tmp_path / "run")
    last = result.history[-1]
    assert last.accuracy == pytest.approx(by_hand(result, *data.test, column), abs=1e-12)
    each = [by_hand(result, *data.client(i), column) for i in range(3)]
    assert last.train_accuracy == pytest.approx(sum(p * a for p, a in zip(data.importance.tolist(), each, strict=True)))
    assert result.info["client_accuracy"]["sorted"] == pytest.approx(sorted(each), abs=1e-12)


@pytest.mark.parametrize("loss", [nn.BCEWithLogitsLoss(), nn.functional.binary_cross_entropy_with_logits])
def test_pytorchs_binary_losses_have_it_too(loss):
    assert train(federation(False), loss).history[-1].accuracy == train(federation(False)).history[-1].accuracy


def test_it_can_be_a_target():
    data = federation(False)
    options = {"rounds": 50, "local_steps": 2, "batch_size": 4, "loss": "bce", "target": {"train_accuracy": 0.8}}
    result = fm.run(OneLogit(True), data, fm.FedAvg(lr=1.0), fm.Uniform(m=2), **options)
    assert result.history[-1].train_accuracy >= 0.8
    assert len(result.history) < 50


@pytest.mark.parametrize(("loss", "soft"), [("bce", True), ("mse", False)])
def test_soft_targets_and_other_losses_have_none(loss, soft):
    assert train(federation(False, soft=soft), loss).history[-1].accuracy is None
