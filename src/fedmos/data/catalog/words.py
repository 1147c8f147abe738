"""The encoding of StackOverflow: sentences as numbers, with the next word as the target of each word.

0 is padding, 1 … 10,000 are the most frequent words of the training text, 10,001 is any other word, 10,002 begins
a sentence and 10,003 ends it (the numbering of TensorFlow Federated's task). A sentence is cut after 20 words; a
shorter one is ended and padded. Targets are inputs shifted by one, and −100 at padding.
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
"""Maximum number of different words that are counted at a time; beyond it, the rarest ones are dropped."""

_LONGEST = 40
"""Maximum length of a word in the names of the labels."""


def tokens(cell: Any) -> list[str]:
    """Return the words of a cell: a string with spaces between words, or a list of words."""
    if isinstance(cell, str):
        return cell.split()
    if isinstance(cell, list) and all(isinstance(word, str) for word in cell):
        return cell
    raise ValueError(f"a sentence must be a text or a list of words, got {type(cell).__name__}")


@dataclass(frozen=True)
class Vocabulary:
    """The numbers of the most frequent words."""

    number: dict[str, int]

    @classmethod
    def of(cls, batches: Iterable[Sequence[Sequence[str]]]) -> Vocabulary:
        """Count words and number the most frequent ones; equally frequent words are in alphabetical order."""
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
        """The word of each number; empty for numbers without a word, if the text is small."""
        names = ["<pad>", *(word[:_LONGEST] for word in self.number)]
        names += [""] * (VOCABULARY + 1 - len(names))
        return [*names, "<unknown>", "<begin>", "<end>"]

    def encode(self, sentences: Sequence[Sequence[str]], length: int) -> tuple[np.ndarray, np.ndarray]:
        """Return inputs and targets, (n, length) each."""
        rows = np.full((len(sentences), length + 1), PAD, np.int16)
        for row, sentence in zip(rows, sentences, strict=True):
            ids = [BEGIN, *(self.number.get(word, UNKNOWN) for word in sentence[:length])]
            ids += [END] if len(ids) <= length else []
            row[: len(ids)] = ids
        x, y = rows[:, :-1], rows[:, 1:]
        return x, np.where(y == PAD, np.int16(PADDING), y)
