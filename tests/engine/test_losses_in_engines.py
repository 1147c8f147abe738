"""Weighted, summed and batch losses train alike in the loop and in the vectorised engine, and are what is reported."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fedmos as fm

SIZES = [17, 5, 30, 8, 11]


def rare_classes(ignored=False):
    """Clients of unequal sizes; class 2 is rare."""
    generator = torch.Generator().manual_seed(3)
    pairs = []
    for n in SIZES:
        y = (torch.rand(n, generator=generator) < 0.4).long()
        y[: max(1, n // 8)] = 2
        x = torch.randn(n, 6, generator=generator) + y[:, None]
        if ignored:
            y[1::4] = -100
        pairs.append((x, y))
    return fm.FederatedData.from_arrays(pairs, test=pairs[0])


def survival():
    generator = torch.Generator().manual_seed(4)
    pairs = []
    for n in SIZES:
        x = torch.randn(n, 6, generator=generator)
        times = torch.rand(n, generator=generator) * (-x[:, 0]).exp()
        pairs.append((x, torch.stack([times, (torch.rand(n, generator=generator) < 0.6).float()], 1)))
    return fm.FederatedData.from_arrays(pairs, test=pairs[0])


def model(outputs=3):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, outputs))


def train(engine, loss, data=None, net=None, **more):
    given = {"rounds": 3, "local_epochs": 2, "batch_size": 4, "dtype": torch.float64, "algorithm": fm.FedAvg(lr=0.1)}
    return fm.run(
        net or model(),
        data or rare_classes(),
        selection=fm.Full(),
        **(given | {"engine": engine, "loss": loss} | more),
    )


WEIGHTED = nn.CrossEntropyLoss(weight=torch.tensor([0.2, 0.5, 5.0]))
LOSSES = {
    "weighted": WEIGHTED,
    "sum": nn.CrossEntropyLoss(reduction="sum"),
    "smoothed": nn.CrossEntropyLoss(label_smoothing=0.1, weight=torch.tensor([0.2, 0.5, 5.0])),
}


@pytest.mark.parametrize(
    "algorithm", [fm.FedAvg(lr=0.05), fm.FedMoS(lr=0.05), fm.Mime(lr=0.05)], ids=lambda a: type(a).__name__
)
@pytest.mark.parametrize("name", LOSSES)
def test_engines_agree(name, algorithm):
    loop, batched = (train(engine, LOSSES[name], algorithm=algorithm) for engine in ("loop", "batched"))
    assert torch.allclose(loop.params, batched.params, rtol=0, atol=1e-12)
    for a, b in zip(loop.history, batched.history, strict=True):
        assert a.train_loss == pytest.approx(b.train_loss, abs=1e-12)


def test_class_weights_are_not_dropped():
    plain, weighted = (train("batched", loss) for loss in ("cross_entropy", WEIGHTED))
    assert (plain.params - weighted.params).abs().max() > 1e-2


def test_ignored_targets_train_alike_and_do_not_count():
    data = rare_classes(ignored=True)
    for loss in ("cross_entropy", nn.CrossEntropyLoss(), WEIGHTED):
        loop, batched = (train(engine, loss, data) for engine in ("loop", "batched"))
        assert torch.allclose(loop.params, batched.params, rtol=0, atol=1e-12)
    x, y = data.client(0)
    outputs = batched.model(x.double())
    counted = y != -100
    assert batched.history[-1].accuracy == pytest.approx(float((outputs.argmax(1) == y)[counted].double().mean()))


@pytest.mark.parametrize("name", LOSSES)
def test_the_reported_loss_is_the_loss_that_was_trained(name):
    data, loss = rare_classes(), LOSSES[name]
    result = train("batched", loss, data)
    net, function = result.model, copy.deepcopy(loss).double()
    pairs = [data.client(i) for i in range(len(data))]
    p = data.importance
    with torch.no_grad():
        expected = sum(float(p[i] * function(net(x.double()), y)) for i, (x, y) in enumerate(pairs))
        tested = float(function(net(pairs[0][0].double()), pairs[0][1]))
    assert result.history[-1].train_loss == pytest.approx(expected, rel=1e-6)
    assert result.history[-1].test_loss == pytest.approx(tested, rel=1e-6)


def test_balanced_class_weights():
    data = rare_classes()
    labels = torch.cat([data.client(i)[1] for i in range(len(data))])
    counts = torch.bincount(labels).double()
    weights = (counts.sum() / (3 * counts)).tolist()
    balanced, listed = (train("batched", "cross_entropy", class_weights=w) for w in ("balanced", weights))
    assert torch.equal(balanced.params, listed.params)
    by_hand = train("loop", nn.CrossEntropyLoss(weight=torch.tensor(weights)), data)
    assert torch.allclose(balanced.params, by_hand.params, atol=1e-6)
    wider = train("batched", "cross_entropy", net=model(5), class_weights="balanced")  # outputs without samples
    assert wider.params.isfinite().all()


def test_balanced_positive_targets():
    pairs = [(x, (y == 2).float()[:, None]) for x, y in map(rare_classes().client, range(len(SIZES)))]
    data = fm.FederatedData.from_arrays(pairs)
    targets = torch.cat([y for _, y in pairs])
    ratio = (1 - targets.mean(0)) / targets.mean(0)
    balanced = train("batched", "bce", data, model(1), class_weights="balanced")
    by_hand = train("loop", nn.BCEWithLogitsLoss(pos_weight=ratio), data, model(1))
    assert torch.allclose(balanced.params, by_hand.params, atol=1e-6)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"loss": "mse", "class_weights": "balanced"}, "Cannot use class_weights with the loss mse"),
        ({"loss": WEIGHTED, "class_weights": "balanced"}, "Cannot use class_weights with the loss CrossEntropyLoss"),
        ({"loss": "bce", "class_weights": [1.0, 2.0]}, "Cannot use class_weights with the loss bce"),
        ({"loss": "cross_entropy", "class_weights": [1.0, 2.0]}, "each of the model's 3 outputs, got 2"),
        ({"loss": "cross_entropy", "class_weights": [0.0, 0.0, 0.0]}, "numbers ≥ 0, not all 0, one for each class"),
        ({"loss": "cross_entropy", "class_weights": "fair"}, "must be 'balanced' or a list"),
        ({"loss": "cross_entropy", "class_weights": [1.0, -2.0, 1.0]}, "must be 'balanced' or a list"),
    ],
    ids=[
        "mse",
        "a loss with weights",
        "a list with bce",
        "too few",
        "only zeros",
        "an unknown word",
        "a negative weight",
    ],
)
def test_class_weights_that_are_refused(given, sentence):
    with pytest.raises(ValueError, match=sentence.replace("[", r"\[")):
        train("batched", **given)


def pairwise(outputs, targets, mask):
    """A ranking loss: no sum over samples."""
    difference = outputs[:, 0, None] - outputs[None, :, 0]
    wanted = (targets[:, None] > targets[None, :]) & mask[:, None] & mask[None, :]
    return F.softplus(-difference).where(wanted, 0).sum() / wanted.sum().clamp(min=1)


@pytest.mark.parametrize(
    "algorithm", [fm.FedAvg(lr=0.05), fm.Scaffold(lr=0.05), fm.Mime(lr=0.05)], ids=lambda a: type(a).__name__
)
@pytest.mark.parametrize(
    "loss",
    [
        fm.losses.Cox(),
        pytest.param(fm.losses.Cox(over="samples"), marks=pytest.mark.extended),
        fm.losses.Batch(pairwise),
    ],
    ids=["Cox", "Cox over samples", "ranking"],
)
def test_batch_losses_are_vectorised_with_masks(loss, algorithm):
    data = survival() if isinstance(loss, fm.losses.Cox) else rare_classes()
    loop, batched = (train(engine, loss, data, model(1), algorithm=algorithm) for engine in ("loop", "batched"))
    assert torch.allclose(loop.params, batched.params, rtol=0, atol=1e-12)
    start = torch.cat([p.flatten() for p in model(1).parameters()]).double()
    assert (batched.params - start).abs().max() > 1e-3  # it trains
    net = batched.model
    with torch.no_grad():
        losses = [
            loss(net(x.double()), y.double() if y.is_floating_point() else y, torch.ones(len(x), dtype=torch.bool))
            for x, y in map(data.client, range(len(data)))
        ]
    expected = float(data.importance @ torch.stack(losses))
    assert batched.history[-1].train_loss == pytest.approx(expected, rel=1e-9)
    assert loop.history[-1].train_loss == pytest.approx(expected, rel=1e-9)


def test_a_batch_loss_without_a_mask_needs_equal_batches():
    loss = fm.losses.Batch(
        lambda outputs, targets: pairwise(outputs, targets, torch.ones(len(targets), dtype=torch.bool))
    )
    with pytest.raises(ValueError, match="takes no mask"):
        train("batched", loss, net=model(1))
    assert train("auto", loss, net=model(1)).info["engine"] == "loop"
    pairs = [(x[:5], y[:5]) for x, y in map(rare_classes().client, range(len(SIZES)))]
    even = fm.FederatedData.from_arrays(pairs)
    loop, batched = (train(engine, loss, even, model(1), batch_size=None) for engine in ("loop", "batched"))
    assert torch.allclose(loop.params, batched.params, rtol=0, atol=1e-12)


def cox(outputs, targets):
    return fm.losses.Cox()(outputs, targets, torch.ones(len(targets), dtype=torch.bool))


@pytest.mark.parametrize("seed", range(4))
def test_a_loss_of_the_whole_batch_must_be_declared(seed):
    """Whatever the order of the rows: censored samples alone have the loss 0, each by itself and together."""
    data = survival()
    order = torch.randperm(SIZES[0], generator=torch.Generator().manual_seed(seed))
    pairs = [(x[order], y[order]) if i == 0 else (x, y) for i, (x, y) in enumerate(map(data.client, range(len(data))))]
    for engine in ("loop", "batched"):
        with pytest.raises(ValueError, match=r"use fm\.losses\.Batch"):
            train(engine, cox, fm.FederatedData.from_arrays(pairs), model(1))


def test_an_undeclared_weighted_mean_is_refused():
    weight = torch.tensor([0.2, 0.5, 5.0], dtype=torch.float64)
    with pytest.raises(ValueError, match="must be a mean over the samples"):
        train("batched", lambda o, t: F.cross_entropy(o, t, weight=weight))


def test_selectors_that_need_losses_of_samples_are_refused_with_batch_losses():
    with pytest.raises(ValueError, match="Cannot select with Oort"):
        fm.run(model(1), survival(), fm.FedAvg(lr=0.1), fm.Oort(m=2), rounds=1, local_steps=1, loss=fm.losses.Cox())
    chosen = fm.run(
        model(1),
        survival(),
        fm.FedAvg(lr=0.1),
        fm.PowerOfChoice(m=2, d=4),
        rounds=2,
        local_steps=1,
        loss=fm.losses.Cox(),
    )
    assert chosen.history[-1].probed > 0


def by_length(outputs, targets):
    """A loss of sequences whose kernel has as many states as the longest target of a client."""
    lengths = targets[:, 0]
    given = torch.full_like(lengths, outputs.shape[1])
    return F.ctc_loss(outputs.transpose(0, 1).log_softmax(-1), targets[:, 1:], given, lengths, reduction="none").mean()


def test_what_fails_for_the_samples_of_a_cohort_only_gets_the_sentence(caplog):
    """The samples that are tried before have targets of one length."""
    generator = torch.Generator().manual_seed(0)
    lengths = torch.tensor([[1, 1, 1, 1], [1, 1, 1, 1], [1, 2, 2, 2]])[:, :, None]
    targets = torch.cat([lengths, torch.randint(1, 4, (3, 4, 2), generator=generator)], 2)
    data = fm.FederatedData.from_arrays([(torch.randn(4, 6, 6, generator=generator), y) for y in targets])
    how = {"data": data, "loss": by_length, "local_epochs": None, "local_steps": 2, "rounds": 1}
    with pytest.raises(ValueError, match=r"because the loss by_length: the shape of a tensor .*; use engine='loop'$"):
        train("batched", net=nn.Linear(6, 4), **how)
    assert train("auto", net=nn.Linear(6, 4), **how).info["engine"] == "loop"
    assert "because the model or the loss cannot be vectorised: the loss by_length: the shape" in caplog.text
