"""Recurrent networks for text. Cells use elementary operations."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .seeded import checked, seeded


class LSTM(nn.Module):
    """Layers of long short-term memory, (B, T, inputs) → (B, T, hidden), with an initial state of zeros.

    Names, shapes and initial values of the parameters are those of `nn.LSTM`, so each can load the
    `state_dict` of the other.

    Args:
        inputs: Number of inputs per step.
        hidden: Size of the hidden state.
        layers: Number of layers.

    Example:
        >>> fm.models.LSTM(inputs=4, hidden=8)(torch.zeros(2, 5, 4)).shape
        torch.Size([2, 5, 8])
    """

    def __init__(self, inputs: int, hidden: int, layers: int = 1) -> None:
        super().__init__()
        self.layers = layers
        bound = 1 / math.sqrt(hidden)
        for layer in range(layers):
            before = inputs if layer == 0 else hidden
            for name, shape in (
                ("weight_ih", (4 * hidden, before)),
                ("weight_hh", (4 * hidden, hidden)),
                ("bias_ih", (4 * hidden,)),
                ("bias_hh", (4 * hidden,)),
            ):
                self.register_parameter(f"{name}_l{layer}", nn.Parameter(torch.empty(shape).uniform_(-bound, bound)))

    def forward(self, x: Tensor) -> Tensor:
        steps = x.transpose(0, 1)
        for layer in range(self.layers):
            steps = self._layer(steps, layer)
        return steps.transpose(0, 1)

    def _layer(self, x: Tensor, layer: int) -> Tensor:
        """Apply one layer, (T, B, inputs) → (T, B, hidden).

        The inputs of all steps are projected at once. Steps are on the first axis and separated by
        `unbind`, whose gradient is one `stack`; the gradient of indexing has the size of x for every step.
        """
        w_ih, w_hh, b_ih, b_hh = (
            getattr(self, f"{name}_l{layer}") for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        )
        T, B, _ = x.shape
        projected = F.linear(x.reshape(T * B, -1), w_ih, b_ih + b_hh).view(T, B, -1)
        h = c = x.new_zeros(B, w_hh.shape[1])
        states = []
        for step in projected.unbind():
            i, f, g, o = torch.addmm(step, h, w_hh.t()).chunk(4, dim=1)
            c = f.sigmoid() * c + i.sigmoid() * g.tanh()
            h = o.sigmoid() * c.tanh()
            states.append(h)
        return torch.stack(states)


class CharLSTM(nn.Module):
    """Predicts the scores of the next symbol, (B, vocabulary), from windows of symbols, (B, T)."""

    def __init__(self, vocabulary: int, embedding: int, hidden: int, layers: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, embedding)
        self.lstm = LSTM(embedding, hidden, layers)
        self.linear = nn.Linear(hidden, vocabulary)

    def forward(self, tokens: Tensor) -> Tensor:
        scores: Tensor = self.linear(self.lstm(self.embedding(tokens.long()))[:, -1])
        return scores


class WordLSTM(nn.Module):
    """Predicts the scores of the next word at each position, (B, vocabulary, T), the layout of `F.cross_entropy`."""

    def __init__(self, vocabulary: int, embedding: int, hidden: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, embedding)
        self.lstm = LSTM(embedding, hidden)
        self.projection = nn.Linear(hidden, embedding)
        self.linear = nn.Linear(embedding, vocabulary)

    def forward(self, tokens: Tensor) -> Tensor:
        scores: Tensor = self.linear(self.projection(self.lstm(self.embedding(tokens.long()))))
        return scores.transpose(1, 2)


@checked
def char_lstm(vocabulary: int = 80, embedding: int = 8, hidden: int = 100, layers: int = 2, seed: int = 0) -> nn.Module:
    """GHBM's network for Shakespeare: predicts the character after a window of 80, 133,520 parameters.

    Args:
        vocabulary: Number of symbols.
        embedding: Size of the embeddings.
        hidden: Size of the hidden state.
        layers: Number of LSTM layers.
        seed: Seed of the initial weights.

    Example:
        >>> fm.models.char_lstm()(torch.zeros(2, 80, dtype=torch.uint8)).shape
        torch.Size([2, 80])
    """
    return seeded(lambda: CharLSTM(vocabulary, embedding, hidden, layers), seed)


@checked
def word_lstm(vocabulary: int = 10_004, embedding: int = 96, hidden: int = 670, seed: int = 0) -> nn.Module:
    """GHBM's network for StackOverflow: predicts the next word at every position, 4,053,428 parameters.

    The vocabulary is 10,000 words and four symbols: padding, beginning, end, unknown. Targets that are padding must
    be −100; the loss and the accuracy ignore them.

    Args:
        vocabulary: Number of words and symbols.
        embedding: Size of the embeddings.
        hidden: Size of the hidden state.
        seed: Seed of the initial weights.

    Example:
        >>> fm.models.word_lstm(vocabulary=50)(torch.zeros(2, 20, dtype=torch.int16)).shape
        torch.Size([2, 50, 20])
    """
    return seeded(lambda: WordLSTM(vocabulary, embedding, hidden), seed)
