"""Diagnostics, held against the loop that one would write by hand."""

import copy

import pytest
import torch

import fedmos as fm
from fedmos.evaluation.diagnostics import MEASURES


def gradient(model, x, inputs, targets):
    torch.nn.utils.vector_to_parameters(x, model.parameters())
    loss = torch.nn.functional.cross_entropy(model(inputs), targets)
    return torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(model.parameters()))]), float(loss.detach())


@pytest.mark.parametrize("engine", ["loop", "batched"])
def test_diagnostics_equal_their_definitions(digits, engine):
    """FedAvg with whole batches: everything can be worked out from the models before and after a round."""
    lr, K = 0.1, 3
    model = fm.models.logistic(features=64)
    plain = [(x.double().flatten(1) / 16, y) for x, y in map(digits.client, range(20))]
    digits = fm.FederatedData.from_arrays(clients=plain)
    given = {
        "model": model,
        "data": digits,
        "algorithm": fm.FedAvg(lr=lr),
        "selection": fm.Uniform(m=6),
        "local_steps": K,
        "dtype": torch.float64,
        "engine": engine,
    }
    result = fm.run(**given, rounds=2, callbacks=[fm.Diagnostics(every=2)])
    assert result.history[0].diagnostics is None
    found = result.history[1].diagnostics
    assert set(found) == set(MEASURES) - {"momentum_deviation"}
    before, x = fm.run(**given, rounds=1).params, result.params
    step = x - before
    record, module = result.history[1], copy.deepcopy(model).double()
    p = digits.importance[record.cohort]
    p = p / p.sum()
    gradients, updates, losses, away = [], [], [], 0.0
    for i in record.cohort:
        inputs, targets = digits.client(i)
        g, loss = gradient(module, x, inputs, targets)
        gradients.append(g)
        losses.append(loss)
        y = x
        for _ in range(K):
            away += float(((y - x) ** 2).sum())
            y = y - lr * gradient(module, y, inputs, targets)[0]
        updates.append(y - x)
    gradients, updates = torch.stack(gradients), torch.stack(updates)
    mean = p @ gradients
    cosine = torch.nn.functional.cosine_similarity
    weights = torch.tensor(record.weights, dtype=torch.float64)
    should = {
        "drift": away / (6 * K),
        "dissimilarity": float(p @ (gradients**2).sum(1) / (mean**2).sum()),
        "gradient_spread": float(p @ ((gradients - mean) ** 2).sum(1)),
        "update_norm": float(updates.norm(dim=1).mean()),
        "update_variance": float(updates.var(0).sum() / 6),
        "alignment": float(cosine(updates, step[None]).mean()),
        "descent": float(cosine(-mean, step, dim=0)),
        "selection_skew": float(weights @ torch.tensor(losses).double() / weights.sum()) / record.train_loss,
    }
    assert found == pytest.approx(should, rel=1e-6)


@pytest.mark.parametrize(
    "algorithm", [fm.FedMoS(lr=0.05), fm.Scaffold(lr=0.05), fm.Mime(lr=0.05)], ids=lambda a: type(a).__name__
)
def test_diagnostics_do_not_change_the_run(quick, algorithm, tmp_path):
    plain = quick(algorithm=algorithm, rounds=4)
    watched = quick(algorithm=algorithm, rounds=4, callbacks=[fm.Diagnostics(every=1, clients=2)], out=tmp_path / "run")
    assert torch.equal(plain.params, watched.params)
    assert all(r.diagnostics for r in watched.history)
    again = fm.Result.load(tmp_path / "run")
    assert [r.diagnostics for r in again.history] == [r.diagnostics for r in watched.history]


def test_diagnostics_of_a_resumed_run_are_the_same(quick, tmp_path):
    whole = quick(rounds=4, callbacks=[fm.Diagnostics(every=1)])
    quick(rounds=2, callbacks=[fm.Diagnostics(every=1)], out=tmp_path / "run")
    resumed = quick(rounds=4, callbacks=[fm.Diagnostics(every=1)], out=tmp_path / "run", resume=True)
    assert [r.diagnostics for r in resumed.history] == [r.diagnostics for r in whole.history]


def test_diagnostics_are_drawn_in_the_report(quick, tmp_path):
    from fedmos.report import page
    from fedmos.report.study import read_study

    quick(callbacks=[fm.Diagnostics(every=1)], algorithm=fm.FedMoS(lr=0.05), out=tmp_path / "run")
    html = page.html(read_study([tmp_path / "run"]))
    assert all(f'id="plot-{measure}"' in html for measure in MEASURES)


def test_invalid_diagnostics_are_refused():
    with pytest.raises(ValueError, match="Diagnostics: 'every' must be an integer ≥ 1, got 0"):
        fm.Diagnostics(every=0)


class Slope(torch.nn.Module):
    """Its gradient is the same everywhere."""

    def __init__(self):
        super().__init__()
        self.w = torch.nn.Parameter(torch.zeros(3))

    def forward(self, a):
        return a @ self.w


def outputs_mean(outputs, targets):
    return outputs.mean()


def deviations(algorithm, rounds, slopes, every=1, **changes):
    data = fm.FederatedData.from_arrays([(a, [0.0] * len(a)) for a in slopes])
    given = {"selection": fm.Full(), "local_steps": 3, "loss": outputs_mean, "dtype": torch.float64, "engine": "loop"}
    result = fm.run(Slope(), data, algorithm, rounds=rounds, callbacks=[fm.Diagnostics(every=every)], **given | changes)
    return [r.diagnostics.get("momentum_deviation") for r in result.history if r.diagnostics]


ALIKE = [[[1.0, 2.0, -1.0]]] * 3
WITH_MOMENTUM = [
    fm.FedAvgM(lr=0.1, beta=0.2),
    fm.FedAdam(lr=0.1, beta1=0.2),
    fm.FedYogi(lr=0.1, beta1=0.2),
    fm.FedAdagrad(lr=0.1, beta1=0.2),
    fm.FedCM(lr=0.1, alpha=0.8),
    fm.FedADC(lr=0.1, beta=0.2, beta_local=0.2),
    fm.FedADC(lr=0.1, beta=0.2, beta_local=0.1),
    fm.Mime(lr=0.1),
    fm.Mime(lr=0.1, beta=0.2),
    fm.MimeLite(lr=0.1, beta=0.2),
    fm.Stem(lr=0.1),
    fm.Scaffold(lr=0.1),
    fm.GHBM(lr=0.1, beta=0.2, tau=2),
    fm.GHBM(lr=0.1, beta=0.2, tau=2, server_lr=0.2),
    fm.FedMoS(lr=0.1, mu=0.0, beta=0.2),
]


@pytest.mark.parametrize("algorithm", WITH_MOMENTUM, ids=lambda a: type(a).__name__)
@pytest.mark.extended
def test_momentum_converges_to_a_constant_gradient(algorithm):
    (found,) = deviations(algorithm, 20, ALIKE, every=20)
    assert found < 1e-15
    assert type(algorithm).gradient_estimate is not fm.Algorithm.gradient_estimate


def test_fedavgm_momentum_approaches_the_gradient_geometrically():
    """m̃ = (1 − β^t) ∇f, so that the deviation is β^2t."""
    found = deviations(fm.FedAvgM(lr=0.1, beta=0.9), 5, ALIKE)
    assert found == pytest.approx([0.9 ** (2 * t) for t in range(1, 6)])


def test_methods_without_a_momentum_have_no_deviation():
    for algorithm in (fm.FedAvg(lr=0.1), fm.MimeLite(lr=0.1), fm.FedHBM(lr=0.1, beta=0.2), fm.GHBM(lr=0.1, tau=3)):
        assert deviations(algorithm, 2, ALIKE) == [None, None]


@pytest.mark.parametrize("samples", [8192, 200])
def test_deviation_uses_the_gradient_of_all_clients(monkeypatch, samples):
    """Of all samples by importance or, where they are many, of an even draw."""
    from fedmos.evaluation import diagnostics

    monkeypatch.setattr(diagnostics, "_SAMPLES", samples)
    generator = torch.Generator().manual_seed(0)
    slopes = [torch.randn(n, 3, generator=generator).double() + 1 for n in (5, 40, 200, 7)]
    found = deviations(fm.FedCM(lr=0.1, alpha=0.8), 1, slopes, selection=fm.FixedCohorts([[1]]), local_steps=1)
    everyone, own = torch.cat(slopes).mean(0), slopes[1].mean(0) * 0.8  # D = α g in the first round
    should = float(((own - everyone) ** 2).sum() / (everyone**2).sum())
    assert found[0] == pytest.approx(should, rel=0.3)
    assert (found[0] == pytest.approx(should, rel=1e-9)) == (samples > 252)
