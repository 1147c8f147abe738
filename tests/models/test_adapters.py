"""Low-rank adapters on frozen layers: `fm.models.lora` and `merge_lora`."""

import copy
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

import fedmos as fm
from fedmos.config import registry
from fedmos.config import schema as config
from fedmos.models.lora_layer import LoraLayer
from fedmos.storage import RunFolder
from helpers.configs import RUN

TOKENS = 20


class Mixed(nn.Module):
    """Every kind of layer that gets adapters, one that is called twice, and one whose weight is read."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(TOKENS, 8, padding_idx=0)
        self.encode = nn.TransformerEncoderLayer(8, 2, 16, 0.1, batch_first=True)
        self.mix, self.again = nn.Linear(8, 8), nn.ModuleList()
        self.again.append(self.mix)
        self.convolve = nn.Conv1d(8, 6, 3, padding=1, padding_mode="circular")
        self.norm, self.head = nn.LayerNorm(6), nn.Linear(6, 3)

    def forward(self, tokens):
        x = self.encode(self.mix(self.embed(tokens)))
        return self.head(self.norm(self.convolve(self.again[0](x).transpose(1, 2)).mean(2)))


TARGETS = ["embed", "encode.linear?", "out_proj", "mix", "convolve"]


@pytest.fixture
def model() -> nn.Module:
    torch.manual_seed(0)
    return Mixed()


def federation(sizes=(5, 3, 4)) -> fm.FederatedData:
    rng = np.random.default_rng(0)
    return fm.FederatedData.from_arrays([(rng.integers(TOKENS, size=(n, 5)), rng.integers(3, size=n)) for n in sizes])


def train(model, **changes) -> fm.Result:
    how = {"rounds": 2, "local_steps": 2, "batch_size": 3, "dtype": torch.float64, "engine": "batched"}
    how |= {"data": federation(), "algorithm": fm.FedAvg(lr=0.3), "selection": fm.Full()}
    return fm.run(model, **how | changes)


def trainable(model) -> list[str]:
    return [name for name, p in model.named_parameters() if p.requires_grad]


def tokens(n=4) -> torch.Tensor:
    return torch.randint(TOKENS, (n, 5), generator=torch.Generator().manual_seed(1))


def test_the_copy_computes_what_the_model_computes(model):
    before = copy.deepcopy(model.state_dict())
    adapted = fm.models.lora(model, 2, TARGETS)
    with torch.no_grad():
        assert torch.allclose(adapted.eval()(tokens()), model.eval()(tokens()), rtol=0, atol=1e-6)
    assert all(p.requires_grad for p in model.parameters())
    assert all(torch.equal(v, before[name]) for name, v in model.state_dict().items())


def test_only_the_adapters_are_trainable(model):
    layers = ("embed", "encode.self_attn.out_proj", "encode.linear1", "encode.linear2", "mix", "convolve")
    adapted = fm.models.lora(model, 2, TARGETS)
    assert trainable(adapted) == [f"{layer}.lora_{factor}.weight" for layer in layers for factor in "AB"]
    assert adapted.mix is adapted.again[0]
    with_head = fm.models.lora(model, 2, "mix", train=["head.*", "norm.weight"])
    assert trainable(with_head) == ["mix.lora_A.weight", "mix.lora_B.weight", "norm.weight", "head.weight", "head.bias"]


def test_engines_agree_and_only_adapters_travel(model):
    adapted = fm.models.lora(model, 2, [*TARGETS[:2], *TARGETS[3:]], alpha=8, dropout=0.2, train="head.*")
    loop, batched = (train(adapted, engine=engine) for engine in ("loop", "batched"))
    D = sum(p.numel() for p in adapted.parameters() if p.requires_grad)
    assert loop.params.shape == (D,)
    assert loop.history[0].bytes_up == loop.history[0].bytes_down == 3 * D * 8
    assert torch.allclose(loop.params, batched.params, rtol=0, atol=1e-10)
    initial = torch.cat([p.detach().flatten() for p in adapted.parameters() if p.requires_grad])
    assert not torch.allclose(loop.params, initial.double(), atol=1e-3)
    for name, p in loop.model.named_parameters():
        assert p.requires_grad or torch.equal(p, adapted.get_parameter(name).double())


def test_merged_weights_predict_as_the_run(model):
    adapted = fm.models.lora(model, 3, TARGETS, alpha=6)
    result = train(adapted)
    merged = fm.models.merge_lora(result.model).eval()
    assert merged.state_dict().keys() == model.state_dict().keys()
    layer = result.model.mix
    update = 2 * layer.lora_B.weight @ layer.lora_A.weight  # alpha / rank = 2
    assert torch.allclose(merged.mix.weight, model.mix.weight.double() + update, rtol=0, atol=1e-12)
    with torch.no_grad():
        outputs = merged(tokens())
        assert torch.allclose(outputs, result.predict(tokens()), rtol=0, atol=1e-12)
        assert torch.allclose(outputs, result.model.eval()(tokens()), rtol=0, atol=1e-12)
        assert not torch.allclose(outputs, model.double().eval()(tokens()), atol=1e-2)
    assert isinstance(result.model.mix, LoraLayer)
    assert merged.embed.weight[0].abs().max() == 0  # padding


@pytest.mark.parametrize(
    "layer",
    [
        nn.Conv2d(3, 4, 3, stride=2, padding=1),
        nn.Conv2d(3, 4, (3, 1), padding="same", dilation=2),
        nn.Conv1d(3, 4, 2),
        nn.Conv3d(3, 4, 2, bias=False),
        nn.Linear(6, 4),
    ],
    ids=str,
)
def test_layers_with_adapters(layer):
    adapted = fm.models.lora(layer, 2, "*", alpha=3, seed=1)  # the model is the layer
    assert isinstance(adapted, LoraLayer)
    nn.init.normal_(adapted.lora_B.weight)
    dimensions = layer.weight.ndim - 2
    x = torch.randn(2, 3, *[6] * dimensions) if dimensions else torch.randn(2, 5, 6)
    merged = fm.models.merge_lora(adapted)
    assert type(merged) is type(layer)
    assert torch.allclose(adapted(x), merged(x), atol=1e-5)
    assert not torch.allclose(adapted(x), layer(x), atol=1e-2)
    assert adapted.bias is None or torch.equal(adapted.bias, layer.bias)


def test_initial_values_follow_the_seed_alone(model):
    state = torch.get_rng_state()
    first, same, other = (fm.models.lora(model, 2, TARGETS, seed=seed) for seed in (3, 3, 4))
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(first.mix.lora_A.weight, same.mix.lora_A.weight)
    assert not torch.equal(first.mix.lora_A.weight, other.mix.lora_A.weight)
    assert first.mix.lora_A.weight.abs().max() <= 8**-0.5  # Kaiming's bound for 8 inputs
    assert first.mix.lora_B.weight.abs().max() == 0


def test_layers_that_are_frozen_in_evaluation_mode_stay(model):
    model.encode.eval()
    adapted = fm.models.lora(model, 2, "encode.linear1", dropout=0.5)
    assert not adapted.encode.linear1.lora_dropout.training
    assert adapted.training


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"targets": "mixx"}, r"lora: 'targets' must match layers of the model, got 'mixx' \(did you mean 'mix'\?\)"),
        ({"targets": ["mix", "encode.linear9"]}, r"got 'encode.linear9' \(did you mean 'encode.linear"),
        ({"targets": "norm"}, r"must match layers that are nn.Linear, .*, got 'norm', which matches LayerNorm only"),
        ({"targets": "head", "train": "head.*"}, "must match layers that 'train' does not name, got 'head'"),
        ({"targets": []}, r"lora: 'targets' must be a name pattern or a list of them, got \[\]"),
        ({"targets": 3}, "lora: 'targets' must be a name pattern or a list of them, got 3"),
        ({"train": "head"}, r"lora: 'train' must match parameters of the model, got 'head'.*'layer\.\*'"),
        ({"rank": 0}, "lora: 'rank' must be an integer ≥ 1, got 0"),
        ({"alpha": 0}, "lora: 'alpha' must be > 0 or None, got 0"),
        ({"dropout": 1}, r"lora: 'dropout' must be in \[0, 1\), got 1"),
        ({"seed": "x"}, "lora: 'seed' must be an integer of 64 bits, got 'x'"),
        ({"seed": 0.5}, "lora: 'seed' must be an integer of 64 bits, got 0.5"),
        ({"model": 3}, "lora: 'model' must be a torch.nn.Module, got 3"),
        (
            {"targets": "out_proj", "dropout": 0.1},
            r"Cannot apply dropout to the adapter of 'encode.self_attn.out_proj'",
        ),
    ],
)
def test_mistakes(model, given, error):
    with pytest.raises(ValueError, match=error):
        fm.models.lora(**{"model": model, "rank": 2, "targets": "mix"} | given)


def test_adapters_on_adapters_and_merging_without_any_are_refused(model):
    with pytest.raises(ValueError, match=r"because the model has some; use fm.models.merge_lora\(model\) first"):
        fm.models.lora(fm.models.lora(model, 2, "mix"), 2, "head")
    with pytest.raises(ValueError, match=r"merge_lora: 'model' must have adapters of fm.models.lora, got 'Mixed'"):
        fm.models.merge_lora(model)


class Tied(nn.Module):
    """A language model whose last layer has the weights of the embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(TOKENS, 8), nn.Linear(8, TOKENS, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens):
        return self.head(self.embed(tokens).mean(1))


def test_tied_weights():
    torch.manual_seed(0)
    model = Tied()
    with pytest.raises(
        ValueError, match=r"Cannot train 'head.weight' because it is the same parameter as 'embed.weight'"
    ):
        fm.models.lora(model, 2, "embed", train="head.*")
    both = fm.models.lora(nn.ModuleList([model, nn.Linear(2, 2)]), 2, "1", train=["head.*", "embed.*"])
    assert both[0].head.weight.requires_grad
    adapted = fm.models.lora(model, 2, "head")
    assert adapted.head.base_layer.weight is adapted.embed.weight
    result = train(adapted)
    merged = fm.models.merge_lora(result.model)
    assert torch.equal(merged.embed.weight, model.embed.weight.double())
    assert not torch.equal(merged.head.weight, merged.embed.weight)
    with torch.no_grad():
        assert torch.allclose(merged(tokens()), result.predict(tokens()), rtol=0, atol=1e-12)


def test_export_resume_and_loading(model, tmp_path):
    adapted = partial(fm.models.lora, model, 2, "mix", train="head.*")
    whole = train(adapted(), rounds=3)
    train(adapted(), rounds=2, out=tmp_path / "run")
    result = train(adapted(), rounds=3, out=tmp_path / "run", resume=True)
    assert torch.equal(result.params, whole.params)
    loaded = fm.Result.load(tmp_path / "run", adapted())
    assert torch.equal(loaded.predict(tokens()), result.predict(tokens()))
    result.export(tmp_path / "model.safetensors", format="state_dict")
    again = adapted().double()
    from safetensors.torch import load_file

    again.load_state_dict(load_file(tmp_path / "model.safetensors"))
    with torch.no_grad():
        assert torch.allclose(again.eval()(tokens()), result.predict(tokens()), rtol=0, atol=1e-12)
    with torch.no_grad():
        model.mix.weight += 1  # another base
    with pytest.raises(ValueError, match="because its buffers or frozen parameters have other values"):
        _ = fm.Result.load(tmp_path / "run", adapted()).model


TABLE = RUN.replace(
    'name = "logistic"\nfeatures = 64', 'name = "cnn_digits"\nlora = {rank = 2, targets = ["*"], alpha = 4}'
)


def settings(tmp_path, text=TABLE, changes=()):
    (tmp_path / "run.toml").write_text(text)
    return config.load(config.RunConfig, tmp_path / "run.toml", list(changes))


def test_configuration_files(tmp_path):
    chosen = settings(tmp_path, changes=["seed=3"])
    model = chosen.make_model(3)
    same = fm.models.lora(fm.models.cnn_digits(seed=3), 2, "*", alpha=4, seed=3)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), same.parameters(), strict=True))
    result = chosen.run(chosen.algorithm, chosen.selection, 3, out=RunFolder(tmp_path / "run", chosen.kept()))
    assert len(result.params) == sum(p.numel() for p in same.parameters() if p.requires_grad)
    loaded = fm.Result.load(tmp_path / "run").model
    assert all(torch.equal(a, b) for a, b in zip(loaded.parameters(), result.model.parameters(), strict=True))
    assert settings(tmp_path, changes=["model.lora.rank=5"]).make_model(0)[0].lora_A.weight.shape[0] == 5
    assert "lora" not in registry.models()


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (("rank = 2", "rank = 0"), "model.lora.rank: must be an integer ≥ 1, got 0"),
        (("rank = 2, ", ""), "model.lora: lora needs rank"),
        (("alpha = 4", "alpa = 4"), r"model.lora.alpa: lora has no such field \(did you mean 'alpha'\?\)"),
        (('["*"]', '["fc9"]'), "model.lora.targets: must match layers of the model, got 'fc9'"),
        (('{rank = 2, targets = ["*"], alpha = 4}', "3"), "model.lora: must be a table with rank and targets, got 3"),
    ],
)
def test_mistakes_in_configuration_files(tmp_path, change, error):
    with pytest.raises(ValueError, match=error):
        settings(tmp_path, TABLE.replace(*change)).make_model(0)
