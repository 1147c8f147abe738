"""Recurrent networks as users write them train alike client by client and vectorised, dropout and packing included."""

import logging

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

import fedmos as fm
from helpers.compiling import scalar_code
from helpers.conformance import DEVICE

WORDS, T, E, H = 12, 6, 4, 5


class Text(nn.Module):
    """Embeds tokens, of which 0 is padding, and classifies by what `read` makes of a recurrent layer."""

    def __init__(self, layer: nn.Module, read, width: int = H) -> None:
        super().__init__()
        self.embedding, self.layer, self.read = nn.Embedding(WORDS, E, padding_idx=0), layer, read
        self.start, self.head = nn.Parameter(torch.randn(1, 1, H)), nn.Linear(width, 3)

    def forward(self, tokens):
        x, lengths = self.embedding(tokens), (tokens != 0).sum(1)
        return self.head(self.read(self, x, lengths))

    def packed(self, x, lengths, **how):
        return pack_padded_sequence(x, lengths.cpu(), batch_first=True, **{"enforce_sorted": False} | how)


def last_output(net, x, lengths):
    return net.layer(x)[0][:, -1]


def last_state(net, x, lengths):
    """The last state of the last layer, in both directions, of packed sequences."""
    _, state = net.layer(net.packed(x, lengths))
    state = state[0] if isinstance(state, tuple) else state
    return torch.cat(list(state[-1 - net.layer.bidirectional :]), -1)


def steps_first(net, x, lengths):
    """The parameter `start` as the initial state of both layers."""
    start = net.start.expand(2, len(x), H).contiguous()
    return net.layer(x.transpose(0, 1), start)[0].mean(0)


def sample_by_sample(net, x, lengths):
    return torch.stack([net.layer(sample)[0].mean(0) for sample in x.unbind()])


def restored(net, x, lengths):
    outputs, _ = pad_packed_sequence(net.layer(net.packed(x, lengths))[0], batch_first=True, total_length=T)
    return outputs.mean(1)


def restored_masked(net, x, lengths):
    """As many steps as the longest sequence has, of which each sample uses its own."""
    outputs, found = pad_packed_sequence(net.layer(net.packed(x, lengths))[0], batch_first=True)
    return outputs.sum(1) / found.to(x.device)[:, None]


def restored_last(net, x, lengths):
    outputs, found = pad_packed_sequence(net.layer(net.packed(x, lengths))[0], batch_first=True)
    return outputs[torch.arange(len(x)), found - 1]


def twice(net, x, lengths):
    """Two passes over a packed sequence, with a function of its rows in between."""
    packed, _ = net.layer(net.packed(x, lengths))
    again = PackedSequence(packed.data.tanh()[:, :E], *packed[1:])
    return net.layer(again)[1][-1]


def cells(net, x, lengths):
    state = None
    for step in x.unbind(1):
        state = net.layer(step, state)
    return state[0] if isinstance(state, tuple) else state


SHORT = {"batch_first": True}
NETWORKS = {
    "LSTM": lambda: Text(nn.LSTM(E, H, **SHORT), last_output),
    "LSTM, dropout, two directions": lambda: Text(
        nn.LSTM(E, H, 3, dropout=0.4, bidirectional=True, **SHORT), last_output, 2 * H
    ),
    "LSTM, projected": lambda: Text(nn.LSTM(E, H, 2, proj_size=3, dropout=0.2, **SHORT), last_output, 3),
    "GRU, steps first, own start": lambda: Text(nn.GRU(E, H, 2, dropout=0.3), steps_first),
    "RNN, ReLU, no bias": lambda: Text(nn.RNN(E, H, nonlinearity="relu", bias=False, **SHORT), last_output),
    "GRU, sample by sample": lambda: Text(nn.GRU(E, H), sample_by_sample),
    "packed LSTM": lambda: Text(nn.LSTM(E, H, **SHORT), last_state),
    "packed GRU, two directions": lambda: Text(nn.GRU(E, H, 2, bidirectional=True, **SHORT), last_state, 2 * H),
    "packed, restored": lambda: Text(nn.LSTM(E, H, bidirectional=True, **SHORT), restored, 2 * H),
    "packed, restored, masked": lambda: Text(nn.LSTM(E, H, **SHORT), restored_masked),
    "packed, restored, last": lambda: Text(nn.RNN(E, H, **SHORT), restored_last),
    "packed twice": lambda: Text(nn.GRU(E, H, **SHORT), twice),
    "LSTMCell": lambda: Text(nn.LSTMCell(E, H), cells),
    "GRUCell": lambda: Text(nn.GRUCell(E, H), cells),
    "RNNCell": lambda: Text(nn.RNNCell(E, H), cells),
}


def federation(sizes=(5, 3, 4)) -> fm.FederatedData:
    """Sequences of 1 to T tokens; those of the second client are short."""
    rng = np.random.default_rng(0)
    clients = []
    for i, n in enumerate(sizes):
        tokens = rng.integers(1, WORDS, size=(n, T))
        lengths = rng.integers(1, 3 if i == 1 else T + 1, size=n)
        clients.append((np.where(np.arange(T) < lengths[:, None], tokens, 0), rng.integers(3, size=n)))
    return fm.FederatedData.from_arrays(clients)


def train(model: nn.Module, sizes=(5, 3, 4), **changes) -> fm.Result:
    how = {"rounds": 1, "local_steps": 3, "batch_size": 4, "dtype": torch.float64, "device": DEVICE}
    return fm.run(model, federation(sizes), fm.FedAvg(lr=0.5), fm.Full(), **how | changes)


@pytest.mark.parametrize("case", NETWORKS)
def test_engines_agree(case):
    torch.manual_seed(0)
    model = NETWORKS[case]()
    loop, batched = (train(model, engine=engine).params for engine in ("loop", "batched"))
    assert torch.allclose(loop, batched, rtol=0, atol=1e-10)
    start = torch.cat([p.detach().double().flatten() for p in model.parameters()])
    assert float((loop - start).norm()) > 0.01


def test_dropout_between_layers_of_packed_sequences():
    """Masks follow the order of sequences by length, so batches must not be padded."""
    torch.manual_seed(0)
    model = Text(nn.LSTM(E, H, 3, dropout=0.4, bidirectional=True, batch_first=True), last_state, 2 * H)
    loop, batched = (train(model, (4, 4, 4), engine=engine).params for engine in ("loop", "batched"))
    assert torch.allclose(loop, batched, rtol=0, atol=1e-10)
    with pytest.raises(ValueError, match=r"dropout between recurrent layers.*use engine='loop'"):
        train(model, engine="batched")
    if DEVICE == "cpu":  # cuDNN has no backward pass in evaluation mode
        model.layer.eval()
        assert not torch.allclose(loop, train(model, (4, 4, 4), engine="loop").params, atol=1e-4)


@pytest.mark.parametrize("reduce", ["mean", "amax", "last"])
def test_results_that_depend_on_the_longest_sequence_are_computed_client_by_client(reduce, caplog):
    def read(net, x, lengths):
        outputs, _ = pad_packed_sequence(net.layer(net.packed(x, lengths))[0], batch_first=True)
        return outputs[:, -1] if reduce == "last" else getattr(outputs, reduce)(1)

    torch.manual_seed(0)
    with caplog.at_level(logging.WARNING, logger="fedmos"):
        assert train(Text(nn.GRU(E, H, batch_first=True), read)).info["engine"] == "loop"
    assert "total_length" in caplog.text
    with pytest.raises(ValueError, match=r"longest sequence of a batch.*total_length.*use engine='loop'"):
        train(Text(nn.GRU(E, H, batch_first=True), read), engine="batched")


@pytest.mark.parametrize("mean", [False, True])
def test_masks_of_the_length_of_the_inputs_are_taken_beside_packed_sequences(mean):
    """Then no further padding can be tried."""

    def read(net, x, lengths):
        y, _ = pad_packed_sequence(net.layer(net.packed(x, lengths))[0], batch_first=True)
        mask = torch.arange(T, device=x.device) < lengths[:, None]
        y = y * mask[:, : y.size(1), None]
        return y.mean(1) if mean else y.sum(1)

    torch.manual_seed(0)
    model = Text(nn.GRU(E, H, batch_first=True), read)
    if mean:
        with pytest.raises(ValueError, match="longest sequence of a batch"):
            train(model, engine="batched")
        return
    loop, batched = (train(model, engine=engine).params for engine in ("loop", "batched"))
    assert torch.allclose(loop, batched, rtol=0, atol=1e-10)


class Reversed(nn.LSTM):
    def forward(self, x, hx=None):
        y, state = super().forward(x.flip(1), hx)
        return y.flip(1), state


def test_subclasses_of_recurrent_layers():
    torch.manual_seed(0)
    model = Text(Reversed(E, H, 2, batch_first=True), lambda net, x, lengths: net.layer(x)[0][:, 0])
    loop, batched = (train(model, engine=engine).params for engine in ("loop", "batched"))
    assert torch.allclose(loop, batched, rtol=0, atol=1e-10)


def test_what_cannot_be_vectorised_names_the_module():
    class Counting(nn.Module):
        def forward(self, x):
            return x[: int(x.sum()) % 2 + 50]

    def read(net, x, lengths):
        return net.layer[1](net.layer[0](x)[0][:, -1])

    torch.manual_seed(0)
    model = Text(nn.ModuleList([nn.GRU(E, H, batch_first=True), Counting()]), read)
    with pytest.raises(ValueError, match=r"because 'layer.1' \(Counting\): it reads the value of a tensor.*'loop'"):
        train(model, engine="batched")

    def sizes(net, x, lengths):
        packed, (state,) = net.layer(net.packed(x, lengths))
        return state + 0 * packed.batch_sizes.float().mean()

    with pytest.raises(ValueError, match=r"Text: the model uses batch_sizes\.float of a packed sequence"):
        train(Text(nn.GRU(E, H, batch_first=True), sizes), engine="batched")


@pytest.mark.parametrize("read", [torch.Tensor.tolist, torch.Tensor.numpy])
def test_lengths_as_numbers_are_answered_with_what_to_do(read):
    def listed(net, x, lengths):
        return net.layer(pack_padded_sequence(x, read(lengths), batch_first=True, enforce_sorted=False))[1][0]

    with pytest.raises(ValueError, match=r"Text: it reads a tensor by \.tolist\(\).*takes lengths as a tensor"):
        train(Text(nn.GRU(E, H, batch_first=True), listed), engine="batched", device="cpu")


def test_impossible_lengths_do_not_pass_for_results():
    """PyTorch refuses sequences without steps; a program of a cohort cannot look, and its results are NaN."""
    from fedmos.core.flat_model import FlatModel

    model = FlatModel(Text(nn.LSTM(E, H, batch_first=True), last_state), torch.device("cpu"), torch.float64)
    tokens = torch.randint(1, WORDS, (2, 3, T), generator=torch.Generator().manual_seed(0))
    tokens[1, 0] = 0
    outputs = torch.func.vmap(model)(model.initial().expand(2, -1), tokens)
    assert outputs.isnan().any(-1).tolist() == [[False] * 3, [True, False, False]]


@pytest.mark.extended
def test_a_compiled_network_computes_the_same(monkeypatch):
    """The time loop is one operation of the program, however long it is."""

    class Rows(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.GRU(1, 3, batch_first=True)

        def forward(self, x):
            return self.layer(x)[1][0]

    torch.manual_seed(0)
    model, rng = Rows(), np.random.default_rng(0)
    data = fm.FederatedData.from_arrays([(rng.normal(size=(2, 50, 1)), rng.integers(3, size=2)) for _ in range(2)])
    how = {"rounds": 1, "local_steps": 1, "batch_size": 2, "dtype": torch.float64, "device": DEVICE}
    loop = fm.run(model, data, fm.FedAvg(lr=0.5), fm.Full(), **how, engine="loop").params
    monkeypatch.setenv("FEDMOS_ENGINE", "compiled")
    with scalar_code():
        result = fm.run(model, data, fm.FedAvg(lr=0.5), fm.Full(), **how)
    assert result.info["compiled"]
    assert torch.allclose(loop, result.params, rtol=0, atol=1e-12)


def test_runs_side_by_side():
    torch.manual_seed(0)
    model = NETWORKS["packed GRU, two directions"]()
    how = {
        "rounds": 1,
        "local_steps": 2,
        "batch_size": 3,
        "dtype": torch.float64,
        "device": DEVICE,
        "engine": "batched",
    }
    changes = [{"seed": 0}, {"seed": 1}]
    results = fm.run_many(
        changes, model=model, data=federation(), algorithm=fm.FedAvg(lr=0.3), selection=fm.Full(), **how
    )
    for result, change in zip(results, changes, strict=True):
        alone = fm.run(model, federation(), fm.FedAvg(lr=0.3), fm.Full(), **how, **change)
        assert torch.allclose(result.params, alone.params, rtol=0, atol=1e-12)
