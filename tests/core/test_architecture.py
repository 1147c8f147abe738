"""Hashes of a module's architecture and of the values that training does not change."""

import copy

import pytest
import torch
from torch import nn

import fedmos as fm
from fedmos.core.architecture import architecture_hash, constants_hash


class Own(nn.Module):
    def __init__(self, width: int = 4, names: tuple[str, ...] = ("a",), activation=torch.relu) -> None:
        super().__init__()
        self.width, self.names, self.activation = width, names, activation
        self.linear = nn.Linear(3, 4)
        self._cache = None

    def forward(self, x):
        return self.activation(self.linear(x))


class Other(Own):
    pass


def test_values_device_and_mode_do_not_matter():
    first, second = fm.models.cnn_mnist(seed=0), fm.models.cnn_mnist(seed=1)
    assert architecture_hash(first) == architecture_hash(second.eval().double())
    own = Own()
    own._cache = {}
    assert architecture_hash(own) == architecture_hash(copy.deepcopy(Own()))


@pytest.mark.parametrize(
    "other",
    [Own(width=5), Own(names=("b",)), Own(activation=torch.tanh), Other(), Own().requires_grad_(False)],
    ids=["number", "strings", "function", "class", "frozen"],
)
def test_what_makes_another_architecture(other):
    assert architecture_hash(other) != architecture_hash(Own())


def test_layers_of_pytorch_are_compared_by_what_they_print():
    def net(**changes):
        return nn.Sequential(nn.Conv2d(1, 2, 3, **changes), nn.ReLU())

    assert (
        len({architecture_hash(net(**c)) for c in ({}, {"stride": 2}, {"padding": 1}, {"padding_mode": "circular"})})
        == 3 + 1
    )


def test_frozen_parameters_and_buffers_are_constants():
    def net(scale: float, dtype: torch.dtype = torch.float32):
        module = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
        module[1].running_mean.fill_(scale)
        return module.to(dtype)

    assert constants_hash(net(1.0), torch.float32) == constants_hash(net(1.0, torch.float64), torch.float32)
    assert constants_hash(net(1.0), torch.float32) != constants_hash(net(2.0), torch.float32)
    frozen = net(1.0)
    nn.init.zeros_(frozen[0].weight).requires_grad_(False)
    assert constants_hash(frozen, torch.float32) != constants_hash(net(1.0), torch.float32)


def test_a_pretrained_network_is_the_one_that_its_configuration_describes(tmp_path):
    from transformers import BertConfig, BertForSequenceClassification

    sizes = {"vocab_size": 20, "hidden_size": 8, "num_hidden_layers": 1, "intermediate_size": 8}
    config = BertConfig(**sizes, num_attention_heads=2, max_position_embeddings=8)
    network = BertForSequenceClassification(config)
    network.save_pretrained(tmp_path)
    assert architecture_hash(BertForSequenceClassification.from_pretrained(tmp_path)) == architecture_hash(network)
    config = BertConfig(**sizes, num_attention_heads=4, max_position_embeddings=8)
    assert architecture_hash(BertForSequenceClassification(config)) != architecture_hash(network)
