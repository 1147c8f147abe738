"""Networks as users of PyTorch write them, each with the inputs that it takes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrizations
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import fedmos as fm

TOKENS, T = 20, 6


def rows(rng, n):
    return rng.normal(size=(n, 8))


def images(rng, n):
    return rng.normal(size=(n, 3, 8, 8))


def waves(rng, n):
    return rng.normal(size=(n, 2, 12))


def sequences(rng, n):
    return rng.normal(size=(n, T, 8))


def tokens(rng, n):
    return rng.integers(1, TOKENS, size=(n, T))


def masked(rng, n):
    mask = (np.arange(T) < rng.integers(2, T + 1, size=(n, 1))).astype(np.int64)
    return {"tokens": tokens(rng, n), "mask": mask}


def pairs(rng, n):
    return {"a": rows(rng, n), "b": rows(rng, n)}


def graphs(rng, n):
    return {"x": rng.normal(size=(n, 5, 4)), "adjacency": (rng.random((n, 5, 5)) < 0.4).astype(np.float32)}


class Net(nn.Module):
    """Modules, parameters and buffers by name, and a function of them and of the inputs."""

    def __init__(self, function: Callable[..., Any], parts: dict[str, Callable[[], Any]]) -> None:
        super().__init__()
        self.function = function
        for name, make in parts.items():
            part = make()
            if isinstance(part, torch.Tensor) and not isinstance(part, nn.Parameter):
                self.register_buffer(name, part)
            else:
                setattr(self, name, part)

    def forward(self, *args, **kwargs):
        return self.function(self, *args, **kwargs)


@dataclass(frozen=True)
class Case:
    function: Callable[..., Any]
    inputs: Callable[..., Any]
    parts: dict[str, Callable[[], Any]]
    options: dict[str, Any] = field(default_factory=dict)

    def model(self) -> nn.Module:
        torch.manual_seed(0)
        return Net(self.function, self.parts)

    def data(self, sizes=(5, 3, 4)) -> fm.FederatedData:
        rng = np.random.default_rng(1)
        return fm.FederatedData.from_arrays([(self.inputs(rng, n), rng.integers(3, size=n)) for n in sizes])


NETWORKS: dict[str, Case] = {}


def network(inputs, options=None, **parts):
    """Register a function (net, inputs) as a network with some parts."""

    def register(function):
        NETWORKS[function.__name__] = Case(function, inputs, parts, options or {})
        return function

    return register


def parameter(*shape: int) -> Callable[[], nn.Parameter]:
    return lambda: nn.Parameter(0.3 * torch.randn(*shape))


def linear(n: int, m: int) -> Callable[[], nn.Module]:
    return lambda: nn.Linear(n, m)


# Attention
@network(tokens, embed=lambda: nn.Embedding(TOKENS, 8), body=lambda: nn.Transformer(8, 2, 1, 1, 16), head=linear(8, 3))
def encoder_decoder(net, x):
    mask = net.body.generate_square_subsequent_mask(x.size(1), device=x.device, dtype=torch.float64)
    padding = (x < 5) & (torch.arange(x.size(1), device=x.device) > 0)
    source, target = net.embed(x).transpose(0, 1), net.embed(x.roll(1, 1)).transpose(0, 1)
    y = net.body(source, target, tgt_mask=mask, src_key_padding_mask=padding, memory_key_padding_mask=padding)
    return net.head(y.mean(0))


@network(sequences, project=linear(8, 24), head=linear(8, 3))
def attention_by_einsum(net, x):
    b, t, _ = x.shape
    q, k, v = net.project(x).view(b, t, 3, 2, 4).unbind(2)
    allowed = torch.tril(torch.ones(t, t, device=x.device)).bool()
    weights = torch.einsum("bihd,bjhd->bhij", q, k).masked_fill(~allowed, float("-inf")).softmax(-1)
    return net.head(torch.einsum("bhij,bjhd->bihd", weights, v).reshape(b, t, -1)[:, -1])


@network(
    sequences,
    query=parameter(1, 2, 8),
    body=lambda: nn.MultiheadAttention(8, 2, 0.1, batch_first=True),
    head=linear(16, 3),
)
def attention_with_a_learned_query(net, x):
    y, weights = net.body(net.query.expand(x.size(0), -1, -1), x, x, key_padding_mask=x[:, :, 0] > 1.5)
    return net.head((y * weights.sum(-1, keepdim=True)).flatten(1))


@network(
    sequences, project=linear(8, 24), turns=lambda: torch.polar(torch.ones(T, 2), torch.rand(T, 2)), head=linear(8, 3)
)
def rotary_attention_with_complex_numbers(net, x):
    def turned(v):
        return torch.view_as_real(torch.view_as_complex(v.unflatten(-1, (2, 2))) * net.turns[:, None]).flatten(-2)

    q, k, v = net.project(x).unflatten(-1, (3, 2, 4)).unbind(2)
    q, k, v = turned(q).transpose(1, 2), turned(k).transpose(1, 2), v.transpose(1, 2)
    return net.head(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2).mean(1))


# Recurrence
@network(
    masked,
    embed=lambda: nn.Embedding(TOKENS, 4),
    body=lambda: nn.LSTM(4, 3, 2, batch_first=True, bidirectional=True),
    head=linear(6, 3),
)
def packed_sequences(net, tokens, mask):
    lengths = mask.sum(1)
    packed = pack_padded_sequence(net.embed(tokens), lengths.cpu(), batch_first=True, enforce_sorted=False)
    y, _ = pad_packed_sequence(net.body(packed)[0], batch_first=True)
    return net.head(y.sum(1) / lengths[:, None])


@network(sequences, cell=lambda: nn.GRUCell(8, 5), head=linear(5, 3))
def cells_in_a_loop(net, x):
    h = torch.zeros(x.size(0), 5, device=x.device, dtype=x.dtype)
    for t in range(x.size(1)):
        h = net.cell(x[:, t], h)
    return net.head(h)


@network(sequences, body=lambda: nn.RNN(8, 5, batch_first=True), state=parameter(1, 1, 5), head=linear(5, 3))
def learned_first_state(net, x):
    return net.head(net.body(x, net.state.expand(-1, x.size(0), -1).contiguous())[0][:, -1])


@network(sequences, body=lambda: nn.GRU(8, 5, 2, batch_first=True, dropout=0.1), head=linear(5, 3))
def first_state_as_in_tutorials(net, x):
    state = torch.zeros(2, x.size(0), 5, device=x.device, dtype=x.dtype).requires_grad_()
    return net.head(net.body(x, state.detach())[0][:, -1, :])


# Convolutions
@network(
    waves,
    a=lambda: nn.utils.weight_norm(nn.Conv1d(2, 4, 3)),
    b=lambda: parametrizations.weight_norm(nn.Conv1d(4, 4, 3, dilation=2)),
    head=linear(4, 3),
)
def causal_convolutions_with_weight_norm(net, x):
    x = F.relu(net.a(F.pad(x, (2, 0))))
    return net.head(F.relu(net.b(F.pad(x, (4, 0)))).mean(-1))


@network(
    images,
    grow=lambda: nn.Conv2d(3, 8, 1),
    depth=lambda: nn.Conv2d(8, 8, 3, 2, 1, groups=8),
    norm=lambda: nn.GroupNorm(2, 8),
    squeeze=lambda: nn.Conv2d(8, 8, 1),
    head=linear(8, 3),
)
def inverted_residual_with_squeeze_and_excitation(net, x):
    x = F.relu6(net.norm(net.depth(F.hardswish(net.grow(x), inplace=True))), inplace=True)
    x = x * F.hardsigmoid(net.squeeze(F.adaptive_avg_pool2d(x, 1)))
    return net.head(F.avg_pool2d(x, x.shape[2:]).view(x.size(0), -1))


@network(
    images,
    a=lambda: nn.Conv2d(3, 4, 3, padding=1),
    b=lambda: nn.Conv2d(7, 4, 3, padding=1),
    up=lambda: nn.ConvTranspose2d(4, 4, 2, 2),
    head=lambda: nn.Conv2d(15, 3, 1),
)
def dense_blocks_and_skip_connections(net, x):
    features = [x, net.a(x).relu()]
    features.append(net.b(torch.cat(features, 1)).relu_())
    small = F.max_pool2d(features[-1], 2, ceil_mode=True)
    up = net.up(small)
    up += F.interpolate(small, size=x.shape[-2:], mode="bilinear", align_corners=False)
    return net.head(torch.cat([*features, up], 1)).mean((2, 3))


@network(
    images,
    stem=lambda: nn.Conv2d(3, 4, 7, 2, 3, bias=False),
    norm=lambda: nn.GroupNorm(2, 4),
    c=lambda: nn.Conv2d(4, 4, 3, 1, 1),
    head=linear(4, 3),
)
def residual_network_with_imagenet_stem(net, x):
    x = F.max_pool2d(F.relu(net.norm(net.stem(x)), inplace=True), 3, 2, 1)
    y = net.c(x)
    y += x
    return net.head(torch.flatten(F.adaptive_avg_pool2d(F.relu(y, inplace=True), (1, 1)), 1))


@network(
    images, a=lambda: nn.Conv2d(3, 8, 1, groups=1), b=lambda: nn.Conv2d(8, 8, 3, padding=1, groups=8), head=linear(2, 3)
)
def shuffled_channels_and_pixels(net, x):
    x = net.a(x)
    b, c, h, w = x.data.size()
    x = net.b(x.view(b, 2, c // 2, h, w).transpose(1, 2).contiguous().view(b, -1, h, w))
    return net.head(F.pixel_shuffle(x, 2).mean((2, 3)))


@network(images, project=linear(48, 8), norm=lambda: nn.RMSNorm(8), head=linear(8, 3))
def patches_by_unfold(net, x):
    patches = x.unfold(2, 4, 4).unfold(3, 4, 4).permute(0, 2, 3, 1, 4, 5).flatten(3).flatten(1, 2)
    windows = x.flatten(1).unfold(1, 8, 5).mean((1, 2))
    return net.head(net.norm(net.project(patches)).mean(1)) * (1 + windows[:, None])


@network(images, head=linear(192, 3), weight=lambda: nn.Linear(192, 6))
def spatial_transformer(net, x):
    eye = torch.tensor([[1.0, 0, 0], [0, 1, 0]], device=x.device, dtype=x.dtype)
    grid = F.affine_grid(eye + 0.1 * net.weight(x.flatten(1)).view(-1, 2, 3), x.size(), align_corners=False)
    return net.head(F.grid_sample(x, grid, align_corners=False).flatten(1))


# Tensors made and changed in the forward pass
@network(rows, a=linear(8, 8), head=linear(8, 3))
def tensors_changed_in_place(net, x):
    h = net.a(x)
    h += x
    h[:, 0] = h[:, 1] * 2
    h.clamp_(min=-1).mul_(0.5)
    y = torch.zeros(x.shape[0], 8, dtype=x.dtype, device=x.device)
    y[:, :4] = h[:, 4:]
    y[:, 4:] += h[:, :4]
    return net.head(y)


@network(rows, a=linear(8, 8), scale=lambda: torch.ones(8), head=linear(8, 3))
def constants_changed_in_place(net, x):
    y = torch.tensor([1.0, 2.0] * 4, dtype=x.dtype, device=x.device).repeat(len(x), 1)
    y += net.a(x)
    scale = net.scale.clone()
    scale[2:4] = net.a.bias[2:4]
    scale.view(2, 4)[0] *= 2
    return net.head(y * scale)


@network(rows, a=linear(8, 8), head=linear(8, 3))
def inputs_changed_in_place(net, x):
    x *= 2
    x -= x.mean(1, keepdim=True)
    return net.head(net.a(x).relu_())


@network(masked, embed=lambda: nn.Embedding(TOKENS, 6), head=linear(12, 3))
def padding_by_masks(net, tokens, mask):
    x = net.embed(tokens)
    x[mask == 0] = 0
    low = x.clone()
    low[~mask.bool()] = torch.full((), -9.0, dtype=x.dtype, device=x.device)
    return net.head(torch.cat([x.sum(1) / mask.sum(1, keepdim=True).clamp(min=1), low.amax(1)], 1))


@network(tokens, embed=lambda: nn.Embedding(TOKENS, 6), head=linear(18, 3))
def sums_of_segments(net, x):
    y = torch.zeros(x.size(0), 3, 6, dtype=torch.float64, device=x.device)
    y.scatter_add_(1, (x % 3).unsqueeze(-1).expand(-1, -1, 6), net.embed(x))
    return net.head(y.tanh().flatten(1))


@network(graphs, a=linear(4, 6), head=linear(6, 3), edges=lambda: torch.tensor([[0, 1, 2, 3], [1, 2, 3, 4]]))
def graph_convolution(net, x, adjacency):
    adjacency = adjacency + torch.eye(5, device=x.device, dtype=x.dtype)
    degree = adjacency.sum(-1).pow(-0.5)
    degree[torch.isinf(degree)] = 0
    h = (degree.unsqueeze(-1) * adjacency * degree.unsqueeze(-2)) @ net.a(x)
    y = torch.zeros_like(h).index_add_(1, net.edges[1], h[:, net.edges[0]])
    return net.head(torch.relu(y).mean(1))


@network(rows, gate=linear(8, 4), experts=lambda: nn.ModuleList(nn.Linear(8, 3) for _ in range(4)))
def mixture_of_experts(net, x):
    weights, chosen = net.gate(x).topk(2, -1)
    kept = torch.zeros(len(x), 4, dtype=x.dtype, device=x.device).scatter_(1, chosen, weights.softmax(-1))
    y = torch.stack([expert(x) for expert in net.experts], 1)
    counted = F.one_hot(chosen[:, 0], 4).to(x.dtype).unsqueeze(-1)
    return (kept.unsqueeze(-1) * y).sum(1) + (counted * y).sum(1)


# Other layers
@network(
    tokens,
    bag=lambda: nn.EmbeddingBag(TOKENS, 6, mode="mean", padding_idx=3),
    other=lambda: nn.EmbeddingBag(TOKENS, 6, mode="sum"),
    head=linear(12, 3),
)
def bags_of_words(net, x):
    starts = torch.arange(0, x.numel(), x.size(1), device=x.device)
    weights = x.reshape(-1).to(torch.float64) / TOKENS
    return net.head(torch.cat([net.bag(x), net.other(x.reshape(-1), starts, weights)], 1))


@network(pairs, a=linear(8, 5), both=lambda: nn.Bilinear(5, 5, 3), head=linear(1, 3))
def siamese_network(net, a, b):
    a, b = net.a(a), net.a(b)
    return net.both(a, b) + net.head(F.pairwise_distance(a, b, keepdim=True)) * F.cosine_similarity(a, b)[:, None]


@network(
    rows,
    {"outputs": lambda o: o["label"] + o["other"]},
    a=linear(8, 5),
    heads=lambda: nn.ModuleDict({"label": nn.Linear(5, 3), "other": nn.Linear(5, 1)}),
)
def several_tasks(net, x):
    h = net.a(x).relu()
    return {name: head(h) for name, head in net.heads.items()}


@network(rows, grid=lambda: torch.linspace(-2, 2, 7), weight=parameter(3, 8, 7), table=parameter(8, 8, 3))
def splines(net, x):
    y = torch.einsum("big,oig->bo", torch.exp(-(((x.unsqueeze(-1) - net.grid) / 0.5) ** 2)), net.weight)
    return y + net.table[torch.arange(8, device=x.device), torch.bucketize(x, net.grid)].sum(1)


@network(
    waves, scale=parameter(3), weight=parameter(2, 4, 3, 2), head=linear(4, 3)
)  # the weights begin at an odd place
def fourier_layer(net, x):
    f = torch.fft.rfft(x)
    y = torch.zeros(x.shape[0], 4, f.size(-1), dtype=f.dtype, device=x.device)
    y[:, :, :3] = torch.einsum("bix,iox->box", f[:, :, :3], torch.view_as_complex(net.weight))
    return net.head(torch.fft.irfft(y, n=x.size(-1)).mean(-1)) * net.scale


@network(rows, a=linear(8, 4), codes=lambda: nn.Embedding(6, 4), head=linear(4, 3))
def vector_quantisation(net, x):
    z = net.a(x)
    q = net.codes(torch.cdist(z, net.codes.weight).argmin(1))
    return net.head(z + (q - z).detach() + 0.1 * q)


@network(
    rows,
    weights=lambda: nn.ParameterList(parameter(8, 8)() for _ in range(2)),
    more=lambda: nn.ParameterDict({"head": parameter(8, 3)()}),
)
def lists_of_parameters(net, x):
    for weight in net.weights:
        x = torch.tanh(x @ weight)
    return x @ net.more["head"]


@network(rows, a=lambda: parametrizations.orthogonal(nn.Linear(8, 8)), head=linear(8, 3))
def orthogonal_weights_and_sorting(net, x):
    x = net.a(x)
    ordered, _ = x.sort(-1, descending=True)
    return net.head(ordered.cumsum(-1) + x.median(-1, keepdim=True).values)


@network(rows, a=linear(8, 8), head=linear(8, 3))
def energy_model(net, x):
    return net.head(torch.func.vmap(torch.func.grad(lambda v: net.a(v).tanh().sum()))(x))


@network(rows, a=linear(8, 8), drop=lambda: nn.AlphaDropout(0.2), head=linear(8, 3))
def stochastic_depth(net, x):
    x = x + net.a(x) * F.dropout(x.new_ones(len(x), 1), 0.2, net.training)
    return net.head(net.drop(F.selu(x)))


@network(rows, a=linear(8, 8), head=linear(8, 3))
def stored_features(net, x):
    net.features = net.a(x).tanh()
    return net.head(net.features)


class Reversed(torch.autograd.Function):
    """With `setup_context`, but without a rule for vmap."""

    @staticmethod
    def forward(x):
        return x.view_as(x)

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, dy):
        return -dy


class ReversedForVmap(Reversed):
    generate_vmap_rule = True


@network(rows, a=linear(8, 8), head=linear(8, 3))
def gradient_reversal(net, x):
    return net.head(ReversedForVmap.apply(net.a(x)))
