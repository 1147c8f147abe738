"""What zlib saves on encoded updates: the table of docs/codecs.md, section Deployments.

python benchmarks/compression.py
"""

from __future__ import annotations

import zlib
from itertools import pairwise

import torch

import fedmos as fm
from fedmos.codecs import Codec

CODECS: dict[str, Codec | list[Codec]] = {
    "Float16()": fm.codecs.Float16(),
    "Quantize(8)": fm.codecs.Quantize(8),
    "Quantize(4)": fm.codecs.Quantize(4),
    "Quantize(2)": fm.codecs.Quantize(2),
    "Quantize(1)": fm.codecs.Quantize(1),
    "[Rotate(), Quantize(4)]": [fm.codecs.Rotate(), fm.codecs.Quantize(4)],
    "Sign()": fm.codecs.Sign(),
    "TopK(0.01)": fm.codecs.TopK(0.01),
    "[TopK(0.1), Quantize(4)]": [fm.codecs.TopK(0.1), fm.codecs.Quantize(4)],
}


def update() -> torch.Tensor:
    """Return the update of a client: ten steps of an MLP on digits of two classes."""
    torch.manual_seed(0)
    sizes = (64, 1000, 800)
    layers = [part for a, b in pairwise(sizes) for part in (torch.nn.Linear(a, b), torch.nn.ReLU())]
    model = torch.nn.Sequential(torch.nn.Flatten(), *layers, torch.nn.Linear(sizes[-1], 10))
    before = torch.cat([p.detach().flatten() for p in model.parameters()])
    data = fm.datasets.load("digits").partition(fm.partition.ByClass(classes=2), clients=20, seed=0).subset([0])
    how = {"rounds": 1, "local_steps": 10, "batch_size": 8, "device": "cpu", "engine": "loop"}
    return fm.run(model, data, fm.FedAvg(lr=0.1), fm.Full(), **how).params - before


def main() -> None:
    """Print a row for each codec."""
    v = update()
    print(f"{len(v):,} parameters\n| codec | compressed to |\n|---|---:|")
    for name, codec in CODECS.items():
        chain = fm.codecs.Chain(codec) if isinstance(codec, list) else codec
        fields = chain.encode(v, key=1)
        raw = b"".join(field.contiguous().numpy().tobytes() for field in fields.values())
        print(f"| `{name}` | {100 * len(zlib.compress(raw, 1)) / len(raw):.0f} % |")  # the level of deployments


if __name__ == "__main__":
    main()
