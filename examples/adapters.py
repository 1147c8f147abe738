"""Adapters: a pretrained network is frozen, and clients train and send low-rank updates of it only.

The network has learnt upright digits. The clients' digits lie on their side, which its adapters (LoRA) learn.

python examples/adapters.py
"""

from dataclasses import replace

from torch import nn

import fedmos as fm

CLIENTS = 20


def federation() -> fm.FederatedData:
    return fm.datasets.load("digits").partition(fm.partition.Dirichlet(alpha=0.5), clients=CLIENTS, seed=0)


def pretrained(data: fm.FederatedData) -> nn.Module:
    """Stands for a network from elsewhere: weights from a file, or a model of `transformers` by `from_pretrained`."""
    how = {"rounds": 25, "local_steps": 5, "batch_size": 16}
    return fm.run(fm.models.mlp(features=64, seed=1), data, fm.FedAvg(lr=0.3), fm.Uniform(m=10), **how).model


def on_their_side(data: fm.FederatedData) -> fm.FederatedData:
    images, labels = data.test
    return replace(data, x=data.x.rot90(1, (-2, -1)), test=(images.rot90(1, (-2, -1)), labels))


def train(rounds: int = 40) -> tuple[nn.Module, fm.FederatedData, fm.Result]:
    """Return the pretrained network, the clients' data, and the result."""
    upright = federation()
    base, data = pretrained(upright), on_their_side(upright)
    adapted = fm.models.lora(base, rank=4, targets=["1", "3"], alpha=8, train="5.*")  # layers of the MLP; its head
    how = {"rounds": rounds, "local_steps": 5, "batch_size": 16}
    return base, data, fm.run(adapted, data, fm.FedAvg(lr=0.1), fm.Uniform(m=10), **how)


if __name__ == "__main__":
    base, data, result = train()
    print(result)
    size, sent = sum(p.numel() for p in base.parameters()), len(result.params)
    print(f"A client sends {4 * sent:,} bytes a round; the whole network has {4 * size:,}")
    merged = fm.models.merge_lora(result.model)  # the layers of the base, with other weights
    print(merged)
