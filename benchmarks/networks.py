"""Time per round of networks that users write: `python benchmarks/networks.py [NETWORK ...]`.

For each network, in one process after warm-up, FedAvg with 20 clients (table-mlp: 100), all in every round, 5 steps:

    loop      engine="loop"
    auto      engine="auto" in a run of 120 rounds, and the engine that it chose
    central   one model on as many samples as the whole cohort, times the number of steps: close to the upper bound of a
              federated round. On a GPU the step is compiled and captured as a CUDA graph

Data is random: only shapes matter. Times are medians over rounds. On a CPU, or with --small, networks are small.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from cuda_graphs import captured
from network_models import Recurrent, UNet, audio, convnext, distilbert_lora, resnet, table_mlp
from torch import Tensor, nn

import fedmos as fm
from fedmos.core.statistics_layout import BatchNormMode
from fedmos.engine.malloc import keep_memory
from fedmos.run.batchnorm import apply_batchnorm

STEPS, ROUNDS = 5, 120
WAYS = ["loop", "auto", "central"]
BATCHNORM: tuple[BatchNormMode, ...] = ("group", "local", "local-affine", "frozen")


@dataclass(frozen=True)
class Size:
    """The size of a network and of its inputs."""

    width: int
    layers: int
    length: int
    """The length of a sequence, the side of an image, or the number of columns of a table."""
    batch: int
    classes: int = 10
    tokens: int = 1000
    clients: int = 20


@dataclass(frozen=True)
class Network:
    model: Callable[[Size], nn.Module]
    inputs: Callable[[Size, int, np.random.Generator], np.ndarray]
    """(size, number of samples, generator) → inputs."""
    large: Size
    small: Size
    batchnorm: BatchNormMode | None = None
    """What becomes of BatchNorm layers."""

    def federation(self, size: Size) -> fm.FederatedData:
        rng, n = np.random.default_rng(0), 2 * size.batch
        pairs = [(self.inputs(size, n, rng), rng.integers(size.classes, size=n)) for _ in range(size.clients)]
        return fm.FederatedData.from_arrays(pairs)


def tokens(size: Size, n: int, rng: np.random.Generator) -> np.ndarray:
    return rng.integers(1, size.tokens, size=(n, size.length))


def images(size: Size, n: int, rng: np.random.Generator) -> np.ndarray:
    return rng.standard_normal((n, 3, size.length, size.length), dtype=np.float32)


def waves(size: Size, n: int, rng: np.random.Generator) -> np.ndarray:
    return rng.standard_normal((n, 1, size.length), dtype=np.float32)


def rows(size: Size, n: int, rng: np.random.Generator) -> np.ndarray:
    return rng.standard_normal((n, size.length), dtype=np.float32)


def recurrent(kind: type[nn.RNNBase]) -> Callable[[Size], nn.Module]:
    return lambda size: Recurrent(kind, size.tokens, size.width, size.layers, size.classes)


def mlp(size: Size) -> nn.Module:
    return table_mlp(size.length, size.width, size.layers, size.classes)


class Gpt(nn.Module):
    """`nn.TransformerEncoderLayer` with a causal mask; classifies by the last position."""

    mask: Tensor
    is_causal: bool | None = None
    """Whether the mask is known to be causal; None lets PyTorch read it, which a CUDA graph cannot capture."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.embed = nn.Embedding(size.tokens, size.width)
        self.place = nn.Parameter(0.02 * torch.randn(size.length, size.width))
        layer = nn.TransformerEncoderLayer(size.width, size.width // 32, 4 * size.width, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, size.layers, enable_nested_tensor=False)
        self.score = nn.Linear(size.width, size.classes)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(size.length))

    def forward(self, x: Tensor) -> Tensor:
        x = self.layers(self.embed(x) + self.place, self.mask, is_causal=self.is_causal)
        return self.score(x[:, -1])  # type: ignore[no-any-return]


class VitBlock(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.heads = width // 32
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.project, self.merge = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.project(self.before(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        x = x + self.merge(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return x + self.mlp(self.between(x))  # type: ignore[no-any-return]


class Vit(nn.Module):
    """Patches of 4 × 4, `F.scaled_dot_product_attention`, no dropout."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, size.width, 4, 4)
        self.place = nn.Parameter(0.02 * torch.randn((size.length // 4) ** 2, size.width))
        self.blocks = nn.Sequential(*(VitBlock(size.width) for _ in range(size.layers)))
        self.score = nn.Linear(size.width, size.classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patch(x).flatten(2).transpose(1, 2) + self.place
        return self.score(self.blocks(x).mean(1))  # type: ignore[no-any-return]


def bert(size: Size) -> nn.Module:
    import transformers

    config = transformers.BertConfig(
        vocab_size=size.tokens,
        hidden_size=size.width,
        num_hidden_layers=size.layers,
        num_attention_heads=size.width // 32,
        intermediate_size=4 * size.width,
        max_position_embeddings=size.length,
        num_labels=size.classes,
    )
    model: nn.Module = transformers.BertForSequenceClassification(config)
    return model.train()


def adapters(size: Size) -> nn.Module:
    return distilbert_lora(size.width, size.layers, size.length, size.tokens, size.classes)


NETWORKS = {
    "gpt": Network(Gpt, tokens, Size(256, 4, 128, 16), Size(32, 2, 16, 4)),
    "vit": Network(Vit, images, Size(192, 6, 32, 32), Size(32, 2, 16, 4)),
    "bert-tiny": Network(bert, tokens, Size(128, 2, 128, 16), Size(32, 2, 16, 4)),
    "distilbert-lora": Network(adapters, tokens, Size(768, 6, 128, 16, tokens=30522), Size(64, 2, 16, 4)),
    "bert-base-lora": Network(adapters, tokens, Size(768, 12, 128, 8, tokens=30522), Size(64, 4, 16, 4)),
    "gru": Network(recurrent(nn.GRU), tokens, Size(256, 1, 64, 32), Size(32, 1, 16, 4)),
    "lstm": Network(recurrent(nn.LSTM), tokens, Size(256, 2, 64, 32), Size(32, 2, 16, 4)),
    "u-net": Network(lambda s: UNet(s.width, s.layers, s.classes), images, Size(32, 3, 32, 16), Size(8, 2, 8, 4)),
    "convnext": Network(
        lambda s: convnext(s.width, s.layers, s.classes), images, Size(96, 6, 32, 32), Size(16, 2, 8, 4)
    ),
    **{
        f"resnet, {mode}": Network(
            lambda s: resnet(s.width, s.layers, s.classes), images, Size(16, 3, 32, 32), Size(8, 1, 8, 4), mode
        )
        for mode in BATCHNORM
    },
    "audio": Network(lambda s: audio(s.width, s.layers, s.classes), waves, Size(64, 4, 8000, 16), Size(8, 2, 400, 4)),
    "table-mlp": Network(mlp, rows, Size(256, 3, 50, 32, clients=100), Size(32, 3, 20, 4)),
    "wide-mlp": Network(mlp, rows, Size(5200, 3, 784, 32), Size(64, 3, 50, 4)),
}


def logits(returned: Any) -> Tensor:
    scores: Tensor = returned if isinstance(returned, Tensor) else returned.logits
    return scores


def ours(
    network: Network,
    size: Size,
    engine: str,
    device: str,
    rounds: int,
    when_warm: Callable[[], object] = lambda: None,
) -> tuple[float, str]:
    """Return the median time of a round of `fm.run`, and the engine."""
    marks: list[float] = []

    def mark(record: fm.Record) -> None:
        synchronise()
        if len(marks) == 2:
            when_warm()
        marks.append(time.perf_counter())
        if len(marks) > rounds + 2:
            raise KeyboardInterrupt

    torch.manual_seed(0)
    how = {"rounds": ROUNDS, "local_steps": STEPS, "batch_size": size.batch, "eval_every": 10**6, "device": device}
    result = fm.run(
        network.model(size),
        network.federation(size),
        fm.FedAvg(lr=0.01),
        fm.Full(),
        engine=engine,
        batchnorm=network.batchnorm,
        callbacks=[mark],
        **how,  # type: ignore[arg-type]
    )
    chosen = result.info["engine"] + (", compiled" if result.info["compiled"] else "")
    return statistics.median(np.diff(marks[2:])), chosen


def central(network: Network, size: Size, device: str, rounds: int) -> float:
    """Return the median time of the steps of a centralised model on the cohort's samples."""
    torch.manual_seed(0)
    model = apply_batchnorm(network.model(size), network.batchnorm).to(device)
    if isinstance(model, Gpt):
        model.is_causal = True
    parameters = [p for p in model.parameters() if p.requires_grad]
    pairs = network.federation(size)
    n = size.clients * size.batch
    x, y = pairs.x[:n].to(device), pairs.y[:n].to(device)
    call: Any = torch.compile(model) if device == "cuda" else model

    def step() -> None:
        g = torch.autograd.grad(F.cross_entropy(logits(call(x)), y), parameters, allow_unused=True)
        with torch.no_grad():
            changed = [(p, v) for p, v in zip(parameters, g, strict=True) if v is not None]
            torch._foreach_sub_([p for p, _ in changed], [v for _, v in changed], alpha=0.01)

    play = captured(step) if device == "cuda" else step
    taken = []
    for _ in range(rounds + 1):
        synchronise()
        began = time.perf_counter()
        for _ in range(STEPS):
            play()
        synchronise()
        taken.append(time.perf_counter() - began)
    return statistics.median(taken[1:])


def profiled(network: Network, size: Size, device: str, rounds: int) -> str:
    """Return the kernels of a few rounds, the longest first."""
    found = torch.profiler.profile()
    ours(network, size, "batched", device, rounds, when_warm=found.start)
    found.stop()
    by = "self_cuda_time_total" if device == "cuda" else "self_cpu_time_total"
    return found.key_averages().table(sort_by=by, row_limit=30, max_name_column_width=90)


def synchronise() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("networks", nargs="*", default=list(NETWORKS), help=f"any of {', '.join(NETWORKS)}")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--ways", nargs="*", choices=WAYS, default=WAYS)
    parser.add_argument(
        "--warm", action="store_true", help="only compile the centralised steps, to fill the compiler's cache"
    )
    parser.add_argument("--row", action="store_true", help="only print the rows of the table, all by this process")
    parser.add_argument("--profile", action="store_true", help="only print the kernels of rounds, engine='batched'")
    parser.add_argument("--small", action="store_true", default=not torch.cuda.is_available())
    given = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    keep_memory()
    sizes = {name: NETWORKS[name].small if given.small else NETWORKS[name].large for name in given.networks}
    for name in given.networks if given.warm else []:
        central(NETWORKS[name], sizes[name], device, 1)
    for name in given.networks if given.profile else []:
        print(f"\n{name}\n{profiled(NETWORKS[name], sizes[name], device, given.rounds)}", flush=True)
    if given.warm or given.profile:
        return
    if not given.row:
        where = torch.cuda.get_device_name() if device == "cuda" else f"CPU, {torch.get_num_threads()} threads"
        print(f"torch {torch.__version__}, {where}; ms a round, median of {given.rounds} rounds\n")
        headings = ("network", "loop", "auto", "chosen", "central", "auto / central", "loop / auto")
        print("| " + " | ".join(headings) + " |\n" + "|---" * len(headings) + "|", flush=True)
        options = ["--row", "--rounds", str(given.rounds), "--ways", *given.ways, *(["--small"] if given.small else [])]
        for name in given.networks:  # in a process of its own, with memory of its own
            subprocess.run([sys.executable, __file__, name, *options], check=False)
        return
    for name in given.networks:
        print(row(name, sizes[name], device, given.rounds, given.ways), flush=True)
        gc.collect()
        torch.cuda.empty_cache()


def row(name: str, size: Size, device: str, rounds: int, ways: list[str]) -> str:
    """Return a row of the table; a way that is not measured is empty."""
    network, chosen = NETWORKS[name], ""
    loop = auto = best = float("nan")
    if "loop" in ways:
        loop, _ = ours(network, size, "loop", device, rounds)
    if "auto" in ways:
        auto, chosen = ours(network, size, "auto", device, rounds)
    if "central" in ways:
        best = central(network, size, device, rounds)
    times = f"{1e3 * loop:.1f} | {1e3 * auto:.1f} | {chosen} | {1e3 * best:.1f}"
    return f"| {name} | {times} | {auto / best:.2f} | {loop / auto:.1f} |".replace(" nan ", " ")


if __name__ == "__main__":
    main()
