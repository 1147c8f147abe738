"""Networks with attention train vectorised: masks, dropout and Hugging Face's models, in every engine."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fedmos as fm
from fedmos.kernels import attention as kernel
from helpers.compiling import scalar_code
from helpers.conformance import DEVICE

T, E, TOKENS = 5, 8, 20
BANNED = {
    "causal": lambda d: nn.Transformer.generate_square_subsequent_mask(T, device=d, dtype=torch.float64),
    "bool": lambda d: torch.ones(T, T, dtype=torch.bool, device=d).triu(1),
    "none": lambda d: None,
}


def padding(tokens):
    """Tokens below 5 are padding, but for the first position."""
    return (tokens < 5) & (torch.arange(T, device=tokens.device) > 0)


class Tokens(nn.Module):
    """An embedding, `body(embedded, tokens)`, a mean and a linear layer."""

    def __init__(self, layers, body) -> None:
        super().__init__()
        self.embed, self.layers, self.body, self.head = nn.Embedding(TOKENS, E), layers, body, nn.Linear(E, 3)

    def forward(self, tokens):
        return self.head(self.body(self.layers, self.embed(tokens), tokens).mean(1))


def encoder(mask="none", padded=False, dropout=0.1, layers=2, **more):
    layer = nn.TransformerEncoderLayer(E, 2, 16, dropout, batch_first=True)

    def body(layers, x, tokens):
        pad = padding(tokens) if padded else None
        if pad is not None and mask == "causal":  # PyTorch wants both masks of one type
            pad = torch.zeros(pad.shape, dtype=torch.float64, device=x.device).masked_fill(pad, -torch.inf)
        return layers(x, BANNED[mask](x.device), src_key_padding_mask=pad, **more)

    return Tokens(nn.TransformerEncoder(layer, layers, enable_nested_tensor=False), body)


def decoder(dropout=0.1):
    layer = nn.TransformerDecoderLayer(E, 2, 16, dropout, batch_first=True)

    def body(layers, x, tokens):
        pad = padding(tokens)
        return layers(x, x.flip(1), tgt_mask=BANNED["causal"](x.device), memory_key_padding_mask=pad)

    return Tokens(nn.TransformerDecoder(layer, 2), body)


def multihead(need_weights=False, per_head=False, **more):
    layer = nn.MultiheadAttention(E, 2, **{"dropout": 0.2, "batch_first": True} | more)

    def body(layer, x, tokens):
        k, v = x[..., : layer.kdim], x[..., : layer.vdim]
        pad, mask = padding(tokens), BANNED["bool"](x.device)
        if not layer.batch_first:
            x, k, v = (t.transpose(0, 1) for t in (x, k, v))
        y, weights = layer(x, k, v, pad, need_weights, None if per_head else mask, average_attn_weights=not per_head)
        y = y if layer.batch_first else y.transpose(0, 1)
        return y if weights is None else y + weights.flatten(1).square().mean(1)[:, None, None]

    return Tokens(layer, body)


def learned_bias():
    """A bias of the attention that depends on parameters, of each head."""

    def body(bias, x, tokens):
        q = x.unflatten(-1, (2, -1)).transpose(1, 2)
        y = F.scaled_dot_product_attention(
            q, q, q, attn_mask=bias(torch.arange(T * T, device=x.device)).view(T, T, 2).permute(2, 0, 1)
        )
        return y.transpose(1, 2).flatten(2)

    return Tokens(nn.Embedding(T * T, 2), body)


NETWORKS = {
    "encoder": encoder,
    "causal encoder": lambda: encoder("causal"),
    "causal encoder without dropout": lambda: encoder("causal", dropout=0.0),
    "causal encoder with a hint": lambda: encoder("causal", dropout=0.0, is_causal=True),
    "padded encoder without dropout": lambda: encoder(padded=True, dropout=0.0),
    "causal and padded encoder": lambda: encoder("causal", True),
    "bool masks": lambda: encoder("bool", True),
    "decoder": decoder,
    "decoder without dropout": lambda: decoder(0.0),
    "attention": multihead,
    "attention without dropout": lambda: multihead(dropout=0.0),
    "attention with weights": lambda: multihead(need_weights=True),
    "attention with weights of each head": lambda: multihead(need_weights=True, per_head=True),
    "attention with biases of keys": lambda: multihead(add_bias_kv=True, add_zero_attn=True, dropout=0.0),
    "attention with other sizes": lambda: multihead(kdim=4, vdim=6, bias=False),
    "attention, samples second": lambda: multihead(batch_first=False, dropout=0.0),
    "learned bias": learned_bias,
}


def federation(masked=False, sizes=(5, 3, 4)) -> fm.FederatedData:
    rng = np.random.default_rng(0)
    clients = []
    for n in sizes:
        tokens, labels = rng.integers(1, TOKENS, size=(n, T)), rng.integers(3, size=n)
        mask = (np.arange(T) < rng.integers(2, T + 1, size=(n, 1))).astype(np.int64)
        clients.append(({"input_ids": tokens, "attention_mask": mask} if masked else tokens, labels))
    return fm.FederatedData.from_arrays(clients)


def train(model, data=None, **changes) -> fm.Result:
    how = {"rounds": 1, "local_steps": 3, "batch_size": 3, "dtype": torch.float64, "device": DEVICE}
    how |= {"algorithm": fm.FedAvg(lr=0.3), "selection": fm.Full()}
    return fm.run(model, data or federation(), **how | changes)


def agree(model, data=None, **changes) -> None:
    loop, batched = (train(model, data, engine=engine, **changes).params for engine in ("loop", "batched"))
    assert bool(loop.isfinite().all())
    assert torch.allclose(loop, batched, rtol=0, atol=1e-10)


@pytest.mark.parametrize("name", NETWORKS)
def test_engines_agree(name):
    torch.manual_seed(0)
    agree(NETWORKS[name]())


SMALL = {"hidden_size": E, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
TEXT = {"vocab_size": TOKENS, "num_labels": 3, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 1}
FAMILIES = {
    "Bert": TEXT | SMALL | {"max_position_embeddings": T},
    "DistilBert": TEXT | {"dim": E, "n_layers": 2, "n_heads": 2, "hidden_dim": 16, "max_position_embeddings": T},
    "GPT2": TEXT | {"n_embd": E, "n_layer": 2, "n_head": 2, "n_positions": T},
}
OTHER_FAMILIES = {
    **dict.fromkeys(("Electra", "Albert", "Deberta", "GPTNeoX", "Phi"), TEXT | SMALL),
    **{name: TEXT | SMALL | {"max_position_embeddings": T + 4} for name in ("Roberta", "XLMRoberta", "MPNet")},
    **{name: TEXT | SMALL | {"num_key_value_heads": 1} for name in ("Llama", "Qwen2")},
    "Mistral": TEXT | SMALL | {"num_key_value_heads": 1, "sliding_window": 3},
}


def hugging_face(family, task, **config) -> nn.Module:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    return getattr(transformers, f"{family}For{task}Classification")(getattr(transformers, f"{family}Config")(**config))


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("family", FAMILIES)
def test_hugging_face_text_models_with_and_without_attention_masks(family, attention):
    """With the dropout of their defaults, and without."""
    model = hugging_face(family, "Sequence", attn_implementation=attention, **FAMILIES[family])
    agree(model, federation(masked=True), local_steps=2)
    agree(model.eval(), local_steps=1)


@pytest.mark.parametrize("family", OTHER_FAMILIES)
@pytest.mark.extended
def test_further_hugging_face_text_models(family):
    agree(hugging_face(family, "Sequence", **OTHER_FAMILIES[family]), federation(masked=True), local_steps=2)


def test_transformers_is_left_as_it_is():
    library = pytest.importorskip("transformers.utils.import_utils")
    before = dict(vars(library))
    train(hugging_face("Bert", "Sequence", **FAMILIES["Bert"]), federation(masked=True), engine="batched")
    assert {name: v for name, v in vars(library).items() if v is not before.get(name)} == {}


def _ignore_bidirectional_mask_sdpa(mask):  # a name of transformers', in the user's module
    return mask.all()


def test_values_that_the_code_of_a_user_reads_get_no_answer():
    """Only functions of `transformers` that read masks to omit them are answered."""

    class Reads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.head = nn.Embedding(TOKENS, E), nn.Linear(E, 3)

        def forward(self, input_ids, attention_mask):
            x = self.embed(input_ids)
            x = x if _ignore_bidirectional_mask_sdpa(attention_mask) else x * attention_mask[:, :, None]
            return self.head(x.mean(1))

    with pytest.raises(ValueError, match="Reads: it reads the value of a tensor"):
        train(Reads(), federation(masked=True), engine="batched")
    assert train(Reads(), federation(masked=True), engine="auto").info["engine"] == "loop"


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_hugging_face_image_models(attention):
    config = {"image_size": 4, "patch_size": 2, "num_channels": 1, "num_labels": 3, **SMALL}
    rng = np.random.default_rng(0)
    data = fm.FederatedData.from_arrays([(rng.normal(size=(n, 1, 4, 4)), rng.integers(3, size=n)) for n in (5, 3, 4)])
    agree(hugging_face("ViT", "Image", attn_implementation=attention, **config), data)


COMPILED = {
    "causal": lambda: encoder("causal", dropout=0.0, layers=1),
    "padded, with dropout": multihead,
}


def compiled(model, data, monkeypatch, **how) -> torch.Tensor:
    monkeypatch.setenv("FEDMOS_ENGINE", "compiled")
    result = train(model, data, **how)
    assert result.info["compiled"]
    return result.params


@pytest.mark.parametrize("name", COMPILED)
@pytest.mark.extended
def test_compiled_programs_agree(name, monkeypatch):
    torch.manual_seed(0)
    model, data, how = COMPILED[name](), federation(sizes=(3, 3)), {"local_steps": 1}
    loop = train(model, data, engine="loop", **how).params
    with scalar_code():
        assert torch.allclose(loop, compiled(model, data, monkeypatch, **how), rtol=0, atol=1e-10)


TRACED = {name: NETWORKS[name] for name in ("causal and padded encoder",)} | {
    "GPT2": lambda: hugging_face("GPT2", "Sequence", **FAMILIES["GPT2"])
}


@pytest.mark.parametrize("name", TRACED)
@pytest.mark.extended
def test_programs_for_the_compiler_agree(name, monkeypatch):
    """Programs as they are given to the compiler, which takes long."""
    torch.manual_seed(0)
    model, data = TRACED[name](), federation(masked=name in FAMILIES, sizes=(3, 3))
    how = {"local_steps": 1}
    loop = train(model, data, engine="loop", **how).params
    monkeypatch.setattr(torch._inductor, "compile", lambda program, arguments: program)
    assert torch.allclose(loop, compiled(model, data, monkeypatch, **how), rtol=0, atol=1e-10)


@pytest.mark.parametrize("clients", [2, 6])
def test_a_layer_calls_attention_once_for_all_clients(clients, monkeypatch):
    model, data = encoder("causal", dropout=0.0, layers=3), federation(sizes=[3] * clients)
    shapes = []
    attend = kernel._attend
    monkeypatch.setattr(kernel, "_attend", lambda q, *more: shapes.append(tuple(q.shape)) or attend(q, *more))
    train(model, data, engine="batched", local_steps=1)
    of_cohort = [shape for shape in shapes if shape[0] == clients * 3]
    # Layers, each in the forward and in the backward pass. On a GPU, a program is called again to be captured.
    assert of_cohort
    assert len(of_cohort) % (3 * 2) == 0
    assert len(of_cohort) == 3 * 2 or DEVICE != "cpu"
    shapes.clear()
    train(model, data, engine="loop", local_steps=1)
    assert not [shape for shape in shapes if shape[0] > 5]  # the trial before the run has five samples


def test_runs_side_by_side_are_evaluated_together():
    torch.manual_seed(0)
    model, rates = encoder("causal", True, layers=1), (0.1, 0.3)
    alone = [train(model, algorithm=fm.FedAvg(lr=lr), engine="loop") for lr in rates]
    how = {"local_steps": 3, "batch_size": 3, "rounds": 1, "dtype": torch.float64, "device": DEVICE}
    runs = [{"algorithm": fm.FedAvg(lr=lr)} for lr in rates]
    together = fm.run_many(runs, model=model, data=federation(), selection=fm.Full(), engine="batched", **how)
    for a, b in zip(alone, together, strict=True):
        assert torch.allclose(a.params, b.params, rtol=0, atol=1e-10)
        assert a.history[-1].train_loss == pytest.approx(b.history[-1].train_loss, abs=1e-10)


def test_other_models_are_called_without_the_mode(monkeypatch):
    model = nn.Sequential(nn.Flatten(), nn.Linear(T, 3))
    entered = []
    from fedmos.core import functional_dropout

    enter = functional_dropout.FunctionalDropout.__enter__
    monkeypatch.setattr(
        functional_dropout.FunctionalDropout,
        "__enter__",
        lambda mode: entered.append(kernel.in_transform()) or enter(mode),
    )
    rng = np.random.default_rng(0)
    data = fm.FederatedData.from_arrays([(rng.normal(size=(3, T)), rng.integers(3, size=3)) for _ in range(3)])
    train(model, data, engine="batched")
    assert entered  # by the trial, which is not vectorised
    assert not any(entered)
    train(encoder(dropout=0.0), engine="batched")
    assert any(entered)
