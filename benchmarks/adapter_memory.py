"""Peak memory of adapters on a frozen transformer: `python benchmarks/adapter_memory.py [--layers 12] [--batch 1]`.

DistilBERT made from its configuration, with adapters of rank 8 on queries and values and a trained head; 12 layers have
110 million frozen parameters. FedAvg, two rounds of two steps. Each row is a process of its own:

    model     the model is made; nothing is trained
    1         one client, engine="batched"
    N         N clients side by side, engine="batched"
    N, loop   N clients one after another, engine="loop"
    central   no federation: two steps of one model on as many samples as N clients have in a batch

Peak memory is that of the process (RSS, libraries included) on a CPU, and of PyTorch's allocations on a GPU. Weights
are stored once; activations grow with the number of samples that are computed together, as in centralised training.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from network_models import distilbert_lora
from torch import nn

import fedmos as fm

TOKENS, CLASSES, STEPS = 30522, 10, 2


def federation(clients: int, batch: int, length: int) -> fm.FederatedData:
    rng = np.random.default_rng(0)
    shape = (batch, length)
    return fm.FederatedData.from_arrays(
        [(rng.integers(1, TOKENS, size=shape), rng.integers(CLASSES, size=batch)) for _ in range(clients)]
    )


def train(model: nn.Module, data: fm.FederatedData, engine: str, batch: int) -> int:
    """Train federated, and return the bytes that a client uploads in a round."""
    how = {"rounds": 2, "local_steps": STEPS, "batch_size": batch, "eval_every": 10**6}
    result = fm.run(model, data, fm.FedAvg(lr=0.01), fm.Full(), engine=engine, **how)  # type: ignore[arg-type]
    return result.history[0].bytes_up // len(data)


def central(model: nn.Module, data: fm.FederatedData, device: str) -> None:
    model = model.to(device)
    parameters = [p for p in model.parameters() if p.requires_grad]
    x, y = data.x.to(device), data.y.to(device)
    for _ in range(STEPS):
        g = torch.autograd.grad(F.cross_entropy(model(x).logits, y), parameters)
        with torch.no_grad():
            torch._foreach_sub_(parameters, list(g), alpha=0.01)


def peak(device: str) -> float:
    """Return the peak memory of this process in MB."""
    if device == "cuda":
        return torch.cuda.max_memory_allocated() / 1e6
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3


def measure(row: str, given: argparse.Namespace) -> None:
    """Train as a row says, and print the peak memory and the bytes of an upload."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    model, sent = distilbert_lora(768, given.layers, given.length, TOKENS, CLASSES), 0
    data = federation(1 if row == "1" else given.clients, given.batch, given.length)
    if row == "central":
        central(model, data, device)
    elif row != "model":
        sent = train(model, data, "loop" if "loop" in row else "batched", given.batch)
    frozen = sum(p.numel() for p in model.parameters() if not p.requires_grad)
    print(peak(device), sent, frozen)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--batch", type=int, default=1, help="samples of a client's batch")
    parser.add_argument("--length", type=int, default=16, help="tokens of a sample")
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--row", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.row is not None:
        measure(given.row, given)
        return
    found: dict[str, float] = {}
    sent = frozen = 0
    for row in ("model", "1", f"{given.clients}", f"{given.clients}, loop", "central"):
        command = [sys.executable, str(Path(__file__)), *sys.argv[1:], "--row", row]
        words = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
        found[row], sent, frozen = float(words[-3]), max(sent, int(words[-2])), int(words[-1])
    print(
        f"{frozen:,} frozen parameters; batches of {given.batch} × {given.length} tokens; an upload: {sent:,} bytes\n"
    )
    print("| clients | peak memory, MB | relative to one client |\n|---|---:|---:|")
    for row, megabytes in found.items():
        print(f"| {row} | {megabytes:,.0f} | {megabytes / found['1']:.2f} |")


if __name__ == "__main__":
    main()
