"""StackOverflow: sentences as numbers, each word predicting the next.

0 is padding, 1 … 10,000 are the most frequent words of the training text, 10,001 stands for all others, 10,002 begins
a sentence and 10,003 ends it (the numbering of TensorFlow Federated's task). A sentence is cut after 20 words; a
shorter one is ended and padded. Targets are inputs shifted by one, −100 where there is nothing to predict.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...core.losses import PADDING
from .entries import VOCABULARY

PAD, UNKNOWN, BEGIN, END = 0, VOCABULARY + 1, VOCABULARY + 2, VOCABULARY + 3
_COUNTED = 2_000_000
"""So many different words are counted at a time; beyond, the rarest are forgotten, which the frequent do not notice."""

_LONGEST = 40
"""Letters of a word that its name keeps."""


def tokens(cell: Any) -> list[str]:
    """The words of a cell: a text with spaces between words, or a list of words."""
    if isinstance(cell, str):
        return cell.split()
    if isinstance(cell, list) and all(isinstance(word, str) for word in cell):
        return cell
    raise ValueError(f"a sentence must be a text or a list of words, got {type(cell).__name__}")


@dataclass(frozen=True)
class Vocabulary:
    """The words that have a number of their own."""

    number: dict[str, int]

    @classmethod
    def of(cls, batches: Iterable[Sequence[Sequence[str]]]) -> Vocabulary:
        """The most frequent words; among equally frequent ones, in the order of the alphabet."""
        count: Counter[str] = Counter()
        for sentences in batches:
            for sentence in sentences:
                count.update(sentence)
            if len(count) > _COUNTED:
                count = Counter(dict(count.most_common(_COUNTED // 2)))
        frequent = sorted(count.items(), key=lambda item: (-item[1], item[0]))[:VOCABULARY]
        return cls({word: i for i, (word, _) in enumerate(frequent, 1)})

    @property
    def labels(self) -> list[str]:
        """What every number stands for; numbers without a word, in a small text, for nothing."""
        names = ["<pad>", *(word[:_LONGEST] for word in self.number)]
        names += [""] * (VOCABULARY + 1 - len(names))
        return [*names, "<unknown>", "<begin>", "<end>"]

    def encode(self, sentences: Sequence[Sequence[str]], length: int) -> tuple[np.ndarray, np.ndarray]:
        """Inputs and targets, (n, length) each."""
        rows = np.full((len(sentences), length + 1), PAD, np.int16)
        for row, sentence in zip(rows, sentences, strict=True):
            ids = [BEGIN, *(self.number.get(word, UNKNOWN) for word in sentence[:length])]
            ids += [END] if len(ids) <= length else []
            row[: len(ids)] = ids
        x, y = rows[:, :-1], rows[:, 1:]
        return x, np.where(y == PAD, np.int16(PADDING), y)
