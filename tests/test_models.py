"""The papers' models: sizes, seeds, equal training on both engines; LSTMs, normalisation, losses of sequences."""

import json
import logging
import sys

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call, grad, vmap

import fedmos as fm
from fedmos.config import registry as registry
from fedmos.core.flat_model import FlatModel
from fedmos.core.losses import PADDING, Loss
from fedmos.engine.batched import Batched
from fedmos.engine.batches import Chunk
from fedmos.engine.loop import Loop
from fedmos.engine.task import Task
from fedmos.evaluation import metrics

SIZES = {
    "char_lstm": 133_520,
    "cnn_cifar": 122_570,
    "cnn_digits": 1_898,
    "cnn_mnist": 21_840,
    "lenet": 797_962,
    "logistic": 7_850,
    "mlp": 52_500,
    "mlp_cifar": 379_774,
    "mobilenet_v2": 2_236_682,
    "resnet18": 11_173_962,
    "resnet20": 269_722,
    "vit_b16": 85_806_346,
    "word_lstm": 4_053_428,
}

VIT = {"image_size": 32, "layers": 2, "width": 16, "heads": 2}

# A small version of each model, the shape of a sample (of tokens, where one number), and its classes.
SMALL = {
    "char_lstm": ({"hidden": 10}, (7,), 80),
    "cnn_cifar": ({}, (3, 32, 32), 10),
    "cnn_cifar with dropout": ({"dropout": True}, (3, 32, 32), 10),
    "cnn_digits": ({}, (1, 8, 8), 10),
    "cnn_mnist": ({}, (1, 28, 28), 10),
    "lenet": ({"classes": 4}, (3, 32, 32), 4),
    "logistic": ({}, (1, 28, 28), 10),
    "mlp": ({}, (1, 28, 28), 10),
    "mlp_cifar": ({"features": 48}, (3, 4, 4), 10),
    "mobilenet_v2": ({"depth_multiplier": 0.1}, (3, 32, 32), 10),
    "mobilenet_v2 with dropout": ({"depth_multiplier": 0.1, "dropout": True}, (3, 32, 32), 10),
    "resnet18": ({"width": 8}, (3, 8, 8), 10),
    "resnet20": ({"channels": 1, "classes": 3}, (1, 8, 8), 3),
    "vit_b16": (VIT | {"classes": 6}, (3, 32, 32), 6),
    "vit_b16 with dropout": (VIT | {"dropout": True}, (3, 32, 32), 10),
    "word_lstm": ({"vocabulary": 30, "embedding": 5, "hidden": 8}, (6,), 30),
}


def make(case: str, **more) -> nn.Module:
    name = case.split()[0]
    if name in ("mobilenet_v2", "vit_b16"):
        pytest.importorskip("transformers")
    return getattr(fm.models, name)(**SMALL[case][0] | more)


def samples(case: str, n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    _, shape, classes = SMALL[case]
    x = rng.integers(classes, size=(n, *shape)) if len(shape) == 1 else rng.standard_normal((n, *shape))
    return x, rng.integers(classes, size=(n, *shape) if case == "word_lstm" else n)


def flat(model: nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def test_every_model_is_in_the_catalogue():
    assert sorted(registry.models()) == sorted(SIZES) == sorted({case.split()[0] for case in SMALL})


@pytest.mark.parametrize("name", SIZES)
def test_models_have_the_papers_sizes(name):
    if name in ("mobilenet_v2", "vit_b16"):
        pytest.importorskip("transformers")
    assert sum(p.numel() for p in getattr(fm.models, name)().parameters()) == SIZES[name]


def test_the_stem_for_imagenet():
    model = fm.models.resnet18(stem="imagenet")
    assert sum(p.numel() for p in model.parameters()) == 11_181_642
    assert model[:-3](torch.zeros(1, 3, 64, 64)).shape == (1, 512, 2, 2)
    assert fm.models.resnet18()[:-3](torch.zeros(1, 3, 16, 16)).shape == (1, 512, 2, 2)
    with pytest.raises(ValueError, match="resnet18: 'stem' must be one of 'cifar', 'imagenet', got 'mnist'"):
        fm.models.resnet18(stem="mnist")


@pytest.mark.parametrize("case", SMALL)
def test_models_give_a_score_per_class_and_follow_their_seed_alone(case):
    before = torch.get_rng_state()
    a, b, other = make(case), make(case), make(case, seed=1)
    assert torch.equal(torch.get_rng_state(), before)
    assert a.training
    assert torch.equal(flat(a), flat(b))
    assert not torch.equal(flat(a), flat(other))
    x, y = samples(case, 3)
    outputs = a.eval()(torch.tensor(x) if x.dtype.kind == "i" else torch.tensor(x).float())
    classes = SMALL[case][2]
    assert outputs.shape == (3, classes, *y.shape[1:])


def test_seeds_mean_pytorchs_own_initial_weights():
    with torch.random.fork_rng():
        torch.manual_seed(5)
        expected = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    assert torch.equal(flat(fm.models.logistic(features=64, seed=5)), flat(expected))


@pytest.mark.parametrize("case", SMALL)
def test_models_train_alike_on_both_engines(case):
    clients = [samples(case, n, seed=n) for n in (3, 2)]
    results = [
        fm.run(
            make(case),
            fm.FederatedData.from_arrays(clients, test=samples(case, 2)),
            fm.FedAvg(lr=0.05),
            fm.Full(),
            rounds=1,
            local_steps=1,
            batch_size=2,
            dtype=torch.float64,
            device="cpu",
            engine=engine,
        )
        for engine in ("loop", "batched")
    ]
    loop, batched = (result.params for result in results)
    assert not torch.allclose(loop, flat(make(case)).double(), rtol=0, atol=1e-6)
    assert torch.allclose(loop, batched, rtol=0, atol=1e-10)
    assert 0 <= results[0].history[-1].accuracy <= 1


# LSTM


def pair(dtype: torch.dtype) -> tuple[nn.LSTM, fm.models.LSTM]:
    """PyTorch's LSTM and ours, made from the same seed."""
    made = []
    for kind in (lambda: nn.LSTM(3, 5, num_layers=2, batch_first=True), lambda: fm.models.LSTM(3, 5, layers=2)):
        with torch.random.fork_rng():
            torch.manual_seed(0)
            made.append(kind().to(dtype))
    return tuple(made)


@pytest.mark.parametrize(("dtype", "close"), [(torch.float32, 1e-6), (torch.float64, 1e-12)])
def test_lstm_is_pytorchs(dtype, close):
    theirs, ours = pair(dtype)
    assert list(theirs.state_dict()) == list(ours.state_dict())
    assert torch.equal(flat(theirs), flat(ours))
    x = torch.randn(4, 9, 3, dtype=dtype, generator=torch.Generator().manual_seed(1)).requires_grad_()
    outputs, gradients = [], []
    for model, run in ((theirs, lambda x: theirs(x)[0]), (ours, ours)):
        outputs.append(run(x))
        loss = outputs[-1].square().sum()
        gradients.append(torch.autograd.grad(loss, [x, *model.parameters()]))
    assert torch.allclose(*outputs, rtol=0, atol=close)
    for a, b in zip(*gradients, strict=True):
        assert torch.allclose(a, b, rtol=close, atol=close)
    theirs.load_state_dict(fm.models.LSTM(3, 5, layers=2).state_dict())


def test_lstm_under_vmap_is_lstm_client_by_client():
    _, model = pair(torch.float64)
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(3, 2, 6, 3, dtype=torch.float64, generator=generator)
    params = {
        name: p.detach() + 0.1 * torch.randn(3, *p.shape, dtype=p.dtype, generator=generator)
        for name, p in model.named_parameters()
    }

    def loss(params, x):
        return functional_call(model, params, (x,)).square().sum()

    together = vmap(grad(loss))(params, x)
    for m in range(3):
        alone = grad(loss)({name: p[m] for name, p in params.items()}, x[m])
        for name, g in alone.items():
            assert torch.allclose(together[name][m], g, rtol=0, atol=1e-12)


class Tagger(nn.Module):
    """A user's module with PyTorch's own LSTM; sequences end at the first 0 if `packed`."""

    def __init__(self, packed: bool = False) -> None:
        super().__init__()
        self.embedding, self.lstm, self.linear = nn.Embedding(30, 4), nn.LSTM(4, 6, batch_first=True), nn.Linear(6, 30)
        self.packed = packed

    def forward(self, tokens):
        x, T = self.embedding(tokens), tokens.shape[1]
        if self.packed:
            lengths = (tokens != 0).cumprod(1).sum(1).clamp(min=1)
            x = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        x, _ = self.lstm(x)
        if self.packed:
            x, _ = nn.utils.rnn.pad_packed_sequence(x, batch_first=True, total_length=T)
        return self.linear(x).transpose(1, 2)


def train(model: nn.Module, **changes) -> fm.Result:
    data = fm.FederatedData.from_arrays([samples("word_lstm", n, seed=n) for n in (3, 2)])
    how = {"rounds": 1, "local_steps": 1, "batch_size": 2, "dtype": torch.float64, "device": "cpu"}
    return fm.run(model, data, fm.FedAvg(lr=0.1), fm.Full(), **how | changes)


def test_a_users_lstm_trains_alike_on_both_engines():
    model = Tagger()
    loop, batched = (train(model, engine=engine).model for engine in ("loop", "batched"))
    for name, p in model.named_parameters():
        assert not torch.equal(loop.get_parameter(name), p.double()), name
        assert torch.allclose(loop.get_parameter(name), batched.get_parameter(name), rtol=0, atol=1e-10), name


def test_a_users_lstm_of_packed_sequences_trains_in_the_loop_and_says_so(caplog):
    with caplog.at_level(logging.WARNING, logger="fedmos"):
        result = train(Tagger(packed=True))
    assert result.info["engine"] == "loop"
    assert "cannot be vectorised" in caplog.text
    with pytest.raises(ValueError, match="Cannot vectorise"):
        train(Tagger(packed=True), engine="batched")


# Normalisation


@pytest.mark.parametrize("shape", [(3, 6), (3, 6, 4), (3, 6, 4, 5)])
@pytest.mark.parametrize("how", [{}, {"affine": False}])
def test_group_norm_is_pytorchs(shape, how):
    generator = torch.Generator().manual_seed(0)
    theirs, ours = nn.GroupNorm(2, 6, eps=1e-3, **how), fm.models.GroupNorm(2, 6, eps=1e-3, **how)
    for p, q in zip(theirs.parameters(), ours.parameters(), strict=True):
        with torch.no_grad():
            p.copy_(torch.randn(p.shape, generator=generator))
            q.copy_(p)
    x = (3 * torch.randn(shape, generator=generator) + 1).requires_grad_()
    outputs = theirs(x), ours(x)
    assert torch.allclose(*outputs, rtol=1e-6, atol=1e-6)
    gradients = [
        torch.autograd.grad(o.pow(3).sum(), [x, *m.parameters()]) for o, m in zip(outputs, (theirs, ours), strict=True)
    ]
    for a, b in zip(*gradients, strict=True):
        assert torch.allclose(a, b, rtol=1e-5, atol=1e-4)
    if how:
        return
    names = dict(ours.named_parameters())
    several = {name: torch.stack([p, 2 * p]).detach() for name, p in names.items()}
    together = vmap(lambda p, x: functional_call(ours, p, (x,)))(several, torch.stack([x, -x]))
    with torch.no_grad():
        for q in ours.parameters():
            q.mul_(2)
    assert torch.allclose(together[1], ours(-x), rtol=1e-6, atol=1e-6)


class Residual(nn.Module):
    """A block as in any ResNet, with a layer of normalisation used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(4, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4)
        self.conv2, self.bn2 = nn.Conv2d(4, 4, 3, padding=1, bias=False), self.bn1

    def forward(self, x):
        return F.relu(x + self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x))))))


def test_a_resnet_with_batch_norm_is_converted_and_trains(quick):
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1, bias=False),
        nn.BatchNorm2d(4, eps=1e-3),
        nn.ReLU(),
        Residual(),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.BatchNorm1d(16, affine=False),
        nn.Linear(16, 10),
    )
    with torch.no_grad():
        model[1].weight.fill_(2)
    converted = fm.models.convert_batchnorm(model)
    assert isinstance(model[1], nn.BatchNorm2d)
    assert not any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in converted.modules())
    assert isinstance(converted[1], nn.GroupNorm)
    assert (converted[1].num_groups, converted[1].eps) == (2, 1e-3)
    assert torch.equal(converted[1].weight, model[1].weight)
    assert converted[3].bn1 is converted[3].bn2
    assert list(converted[6].parameters()) == []
    assert torch.equal(flat(model), flat(converted))
    runs = [quick(model=converted, rounds=1, engine=engine, dtype=torch.float64) for engine in ("loop", "batched")]
    assert torch.allclose(runs[0].params, runs[1].params, rtol=0, atol=1e-10)


# Losses and accuracies of sequences


def sequences(B: int = 4, V: int = 5, T: int = 5) -> tuple[torch.Tensor, torch.Tensor]:
    """Scores and targets of samples with T, T − 1, … positions; the last has none."""
    generator = torch.Generator().manual_seed(0)
    outputs = torch.randn(B, V, T, dtype=torch.float64, generator=generator)
    targets = torch.randint(V, (B, T), generator=generator)
    for b in range(B):
        targets[b, T - b if b < B - 1 else 0 :] = PADDING
    return outputs, targets


def test_cross_entropy_of_sequences_is_a_mean_of_means():
    outputs, targets = sequences()
    loss = Loss("cross_entropy")
    expected = [
        -torch.stack([o.log_softmax(0)[c, t] for t, c in enumerate(y.tolist()) if c != PADDING]).mean()
        for o, y in zip(outputs[:-1], targets[:-1], strict=True)
    ]
    expected = torch.stack([*expected, torch.zeros((), dtype=torch.float64)])
    assert torch.allclose(loss.each(outputs, targets), expected, rtol=0, atol=1e-14)
    assert torch.allclose(loss.mean(outputs, targets), expected.mean(), rtol=0, atol=1e-14)
    assert not torch.allclose(F.cross_entropy(outputs, targets), expected.mean(), rtol=0, atol=1e-3)


def test_cross_entropy_of_sequences_under_vmap():
    outputs, targets = sequences()
    outputs, targets = torch.stack([outputs, 2 * outputs]), torch.stack([targets, targets.flip(0)])
    loss = Loss("cross_entropy")
    for function in (loss.mean, lambda o, t: loss.each(o, t).sum()):
        together = vmap(grad(function))(outputs, targets)
        for m in range(2):
            assert torch.allclose(together[m], grad(function)(outputs[m], targets[m]), rtol=0, atol=1e-14)
    assert not together[targets.unsqueeze(2).expand_as(together) == PADDING].any()


def test_cross_entropy_of_classes_is_pytorchs():
    outputs, targets = sequences()[0][..., 0], torch.tensor([0, 1, 2, 4])
    assert torch.equal(Loss("cross_entropy").mean(outputs, targets), F.cross_entropy(outputs, targets))
    assert torch.equal(
        Loss("cross_entropy").each(outputs, targets), F.cross_entropy(outputs, targets, reduction="none")
    )


def test_only_cross_entropy_knows_padding():
    outputs, targets = torch.zeros(2, 3), torch.tensor([[PADDING, 0, 0], [0, 0, 0]])
    assert Loss("mse").each(outputs, targets).tolist() == pytest.approx([PADDING**2 / 3, 0])


class Lookup(nn.Module):
    """Its outputs are its parameters: sample i gets row i."""

    def __init__(self, rows: torch.Tensor) -> None:
        super().__init__()
        self.rows = nn.Parameter(rows)

    def forward(self, x):
        return F.embedding(x, self.rows.flatten(1)).view(len(x), *self.rows.shape[1:])


def padded_task(model: nn.Module | None = None) -> Task:
    outputs, targets = sequences()
    data = fm.FederatedData.from_arrays([([0, 1], targets[:2]), ([2, 3], targets[2:])])
    flat_model = FlatModel(model or Lookup(outputs), torch.device("cpu"), torch.float64)
    how = {"local_steps": 1, "local_epochs": None, "batch_size": None}
    return Task(model=flat_model, data=data, loss=Loss("cross_entropy"), seed=0, **how)


def measured(task):
    evaluator = metrics.Evaluator([task])
    return dict(zip(evaluator.names, evaluator(task.model.initial()[None])[0].tolist(), strict=True))


def test_accuracy_of_sequences_leaves_out_padding(monkeypatch):
    outputs, targets = sequences()
    task = padded_task()
    right = outputs.argmax(1) == targets
    shares = [float(r[y != PADDING].double().mean()) for r, y in zip(right[:3], targets[:3], strict=True)]
    assert len(set(shares)) > 1
    found = measured(task)
    assert found["train_accuracy"] == pytest.approx(sum(shares) / 4, abs=1e-15)
    assert found["train_loss"] == pytest.approx(float(task.loss.mean(outputs, targets)), abs=1e-14)
    monkeypatch.setattr(metrics, "_SCORES_AT_ONCE", 60)  # two samples' scores
    assert metrics.samples_at_once(task, task.model.initial()) == 2
    assert measured(task) == pytest.approx(found, abs=1e-14)


def test_classes_are_on_axis_1():
    targets = torch.zeros(2, 7, dtype=torch.int64)
    assert metrics.has_classes(torch.zeros(2, 5, 7), targets)
    assert not metrics.has_classes(torch.zeros(2, 7, 5), targets)
    assert not metrics.has_classes(torch.zeros(2, 5, 7), targets.double())
    assert not metrics.has_classes(torch.zeros(2, 1, 7), targets)


def test_engines_agree_on_padded_sequences():
    task = padded_task()
    y = task.model.initial()
    together = Batched(task, Chunk.of(task, torch.arange(2)), 0)
    alone = [Loop(task, Chunk.of(task, torch.tensor([i])), 0) for i in range(2)]
    assert torch.allclose(together.full(y), torch.stack([grad.full(y) for grad in alone]), rtol=0, atol=1e-14)
    assert torch.allclose(together.reported(), torch.cat([grad.reported() for grad in alone]), rtol=0, atol=1e-14)
    assert not together.full(y).view(2, 4, -1)[:, 3].any()  # a sample that is all padding teaches nothing


# Weights from a folder


@pytest.fixture
def transformers():
    return pytest.importorskip("transformers")


CASES = {"mobilenet_v2": "MobileNetV2", "vit_b16": "ViT"}


@pytest.fixture(params=CASES)
def folder(request, tmp_path, transformers):
    """A small pretrained model of seven classes, as the library saves it: its function, and its folder."""
    name, family = request.param, CASES[request.param]
    small = (
        {"depth_multiplier": 0.1}
        if name == "mobilenet_v2"
        else {
            "image_size": 32,
            "num_hidden_layers": 1,
            "hidden_size": 16,
            "num_attention_heads": 2,
            "intermediate_size": 64,
        }
    )
    config = getattr(transformers, f"{family}Config")(num_labels=7, **small)
    with torch.random.fork_rng():
        torch.manual_seed(3)
        model = getattr(transformers, f"{family}ForImageClassification")(config)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.01)
    transformers.utils.logging.disable_progress_bar()
    model.save_pretrained(tmp_path)
    transformers.utils.logging.enable_progress_bar()
    return getattr(fm.models, name), tmp_path, model


def test_weights_come_from_a_folder(folder, capfd):
    make, path, saved = folder
    before = torch.get_rng_state()
    same = make(classes=7, weights=path)
    assert torch.equal(flat(same), flat(saved))
    new, again, other = (make(classes=3, weights=str(path), seed=seed) for seed in (0, 0, 1))
    assert torch.equal(torch.get_rng_state(), before)
    head = new.network.classifier
    assert new(torch.zeros(2, 3, 32, 32)).shape == (2, 3)
    assert new.training
    assert torch.equal(flat(new), flat(again))
    assert not torch.equal(head.weight, other.network.classifier.weight)
    body = flat(new)[: -head.weight.numel() - 3]
    assert torch.equal(body, flat(saved)[: len(body)])
    assert capfd.readouterr().err == ""


def test_a_pretrained_model_trains(folder):
    make, path, _ = folder
    data = fm.FederatedData.from_arrays([samples("vit_b16", 2), samples("vit_b16", 3, seed=1)])
    model = make(classes=6, weights=path)
    how = {"rounds": 1, "local_steps": 1, "batch_size": 2, "engine": "batched", "device": "cpu"}
    result = fm.run(model, data, fm.FedMoS(lr=0.01), fm.Full(), **how)
    assert not torch.equal(result.params, flat(model))


def test_weights_without_a_head_get_one(tmp_path, transformers):
    """A ViTModel, as the weights of ImageNet-21k are published, in the names it has in its file."""
    small = {"image_size": 32, "num_hidden_layers": 1, "hidden_size": 16, "num_attention_heads": 2}
    body = transformers.ViTModel(transformers.ViTConfig(**small, intermediate_size=64))
    transformers.utils.logging.disable_progress_bar()
    body.save_pretrained(tmp_path)
    transformers.utils.logging.enable_progress_bar()
    model = fm.models.vit_b16(classes=4, weights=tmp_path)
    assert torch.equal(model.network.vit.embeddings.position_embeddings, body.embeddings.position_embeddings)
    assert model(torch.zeros(2, 3, 32, 32)).shape == (2, 4)


def test_weights_that_do_not_fit_are_refused(folder, tmp_path_factory):
    make, path, _ = folder
    name = make.__name__
    empty = tmp_path_factory.mktemp("empty")
    (empty / "config.json").write_text("{}")
    (empty / "pytorch_model.bin").write_bytes(b"never read")
    for wrong in (empty, empty / "nowhere"):
        with pytest.raises(ValueError, match=f"{name}: 'weights' must be a folder with config.json and model.saf"):
            make(weights=wrong)
    other = {"depth_multiplier": 0.2} if name == "mobilenet_v2" else {"image_size": 48}
    with pytest.raises(ValueError, match=f"{name}: 'weights' must fit the model, but lack"):
        make(weights=path, **other)


def test_the_settings_of_a_folder_cannot_bring_back_functional_dropout(folder):
    make, path, _ = folder
    settings = json.loads((path / "config.json").read_text())
    settings |= {"attention_probs_dropout_prob": 0.5, "hidden_dropout_prob": 0.5, "classifier_dropout_prob": 0.5}
    (path / "config.json").write_text(json.dumps(settings))
    model = make(weights=path)
    before = torch.get_rng_state()
    x = torch.zeros(2, 3, 32, 32)
    assert torch.equal(model(x), model(x))
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("name", CASES)
def test_without_the_library_there_is_a_sentence(name, monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ImportError, match=rf"^{name} needs transformers; pip install 'fedmos\[transformers\]'$"):
        getattr(fm.models, name)()
