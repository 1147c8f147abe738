"""LSTM layers."""

import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, vmap

import fedmos as fm
from fedmos.config import registry as registry
from helpers.models import flat, samples


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


@pytest.mark.parametrize("packed", [False, True])
def test_a_users_lstm_trains_alike_on_both_engines(packed):
    model = Tagger(packed)
    loop, batched = (train(model, engine=engine).model for engine in ("loop", "batched"))
    for name, p in model.named_parameters():
        assert not torch.equal(loop.get_parameter(name), p.double()), name
        assert torch.allclose(loop.get_parameter(name), batched.get_parameter(name), rtol=0, atol=1e-10), name
