"""Attacks: what they forge, which data they poison, who is hostile, and what the run records."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch

import fedmos as fm
from fedmos import aggregation, attacks, rng
from fedmos.run.hostile import hostile_clients, poisoned
from fedmos.run.run import Run
from fedmos.run.spec import RunSpec
from helpers.conformance import LOGISTIC, LR, close, train

EPOCHS = {"local_epochs": 1, "batch_size": 4}
UPLOADS = [
    attacks.SignFlip(2.0, clients=[1, 4]),
    attacks.GaussianNoise(0.3, clients=[1, 4]),
    attacks.ALIE(1.5, clients=[1, 4]),
    attacks.InnerProduct(0.5, clients=[1, 4]),
]


@dataclass(frozen=True, kw_only=True)
class Rows(fm.FedAvg):
    """FedAvg that notes the rows that reach the server."""

    reduce = {"A": ("delta", "w"), "rows": ("delta", "each")}
    seen = []

    def server(self, x, state, agg, ctx):
        self.seen.append(agg["rows"].clone())
        return super().server(x, state, agg, ctx)


def rows_of_first_round(engine="batched", **options):
    Rows.seen.clear()
    train(LOGISTIC, Rows(lr=LR), engine, fm.Full(), rounds=1, **EPOCHS, **options)
    return Rows.seen[0].numpy()


def forged(attack, rows, seed):
    """What hostile clients upload, in NumPy."""
    honest = np.delete(rows, [1, 4], axis=0)
    match attack:
        case attacks.SignFlip(scale=scale):
            return [-scale * rows[1], -scale * rows[4]]
        case attacks.GaussianNoise(std=std):
            keys = [rng.fold(rng.stream(seed, 0, i, rng.Purpose.ATTACK), 0) for i in (1, 4)]
            return [rows[i] + std * rng.normal(key, rows.shape[1]).numpy() for i, key in zip((1, 4), keys, strict=True)]
        case attacks.ALIE(z=z):
            return [honest.mean(0) - z * honest.std(0)] * 2
        case attacks.InnerProduct(epsilon=epsilon):
            return [-epsilon * honest.mean(0)] * 2


@pytest.mark.parametrize("engine", ["loop", "batched"])
@pytest.mark.parametrize("attack", UPLOADS, ids=lambda attack: type(attack).__name__)
def test_hostile_clients_upload_what_they_forge(attack, engine):
    plain, got = rows_of_first_round(engine), rows_of_first_round(engine, attack=attack)
    wanted = plain.copy()
    wanted[[1, 4]] = forged(attack, plain, seed=5)
    close(got, wanted, 1e-10)


def test_a_mean_under_attack_is_the_mean_of_forged_rows():
    """Without a rule, the server takes the weighted mean; `prepare` and further uploads are forged, too."""
    flip = attacks.SignFlip(clients=[0, 1, 2, 3, 4, 5, 6])  # everyone: the run with all uploads reversed
    got = train(LOGISTIC, fm.FedAvg(lr=LR), "batched", fm.Full(), rounds=1, attack=flip, **EPOCHS)
    plain = train(LOGISTIC, fm.FedAvg(lr=LR), "batched", fm.Full(), rounds=1, **EPOCHS)
    x0 = torch.tensor(LOGISTIC.x0)
    close(got.params - x0, x0 - plain.params)
    for algorithm, state in ((fm.Scaffold(lr=LR), "c"), (fm.Mime(lr=LR), "c"), (fm.MimeLite(lr=LR, beta=0.5), "m")):
        first, second = (
            train(LOGISTIC, algorithm, "batched", fm.Full(), rounds=1, attack=attack, **EPOCHS).server_state[state]
            for attack in (None, flip)
        )
        assert float(first.abs().max()) > 0
        close(second, -first)


def test_the_paper_of_alie_gives_the_number_of_deviations():
    """n = 50 clients, 24 of them hostile: s = 2 supporters are needed, Φ(z) = (26 − 2) / 26."""
    assert attacks.ALIE.deviations(24, 26) == pytest.approx(1.4261, abs=1e-4)
    assert attacks.ALIE.deviations(2, 8) == 0.0
    assert attacks.ALIE.deviations(9, 1) > 3
    rows = torch.tensor([[0.0], [2.0]])
    assert attacks.ALIE(share=0.5).forge(rows[:1], rows, torch.tensor([0])).tolist() == [[1.0]]


def test_attackers_alone_see_their_own_uploads():
    everyone = attacks.InnerProduct(1.0, clients=range(7))
    plain, got = rows_of_first_round(), rows_of_first_round(attack=everyone)
    close(got, np.repeat(-plain.mean(0, keepdims=True), 7, 0), 1e-10)


def test_numbers_are_not_forged():
    """FedNova's K_i stays, so that the run has a meaning."""
    got = train(LOGISTIC, fm.FedNova(lr=LR), "batched", fm.Full(), rounds=2, attack=UPLOADS[0], **EPOCHS)
    assert bool(got.params.isfinite().all())


@pytest.mark.parametrize(
    "rule", [aggregation.Median(), aggregation.TrimmedMean(0.3), aggregation.GeometricMedian()], ids=str
)
def test_rules_protect(quick, rule):
    """Two of ten clients send a hundred times the reverse."""
    data = fm.datasets.load("digits").partition(fm.partition.IID(), clients=10)
    attack = attacks.SignFlip(100.0, share=0.2)
    given = {"selection": fm.Full(), "rounds": 15, "local_steps": 5, "data": data}
    mean, protected = (quick(attack=attack, aggregation=a, **given).history[-1].accuracy for a in (None, rule))
    assert mean < 0.3 < 0.8 < protected


def spec(digits, **changes):
    given = {"model": fm.models.logistic(features=64), "data": digits, "algorithm": fm.FedAvg(lr=0.1)}
    return RunSpec(**given | {"selection": fm.Full(), "rounds": 1, "local_steps": 1} | changes)


def test_the_share_is_drawn_by_the_seed(digits):
    drawn = [hostile_clients(spec(digits, attack=attacks.SignFlip(share=0.23), seed=s)).tolist() for s in range(3)]
    assert all(len(set(ids)) == 5 and ids == sorted(ids) for ids in drawn)  # of 20
    assert len({tuple(ids) for ids in drawn}) == 3
    assert drawn[0] == hostile_clients(spec(digits, attack=attacks.ALIE(share=0.25), seed=0)).tolist()


def test_hostile_clients_are_recorded(quick, tmp_path):
    result = quick(attack=attacks.LabelFlip(clients=[7, 2]), out=tmp_path)
    assert result.info["hostile"] == fm.Result.load(tmp_path).info["hostile"] == [2, 7]
    assert result.info["attack"] == "LabelFlip(share=None, clients=(7, 2))"
    assert "hostile" not in quick().info


def trained_on(digits, attack, **changes):
    given = spec(digits, attack=attack, **changes)
    task = Run(given).state.task
    return [tuple(v.clone() for v in task.data.stored(i)) for i in range(len(digits))]


def test_label_flipping_changes_the_labels_of_hostile_clients(digits):
    before, after = trained_on(digits, None), trained_on(digits, attacks.LabelFlip(clients=[3, 5]))
    for i in range(20):
        assert torch.equal(before[i][0], after[i][0])
        assert torch.equal(after[i][1], 9 - before[i][1] if i in (3, 5) else before[i][1])


def test_a_backdoor_marks_images_of_hostile_clients(digits):
    attack = attacks.BackdoorPixel(7, size=2, value=16, fraction=0.5, clients=[3])
    raw, after = [digits.stored(i) for i in range(20)], trained_on(digits, attack)
    x, y = raw[3]
    square = after[3][0][..., -2:, -2:]
    marked = (square == digits.inputs(attack.trigger(x))[..., -2:, -2:]).flatten(1).all(1)
    assert 0 < int(marked.sum()) < len(x)
    assert torch.equal(after[3][1], torch.where(marked, 7, y))
    assert torch.equal(after[3][0][~marked], digits.inputs(x)[~marked])
    assert all(torch.equal(after[i][0], digits.inputs(raw[i][0])) for i in range(20) if i != 3)
    assert torch.equal(attack.trigger(x)[..., -2:, -2:], torch.full((len(x), 1, 2, 2), 16, dtype=x.dtype))


def test_samples_that_honest_clients_share_stay(digits):
    """Clients 0 and 1 have the same samples; one of them is hostile."""
    n = int(digits.offsets[1])
    shared = replace(digits, index=torch.cat([digits.index[:n], digits.index[:n]]), offsets=torch.tensor([0, n, 2 * n]))
    shared = replace(shared, importance=torch.tensor([0.5, 0.5], dtype=torch.float64), names=None)
    (x0, y0), (x1, y1) = trained_on(shared, attacks.LabelFlip(clients=[1]))
    assert torch.equal(x0, x1)
    assert torch.equal(y1, 9 - y0)
    assert torch.equal(y0, digits.stored(0)[1])


def test_metrics_are_measured_on_data_as_it_was(quick):
    """Training on flipped labels must not show as a training accuracy on them."""
    everyone = attacks.LabelFlip(clients=range(20))
    result = quick(attack=everyone, selection=fm.Full(), rounds=20, local_steps=5)
    assert result.history[-1].train_accuracy < 0.1
    assert result.history[-1].accuracy < 0.1


def test_the_server_records_forged_norms(quick):
    given = {"selection": fm.Full(), "update_norms": True, "rounds": 1}
    plain, forged = (
        quick(attack=a, **given).history[0].update_norms for a in (None, attacks.SignFlip(5.0, clients=[2]))
    )
    wanted = [5 * norm if i == 2 else norm for i, norm in enumerate(plain)]
    np.testing.assert_allclose(forged, wanted, rtol=1e-5)


class Watching(fm.Full):
    """Selects all clients, and notes their last updates."""

    updates = True
    seen = []

    def select(self, view):
        self.seen.append(view.updates)
        return super().select(view)


def test_selectors_see_forged_updates(quick):
    Watching.seen.clear()
    quick(attack=attacks.InnerProduct(clients=[2, 3]), selection=Watching(), rounds=2)
    updates = Watching.seen[-1]
    assert torch.equal(updates[2], updates[3])
    assert not torch.equal(updates[2], updates[4])


@pytest.mark.parametrize(
    "attack", [*UPLOADS, attacks.LabelFlip(clients=[1, 4])], ids=lambda attack: type(attack).__name__
)
def test_a_resumed_run_gives_the_same_bits(tmp_path, quick, attack):
    given = {"attack": attack, "aggregation": aggregation.Median(), "algorithm": fm.Scaffold(lr=0.1)}
    whole = quick(rounds=4, **given)
    quick(rounds=2, out=tmp_path, **given)
    assert torch.equal(quick(rounds=4, out=tmp_path, resume=True, **given).params, whole.params)


def test_merged_runs_have_their_own_hostile_clients(digits):
    common = {"model": fm.models.logistic(features=64), "data": digits, "algorithm": fm.FedAvg(lr=0.1), "rounds": 3}
    common |= {"selection": fm.Full(), "local_steps": 2, "batch_size": 4, "engine": "batched"}
    for attack in (attacks.GaussianNoise(0.1, share=0.2), attacks.LabelFlip(share=0.2)):
        given = [common | {"attack": attack, "aggregation": aggregation.Median(), "seed": seed} for seed in (0, 1)]
        for alone, merged in zip([fm.run(**one) for one in given], fm.run_many(given), strict=True):
            assert alone.info["hostile"] == merged.info["hostile"]
            torch.testing.assert_close(alone.params, merged.params, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("clients", [np.array([4, 1]), torch.tensor([4, 1]), list(np.array([4, 1])), range(4, 0, -3)])
def test_clients_may_come_from_arrays(clients):
    assert attacks.SignFlip(clients=clients) == attacks.SignFlip(clients=[4, 1])


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: attacks.SignFlip(), "SignFlip: exactly one of 'share' and 'clients' must be given, got neither"),
        (lambda: attacks.SignFlip(share=0.1, clients=[1]), "SignFlip: exactly one .* got both"),
        (lambda: attacks.SignFlip(share=0), r"SignFlip: 'share' must be in \(0, 1\], got 0"),
        (lambda: attacks.LabelFlip(clients=3), "LabelFlip: 'clients' must be a list of numbers or names"),
        (lambda: attacks.SignFlip(-1.0, share=0.1), "SignFlip: 'scale' must be > 0, got -1.0"),
        (lambda: attacks.GaussianNoise(0.0, share=0.1), "GaussianNoise: 'std' must be > 0, got 0.0"),
        (lambda: attacks.ALIE(-1.0, share=0.1), "ALIE: 'z' must be ≥ 0 or None, got -1.0"),
        (lambda: attacks.InnerProduct(0, share=0.1), "InnerProduct: 'epsilon' must be > 0, got 0"),
        (lambda: attacks.BackdoorPixel(-1, share=0.1), "BackdoorPixel: 'target' must be an integer ≥ 0, got -1"),
        (lambda: attacks.BackdoorPixel(0, fraction=0, share=0.1), r"BackdoorPixel: 'fraction' must be in \(0, 1\]"),
    ],
)
def test_parameters_that_cannot_work_are_refused(make, text):
    with pytest.raises(ValueError, match=text):
        make()


@pytest.mark.parametrize(
    ("attack", "text"),
    [
        (attacks.SignFlip(clients=[20]), r"SignFlip: 'clients' must be numbers in 0 … 19 or names of clients, got 20"),
        (attacks.SignFlip(clients=["north"]), r"SignFlip: there is no client 'north'"),
        (attacks.SignFlip(share=0.02), "SignFlip: 'share' must be at least one of 20 clients, got 0.02"),
        (attacks.BackdoorPixel(10, share=0.1), "BackdoorPixel: 'target' must be one of the 10 classes, got 10"),
        (attacks.BackdoorPixel(1, size=9, share=0.1), r"'size' must fit into images \(…, height, width\), got 9 for"),
    ],
)
def test_attacks_that_do_not_fit_the_federation_are_refused(quick, attack, text):
    with pytest.raises(ValueError, match=text):
        quick(attack=attack)


def test_labels_must_be_classes():
    data = fm.FederatedData.from_arrays([(torch.randn(4, 3), torch.randn(4, 1)) for _ in range(3)])
    with pytest.raises(ValueError, match="Cannot attack with LabelFlip because the targets are not classes"):
        fm.run(
            torch.nn.Linear(3, 1),
            data,
            fm.FedAvg(lr=0.1),
            fm.Full(),
            rounds=1,
            local_steps=1,
            loss="mse",
            attack=attacks.LabelFlip(share=0.4),
        )


@dataclass(frozen=True)
class Bad(attacks.Attack):
    def forge(self, rows, honest, key):
        return rows[0]


@dataclass(frozen=True)
class BadData(attacks.Attack):
    def poison(self, x, y, classes, key):
        return x, y[:1]


def test_mistakes_of_an_own_attack_are_named(quick):
    with pytest.raises(ValueError, match=r"Bad: 'forge' must return rows of shape \(3, 650\), got \(650,\)"):
        quick(attack=Bad(clients=[0, 1, 2]), selection=fm.Full())
    with pytest.raises(ValueError, match="BadData: 'poison' must return y of shape"):
        quick(attack=BadData(clients=[0]), selection=fm.Full())


def test_without_an_attack_on_data_the_task_stays(digits):
    given = spec(digits, attack=attacks.SignFlip(share=0.1))
    run = Run(given)
    assert poisoned(given, run.task, hostile_clients(given)) is run.task
