"""Recurrent networks for text, with cells written out: `vmap` has no rule for the kernels behind `nn.LSTM`."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .seeded import checked, seeded


class LSTM(nn.Module):
    """Layers of long short-term memory, (B, T, inputs) → (B, T, hidden), starting from zeros.

    Parameters have the names, shapes and initial values of `nn.LSTM`'s, so that either loads the
    other's `state_dict`.
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
        """One layer, (T, B, inputs) → (T, B, hidden).

        The inputs of all steps are projected at once. Steps are on the first axis and taken apart by
        `unbind`, whose gradient is one `stack`; the gradient of indexing would be as long as x for each step.
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
    """Scores of the next symbol, (B, vocabulary), after B windows of symbols."""

    def __init__(self, vocabulary: int, embedding: int, hidden: int, layers: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, embedding)
        self.lstm = LSTM(embedding, hidden, layers)
        self.linear = nn.Linear(hidden, vocabulary)

    def forward(self, tokens: Tensor) -> Tensor:
        scores: Tensor = self.linear(self.lstm(self.embedding(tokens.long()))[:, -1])
        return scores


class WordLSTM(nn.Module):
    """Scores of the next word at each position, (B, vocabulary, T), the layout of `F.cross_entropy`."""

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
    """GHBM's network for Shakespeare: the character after a window of 80, 133,520 parameters."""
    return seeded(lambda: CharLSTM(vocabulary, embedding, hidden, layers), seed)


@checked
def word_lstm(vocabulary: int = 10_004, embedding: int = 96, hidden: int = 670, seed: int = 0) -> nn.Module:
    """GHBM's network for StackOverflow: the next word at every position, 4,053,428 parameters.

    10,000 words and four symbols: padding, beginning, end, unknown. Targets that are padding must be
    −100, which counts neither in the loss nor in the accuracy.
    """
    return seeded(lambda: WordLSTM(vocabulary, embedding, hidden), seed)
