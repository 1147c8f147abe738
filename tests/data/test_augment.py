"""Augmentation: what it does to an image, whom it happens to, and that nothing but training sees it."""

from collections import Counter
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import nn

import fedmos as fm
from fedmos.engine import batched, loop
from fedmos.rng import Purpose, draws, fold, stream

SIZES = (5, 12, 1, 8, 7, 3)
SHAPE = (2, 6, 9)


def images(n: int, shape=SHAPE, seed: int = 0) -> np.ndarray:
    """Without zeros, so that padding shows."""
    return np.random.default_rng(seed).integers(1, 256, (n, *shape), dtype=np.uint8)


def keys(n: int, seed: int = 0) -> torch.Tensor:
    return fold(stream(seed, 0, torch.arange(n), Purpose.AUGMENT), 0)


def plainly(x: np.ndarray, chance: np.ndarray, crop: int, flip: bool) -> np.ndarray:
    """One image: pad with zeros, cut out a window, mirror it."""
    _, height, width = x.shape
    padded = np.pad(x, ((0, 0), (crop, crop), (crop, crop)))
    top, left = (int(np.floor(u * (2 * crop + 1))) for u in chance[:2])
    window = padded[:, top : top + height, left : left + width]
    return window[:, :, ::-1] if flip and chance[2] < 0.5 else window


# --------------------------------------------------------------------------------------------- one image


@settings(deadline=None, max_examples=60)
@given(
    st.integers(1, 6),
    st.tuples(st.integers(1, 3), st.integers(1, 9), st.integers(1, 9)),
    st.integers(0, 10),
    st.booleans(),
    st.integers(0, 2**40),
)
def test_augmentation_is_pad_crop_and_flip(n, shape, crop, flip, seed):
    x, key = images(n, shape), keys(n, seed)
    out = fm.Augment(crop=crop, flip=flip)(torch.from_numpy(x), key)
    assert out.dtype == torch.uint8
    assert out.shape == x.shape
    for before, after, chance in zip(x, out.numpy(), draws(key, 3).numpy(), strict=True):
        assert np.array_equal(after, plainly(before, chance, crop, flip))


@pytest.mark.parametrize(("crop", "flip"), [(0, True), (1, False), (2, True)])
def test_every_image_is_a_legal_crop_and_every_legal_crop_occurs(crop, flip):
    x = images(1)[0]
    padded = np.pad(x, ((0, 0), (crop, crop), (crop, crop)))
    windows = [padded[:, a : a + 6, b : b + 9] for a in range(2 * crop + 1) for b in range(2 * crop + 1)]
    legal = {w.tobytes() for w in windows} | ({w[:, :, ::-1].tobytes() for w in windows} if flip else set())
    out = fm.Augment(crop=crop, flip=flip)(torch.from_numpy(np.stack([x] * 1000)), keys(1000))
    assert {image.tobytes() for image in out.numpy()} == legal


def test_augmentation_without_crop_and_flip_is_the_identity():
    for dtype in (torch.uint8, torch.float32, torch.float64, torch.int64, torch.bool):
        x = torch.from_numpy(images(20)).to(dtype)
        out = fm.Augment(crop=0, flip=False)(x, keys(20))
        assert out.dtype == dtype
        assert torch.equal(out, x)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32, torch.float64, torch.int64, torch.bool])
def test_types_and_originals_are_kept(dtype):
    x = torch.from_numpy(images(20)).to(dtype)
    before = x.clone()
    out = fm.Augment()(x, keys(20))
    assert out.dtype == dtype
    assert torch.equal(x, before)
    out.zero_()
    assert torch.equal(x, before)


def test_augmentation_of_an_image_depends_on_its_key_only():
    x, key = torch.from_numpy(images(30)), keys(30)
    together = fm.Augment()(x, key)
    order = torch.randperm(30, generator=torch.Generator().manual_seed(0))
    assert torch.equal(fm.Augment()(x[order], key[order]), together[order])
    for i in (0, 17):
        assert torch.equal(fm.Augment()(x[i : i + 1], key[i : i + 1])[0], together[i])


@pytest.mark.parametrize(
    ("how", "sentence"),
    [
        ({"crop": -1}, "Augment: 'crop' must be an integer ≥ 0, got -1"),
        ({"crop": 1.5}, "Augment: 'crop' must be an integer ≥ 0, got 1.5"),
        ({"crop": True}, "Augment: 'crop' must be an integer ≥ 0, got True"),
        ({"flip": 1}, "Augment: 'flip' must be true or false, got 1"),
        ({"flip": None}, "Augment: 'flip' must be true or false, got None"),
    ],
)
def test_bad_settings_get_a_sentence(how, sentence):
    with pytest.raises(ValueError) as error:
        fm.Augment(**how)
    assert sentence in str(error.value)


# ------------------------------------------------------------------------------------------ in a run

SEEN: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = []
"""Images, keys and what was made of them, call after call."""


class Spy(fm.Augment):
    def __call__(self, x, key):
        out = super().__call__(x, key)
        SEEN.append((x.clone(), key.clone(), out.clone()))
        return out


def federation(augment: fm.Augment | None = None, shape=SHAPE) -> fm.FederatedData:
    x = images(sum(SIZES), shape)
    y = np.random.default_rng(1).integers(0, 3, sum(SIZES))
    cuts = np.cumsum(SIZES)[:-1]
    data = fm.FederatedData.from_arrays(
        zip(np.split(x, cuts), np.split(y, cuts), strict=True), test=(images(9, shape, 5), np.arange(9) % 3)
    )
    return replace(data, normalize=fm.Normalize(mean=0.5, std=0.5), augment=augment)


def network() -> nn.Module:
    return nn.Sequential(nn.Conv2d(2, 3, 3), nn.Tanh(), nn.Flatten(), fm.models.logistic(features=84, classes=3))


@pytest.fixture(scope="module")
def model() -> nn.Module:
    torch.manual_seed(0)
    return network().double()


@pytest.fixture
def go(model):
    """`fm.run` in float64 with arguments that may be replaced; what the spy sees is kept anew."""
    SEEN.clear()

    def run(**changes) -> fm.Result:
        arguments = {
            "model": model,
            "data": federation(fm.Augment(crop=2)),
            "algorithm": fm.FedAvg(lr=0.05),
            "selection": fm.Uniform(m=4),
            "rounds": 3,
            "local_steps": 3,
            "batch_size": 4,
            "dtype": torch.float64,
            "engine": "loop",
        }
        return fm.run(**arguments | changes)

    return run


def same(one: torch.Tensor, other: torch.Tensor) -> bool:
    return torch.allclose(one, other, rtol=0, atol=1e-12)


ALGORITHMS = {
    "FedAvg": fm.FedAvg(lr=0.05),
    "FedMoS": fm.FedMoS(lr=0.05),
    "FedMoS, first batch": fm.FedMoS(lr=0.05, first_batch=3),
    "Scaffold": fm.Scaffold(lr=0.05),
    "Mime": fm.Mime(lr=0.05),
}
WORK = {
    "steps": {"local_steps": 3, "batch_size": 4},
    "epochs": {"local_steps": None, "local_epochs": 2, "batch_size": 4},
    "whole": {"local_steps": 3, "batch_size": None},
}


@pytest.mark.parametrize("work", ["steps", *(pytest.param(w, marks=pytest.mark.extended) for w in ("epochs", "whole"))])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_engines_agree(go, name, work):
    how = {"algorithm": ALGORITHMS[name], **WORK[work]}
    one, other = (go(engine=engine, **how) for engine in ("loop", "batched"))
    assert same(one.params, other.params)
    assert not same(one.params, go(data=federation(), **how).params)
    for i in range(len(SIZES)):
        for vector in one.client_state(i):
            assert same(one.client_state(i)[vector], other.client_state(i)[vector])
    for mine, theirs in zip(one.history, other.history, strict=True):
        assert mine.train_loss == pytest.approx(theirs.train_loss, abs=1e-12)
        assert mine.test_loss == pytest.approx(theirs.test_loss, abs=1e-12)


@pytest.mark.parametrize("engine", ["loop", "batched"])
def test_a_run_repeats_itself(go, engine):
    assert torch.equal(go(engine=engine).params, go(engine=engine).params)
    assert not same(go(engine=engine).params, go(engine=engine, seed=1).params)


@pytest.mark.parametrize(("module", "engine"), [(loop, "loop"), (batched, "batched")])
def test_augmentation_does_not_depend_on_chunks(go, monkeypatch, module, engine):
    how = {"engine": engine, "algorithm": fm.FedMoS(lr=0.05), "batch_size": None}
    whole = go(**how)
    monkeypatch.setattr(module, "_SAMPLES_AT_ONCE", 5)
    assert same(go(**how).params, whole.params)


@pytest.mark.parametrize("engine", ["loop", "batched"])
def test_augmentation_does_not_depend_on_other_clients(go, engine):
    """A client's control variate after one round is the mean of the gradients it saw."""
    states = [
        go(engine=engine, algorithm=fm.Scaffold(lr=0.05), selection=fm.FixedCohorts([cohort]), rounds=1).client_state(1)
        for cohort in ([1], [0, 1, 2, 3, 4, 5], [1, 2])
    ]
    for vector in states[0]:
        assert states[0][vector].abs().max() > 0
        assert same(states[0][vector], states[1][vector])
        assert same(states[0][vector], states[2][vector])


@pytest.mark.parametrize("engine", ["loop", "batched"])
def test_two_gradients_on_a_batch_see_the_same_images(go, engine):
    """FedMoS: all data once, then from step 1 on each batch at y and at y_prev."""
    go(data=federation(Spy(crop=2)), algorithm=fm.FedMoS(lr=0.05), engine=engine, rounds=2)
    per_visit = 1 + 2 * 2
    visits = 2 * (4 if engine == "loop" else 1)
    calls = SEEN[-visits * per_visit :]
    assert len(SEEN) - len(calls) == (0 if engine == "loop" else 5)  # a trial, and both engines' gradients of 3 clients
    for v in range(visits):
        _, first, again, second, once_more = calls[v * per_visit : (v + 1) * per_visit]
        for one, other in ((first, again), (second, once_more)):
            assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))
        assert not torch.equal(first[1], second[1])


def test_every_draw_has_a_key_of_its_own(go):
    """By client, step, round and seed; a client with one sample sees it changed in ever new ways."""
    for seed in (0, 1):
        go(data=federation(Spy(crop=2)), selection=fm.Full(), seed=seed, rounds=4)
    seen = Counter(key for _, call, _ in SEEN for key in call.tolist())
    assert len(SEEN) == 2 * 4 * len(SIZES) * 3
    assert max(seen.values()) == 1
    lonely = images(sum(SIZES))[sum(SIZES[:2])]
    fates = [out[0].numpy().tobytes() for x, _, out in SEEN if len(x) == 1 and np.array_equal(x[0], lonely)]
    assert len(fates) == 2 * 4 * 3
    assert len(set(fates)) > 12  # of fifty legal ones
    assert any(a != b for a, b in pairwise(fates))


def test_keys_are_the_documented_stream(go):
    """One per (seed, round, client, step, sample)."""
    go(data=federation(Spy(crop=2)), selection=fm.FixedCohorts([[4]]), seed=9, rounds=2)
    for call, (t, k) in enumerate((t, k) for t in range(2) for k in range(3)):
        key = fold(stream(9, t, 4, Purpose.AUGMENT), k)
        assert SEEN[call][1].tolist() == [int(fold(key, j)) for j in range(4)]


@pytest.mark.parametrize("engine", ["loop", "batched"])
def test_gradients_are_those_of_the_augmented_images(go, model, engine):
    """Zeros are padded before normalisation: they count as black, −1, and not as grey."""
    data = federation(Spy(crop=3))
    result = go(data=data, selection=fm.FixedCohorts([[3]]), local_steps=1, batch_size=None, rounds=1, engine=engine)
    x, _, out = SEEN[-1]
    assert np.array_equal(x, data.client(3)[0])
    assert (out == 0).any()
    weights = [w.detach().clone().requires_grad_() for w in model.parameters()]
    names = [name for name, _ in model.named_parameters()]
    outputs = torch.func.functional_call(
        model, dict(zip(names, weights, strict=True)), ((out.double() / 255 - 0.5) / 0.5,)
    )
    gradient = torch.autograd.grad(nn.functional.cross_entropy(outputs, data.client(3)[1]), weights)
    expected = torch.cat([(w - 0.05 * g).flatten() for w, g in zip(weights, gradient, strict=True)])
    assert same(result.params, expected)


# ------------------------------------------------------------------------------- only training sees it


def losses(model: nn.Module, params: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> float:
    nn.utils.vector_to_parameters(params, (copy := network().double()).parameters())
    with torch.no_grad():
        return float(nn.functional.cross_entropy(copy((x.double() / 255 - 0.5) / 0.5), y))


@pytest.mark.parametrize("engine", ["loop", "batched"])
def test_evaluation_sees_images_as_they_are(go, model, engine):
    data = federation(Spy(crop=9))
    result = go(data=data, engine=engine, rounds=2)
    expected = sum(float(data.importance[i]) * losses(model, result.params, *data.client(i)) for i in range(len(SIZES)))
    assert result.history[-1].train_loss == pytest.approx(expected, abs=1e-12)
    assert result.history[-1].test_loss == pytest.approx(losses(model, result.params, *data.test), abs=1e-12)
    trained = sum(len(x) for x, _, _ in SEEN)
    steps = [min(4, SIZES[i]) * 3 for record in result.history for i in record.cohort]
    if engine == "loop":
        assert trained == sum(steps)  # not one image more


@pytest.mark.parametrize("loss", ["full", "batch"])
@pytest.mark.parametrize("engine", ["loop", "batched"])
def test_probes_see_images_as_they_are(go, model, loss, engine):
    """Windows that miss the image make all images alike; who has the largest loss is then anybody's guess."""
    data, selection = federation(Spy(crop=500)), fm.PowerOfChoice(m=2, d=6, loss=loss)
    for seed in range(4):
        SEEN.clear()
        record = go(data=data, selection=selection, engine=engine, rounds=1, seed=seed).history[0]
        plain = go(data=federation(), selection=selection, engine=engine, rounds=1, seed=seed).history[0]
        assert record.cohort == plain.cohort
        if loss == "full":
            x = torch.cat([p.detach().flatten() for p in model.parameters()])
            own = [losses(model, x, *data.client(i)) for i in range(len(SIZES))]
            assert set(record.cohort) == set(np.argsort(own)[-2:].tolist())
        if engine == "loop":
            assert sum(len(x) for x, _, _ in SEEN) == sum(min(4, SIZES[i]) * 3 for i in record.cohort)


def test_reports_of_the_received_model_see_images_as_they_are(go):
    """Oort's utility is of a client's data at x."""

    class Watching(fm.Uniform):
        reports = ("start_loss",)
        told: dict

        def select(self, view):
            Watching.told = {k: v.clone() for k, v in view.reported.items()}
            return super().select(view)

    told = []
    for augment in (None, fm.Augment(crop=500)):
        go(data=federation(augment), selection=Watching(m=6), rounds=2, algorithm=fm.FedAvg(lr=1e-9))
        told.append(Watching.told["start_loss"])
    assert told[0].isfinite().all()
    assert torch.allclose(told[0], told[1], atol=1e-6)


def test_clients_and_stores_keep_the_images(go):
    data = federation(Spy(crop=2))
    before = data.x.clone()
    go(data=data)
    assert torch.equal(data.x, before)
    assert data.x.dtype == torch.uint8
    assert all(x.dtype == out.dtype == torch.uint8 for x, _, out in SEEN)  # a quarter of the memory until the end


def test_data_sets_declare_it():
    digits, augment = fm.datasets.load("digits"), fm.Augment(crop=1, flip=False)
    assert digits.augment is None
    declared = digits.declare(augment=augment)
    assert declared.normalize == digits.normalize
    data = declared.partition(fm.partition.IID(), clients=5)
    assert data.augment == augment
    other = data.declare(normalize=fm.Normalize(mean=0.0, std=1.0))
    assert other.augment == augment
    plain = digits.partition(fm.partition.IID(), clients=5)
    assert plain.augment is None
    assert len({plain.fingerprint(), data.fingerprint(), data.declare(augment=fm.Augment()).fingerprint()}) == 3


@pytest.mark.parametrize("shape", [(), (7,), (4, 4)], ids=["numbers", "rows", "no channels"])
def test_only_images_can_be_augmented(shape):
    """A sentence before the first round, not a traceback from the middle of one."""
    rng = np.random.default_rng(0)
    data = fm.FederatedData.from_arrays([(rng.normal(size=(6, *(shape or (1,)))), [0, 1] * 3)] * 3)
    features = int(np.prod(shape or (1,)))
    with pytest.raises(ValueError, match="augment"):
        fm.run(
            model=fm.models.logistic(features=features, classes=2),
            data=data.declare(augment=fm.Augment()),
            algorithm=fm.FedAvg(lr=0.1),
            selection=fm.Full(),
            rounds=1,
            local_steps=1,
            batch_size=2,
        )


# ----------------------------------------------------------------------------------------- frequencies


def test_shifts_are_uniform_and_half_are_mirrored(go):
    """One bright pixel in a wide image says where it went: (5 rows) × (5 columns) × (mirrored or not)."""
    x = np.zeros((400, 1, 8, 16), np.uint8)
    x[:, 0, 3, 2] = 255
    data = fm.FederatedData.from_arrays([(part, np.zeros(20, int)) for part in x.reshape(20, 20, 1, 8, 16)])
    go(
        model=fm.models.logistic(features=128, classes=2),
        data=replace(data, normalize=fm.Normalize(mean=0.0, std=1.0), augment=Spy(crop=2)),
        selection=fm.Full(),
        rounds=10,
        local_steps=5,
        batch_size=20,
        engine="batched",
        dtype=torch.float32,
    )
    out = torch.cat([call[2] for call in SEEN])[-20_000:]
    assert len(out) == 20_000
    assert (out.flatten(1) > 0).sum(1).eq(1).all()
    where = (out.flatten(1) > 0).int().argmax(1)
    row, column = (where // 16).numpy(), (where % 16).numpy()
    mirrored = column > 8
    left = np.where(mirrored, 15 - column, column)
    assert set(row) == {1, 2, 3, 4, 5}
    assert set(left) == {0, 1, 2, 3, 4}
    assert abs(mirrored.mean() - 0.5) < 0.015
    cells = np.bincount((row - 1) * 10 + left * 2 + mirrored, minlength=50)
    assert stats.chisquare(cells).pvalue > 1e-4
    assert stats.chi2_contingency(np.histogram2d(mirrored[:-1], mirrored[1:], 2)[0]).pvalue > 1e-4
    calls = row.reshape(50, 20, 20)  # calls, clients, samples
    for values in (calls.transpose(1, 0, 2), calls.transpose(2, 0, 1), calls):  # nobody prefers a place of their own
        table = [np.bincount(v.flatten() - 1, minlength=5) for v in values]
        assert stats.chi2_contingency(table).pvalue > 1e-4
