"""Dropout that networks call as a function draws from the run's streams, the same in every engine."""

from contextlib import nullcontext

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.overrides import TorchFunctionMode

import fedmos as fm
from fedmos.core.dropout import SampleAxis
from fedmos.core.functional_dropout import FunctionalDropout

T, E = 4, 6


class Pooled(nn.Module):
    """A layer over sequences (B, T, E), its samples on the second axis if `late`, then a linear layer."""

    def __init__(self, layer, late: bool = False) -> None:
        super().__init__()
        self.layer, self.late = layer, late
        self.head = nn.LazyLinear(3)
        self(torch.zeros(2, T, E))

    def forward(self, x):
        x = self.layer(x.transpose(0, 1)).transpose(0, 1) if self.late else self.layer(x)
        return self.head(x.mean(1))


class Recurrent(nn.Module):
    def __init__(self, kind, packed: bool = False, **more) -> None:
        super().__init__()
        self.rnn, self.packed = kind(E, 5, num_layers=3, dropout=0.4, batch_first=True, **more), packed

    def forward(self, x):
        if not self.packed:
            return self.rnn(x)[0]
        lengths = torch.arange(len(x)) % T + 1
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        return nn.utils.rnn.pad_packed_sequence(self.rnn(packed)[0], batch_first=True, total_length=T)[0]


class Attention(nn.Module):
    def __init__(self, need_weights: bool, **more) -> None:
        super().__init__()
        self.need_weights = need_weights
        self.attention = nn.MultiheadAttention(E, 2, dropout=0.3, batch_first=True, **more)

    def forward(self, x):
        return self.attention(x, x, x, need_weights=self.need_weights)[0]


class Function(nn.Module):
    """Dropout by a function of (x, whether it trains), after a trainable layer."""

    def __init__(self, function) -> None:
        super().__init__()
        self.linear, self.function = nn.Linear(E, E), function

    def forward(self, x):
        return self.function(self.linear(x), self.training)


def attend(x, training, **more):
    return F.scaled_dot_product_attention(x, x, x, dropout_p=0.3 * training, **more)


def grouped(x, training):
    q, k = x.view(-1, T, 2, E // 2).transpose(1, 2), x[..., : E // 2].unsqueeze(1)
    return F.scaled_dot_product_attention(q, k, k, dropout_p=0.3 * training, enable_gqa=True).transpose(1, 2).flatten(2)


def in_place(x, training):
    x = x + 0
    F.dropout(x, 0.5, training, inplace=True)
    return x


def folded(x, training):
    """All positions of a sample as rows of a matrix, adjacent."""
    return F.dropout(x.reshape(-1, E), 0.5, training).view(x.shape)


def interleaved(x, training):
    """All positions as rows, those of a sample not adjacent."""
    rows = x.transpose(0, 1).reshape(-1, E)
    return F.dropout(rows, 0.5, training).view(T, -1, E).transpose(0, 1)


CAUSAL = torch.ones(T, T, dtype=torch.bool).tril()
VECTORISED = {
    "encoder layer": lambda: Pooled(nn.TransformerEncoderLayer(E, 2, 8, batch_first=True)),
    "encoder layer, samples second": lambda: Pooled(nn.TransformerEncoderLayer(E, 2, 8), late=True),
    "encoder": lambda: Pooled(
        nn.TransformerEncoder(nn.TransformerEncoderLayer(E, 2, 8, batch_first=True, norm_first=True), 2, None, False)
    ),
    "attention": lambda: Pooled(Attention(False)),
    "attention with weights": lambda: Pooled(Attention(True)),
    "attention with more": lambda: Pooled(Attention(True, add_bias_kv=True, add_zero_attn=True)),
    "LSTM": lambda: Pooled(Recurrent(nn.LSTM)),
    "LSTM in two directions": lambda: Pooled(Recurrent(nn.LSTM, bidirectional=True, bias=False)),
    "GRU": lambda: Pooled(Recurrent(nn.GRU)),
    "RNN": lambda: Pooled(Recurrent(nn.RNN, nonlinearity="relu")),
    "F.dropout": lambda: Pooled(Function(lambda x, training: F.dropout(x, 0.5, training))),
    "torch.dropout": lambda: Pooled(Function(lambda x, training: torch.dropout(x, 0.5, training))),
    "in place": lambda: Pooled(Function(in_place)),
    "F.dropout1d": lambda: Pooled(Function(lambda x, training: F.dropout1d(x, 0.5, training))),
    "F.alpha_dropout": lambda: Pooled(Function(lambda x, training: F.alpha_dropout(x, 0.3, training))),
    "folded": lambda: Pooled(Function(folded)),
    "interleaved": lambda: Pooled(Function(interleaved)),
    "nn.Dropout on rows": lambda: Pooled(
        nn.Sequential(nn.Linear(E, E), nn.Flatten(0, 1), nn.Dropout(), nn.Unflatten(0, (-1, T)))
    ),
    "of a mask": lambda: Pooled(Function(lambda x, training: x * F.dropout(torch.ones(E), 0.5, training))),
    "causal": lambda: Pooled(Function(lambda x, training: attend(x, training, is_causal=True, scale=0.7))),
    "masked": lambda: Pooled(Function(lambda x, training: attend(x, training, attn_mask=CAUSAL))),
    "grouped": lambda: Pooled(Function(grouped)),
}


def federation(sizes=(5, 3, 2, 4)) -> fm.FederatedData:
    rng = np.random.default_rng(0)
    return fm.FederatedData.from_arrays([(rng.normal(size=(n, T, E)), rng.integers(3, size=n)) for n in sizes])


def train(model: nn.Module, **changes) -> fm.Result:
    how = {"rounds": 1, "local_steps": 2, "batch_size": 4, "dtype": torch.float64, "device": "cpu"}
    data = changes.pop("data", None) or federation()
    return fm.run(model, data, fm.FedAvg(lr=0.2), fm.Full(), **how | changes)


@pytest.mark.parametrize("case", VECTORISED)
def test_engines_agree_and_dropout_acts(case):
    torch.manual_seed(0)
    model = VECTORISED[case]()
    state = torch.get_rng_state()
    loop, batched = (train(model, engine=engine).params for engine in ("loop", "batched"))
    assert torch.allclose(loop, batched, rtol=0, atol=1e-10)
    assert torch.equal(loop, train(model, engine="loop").params)
    assert torch.equal(state, torch.get_rng_state())
    model.layer.eval()
    assert not torch.allclose(loop, train(model, engine="loop").params, atol=1e-4)


def test_packed_sequences_train_in_the_loop():
    torch.manual_seed(0)
    model = Pooled(Recurrent(nn.LSTM, packed=True))
    result = train(model, engine="auto")
    assert result.info["engine"] == "loop"
    assert torch.equal(result.params, train(model, engine="loop").params)
    model.layer.eval()
    assert not torch.allclose(result.params, train(model, engine="loop").params, atol=1e-4)


@pytest.mark.parametrize(("dtype", "atol"), [(torch.float32, 1e-5), (torch.float64, 1e-10)])
def test_bert_with_its_default_dropout(dtype, atol):
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
    config = transformers.BertConfig(vocab_size=20, max_position_embeddings=8, num_labels=3, **sizes)
    assert config.attention_probs_dropout_prob == config.hidden_dropout_prob == 0.1
    torch.manual_seed(0)
    model = transformers.BertForSequenceClassification(config).train()
    rng = np.random.default_rng(0)
    clients = [(rng.integers(20, size=(n, T)), rng.integers(3, size=n)) for n in (5, 3, 4)]
    data = fm.FederatedData.from_arrays(clients)
    loop, batched = (train(model, data=data, dtype=dtype, engine=e).params for e in ("loop", "batched"))
    assert torch.allclose(loop, batched, rtol=0, atol=atol)
    assert not torch.allclose(loop, train(model.bert.eval() and model, data=data, dtype=dtype).params, atol=1e-4)


def masks(function, **site) -> torch.Tensor:
    with FunctionalDropout(torch.arange(500), {0: SampleAxis(**site)}):
        return function(torch.ones(500, 4, 6))


def test_functional_dropout_drops_the_right_share():
    out = masks(lambda x: F.dropout(x, 0.3))
    assert sorted(out.unique().tolist()) == pytest.approx([0.0, 1 / 0.7])
    assert float((out == 0).double().mean()) == pytest.approx(0.3, abs=0.02)
    dropped = masks(lambda x: F.dropout1d(x, 0.5)) == 0
    assert torch.equal(dropped.any(2), dropped.all(2))
    assert float(masks(lambda x: F.dropout(x, 1.0)).abs().sum()) == 0
    assert torch.equal(masks(lambda x: F.dropout(x, 0.5, training=False)), torch.ones(500, 4, 6))
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(500, 40, generator=generator)
    with FunctionalDropout(torch.arange(500), {}):
        kept = F.alpha_dropout(noise, 0.3, training=True)
    assert float(kept.mean()) == pytest.approx(0, abs=0.03)
    assert float(kept.std()) == pytest.approx(1, abs=0.03)


def test_two_calls_draw_two_masks_and_attention_without_dropout_is_pytorchs():
    with FunctionalDropout(torch.arange(3), {}):
        assert not torch.equal(F.dropout(torch.ones(3, 50)), F.dropout(torch.ones(3, 50)))
    q, k, v = torch.randn(3, 2, 2, T, E, generator=torch.Generator().manual_seed(0))
    masked = torch.ones(T, T, dtype=torch.bool).tril(-1)  # the first query attends to nothing
    for how in ({}, {"is_causal": True}, {"attn_mask": masked}, {"attn_mask": masked.float()}, {"scale": 2.0}):
        with FunctionalDropout(None, {}, []):  # records, so nothing is dropped
            ours = F.scaled_dot_product_attention(q, k, v, dropout_p=0.5, **how)
        assert torch.allclose(ours, F.scaled_dot_product_attention(q, k, v, **how), atol=1e-5)


class Passing(TorchFunctionMode):
    """A mode that changes nothing, as `make_fx` has."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("case", ["encoder layer", "attention with weights", "LSTM", "F.dropout"])
def test_other_modes_do_not_bypass_it(case):
    model, x = VECTORISED[case]().train(), torch.ones(3, T, E)
    state = torch.get_rng_state()
    for outer in (nullcontext(), Passing()):
        with outer, FunctionalDropout(torch.arange(3), {0: SampleAxis(0, 2)} if "weights" in case else {}):
            if isinstance(model.layer, nn.TransformerEncoderLayer):
                model.layer.self_attn(x, x, x, need_weights=False)
            else:
                model(x)
    assert torch.equal(state, torch.get_rng_state())


class Forgetful(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(E, 3)

    def forward(self, x):
        return self.linear(F.dropout(x.mean(1), 0.5))


def test_dropout_that_is_never_off_is_refused():
    with pytest.raises(ValueError, match=r"on in evaluation mode, too.*training=self\.training"):
        train(Forgetful())
