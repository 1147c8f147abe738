"""What the checks find: sentences, each once."""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, Literal

from ..core.formatting import one_line
from ..engine.watch import contract_of

_LONGEST = 400
"""Characters of the message of an unexpected exception."""


_WRITES, _DRAWS = "must not change", "global generator"
"""Parts of the engine's sentences about tensors that a method changes, and generators that it uses."""

Kind = Literal["writes", "draws", "keeps", "varies", "cohort", "ahead", "other"]
"""A tensor is changed, a global generator used, a value kept on self; a second call differs, the cohort matters, …"""


class Findings:
    """The findings about one object."""

    def __init__(self, obj: Any) -> None:
        self._owner = type(obj).__name__
        self._files = _files_of(type(obj))
        self._found: dict[str, str] = {}
        self._kinds: set[Kind] = set()

    def sentences(self) -> list[str]:
        """Return the findings in the order in which they were made."""
        return list(self._found.values())

    def any_of(self, *kinds: Kind) -> bool:
        """Whether there is a finding of one of these kinds."""
        return not self._kinds.isdisjoint(kinds)

    def __len__(self) -> int:
        return len(self._found)

    def add(self, sentence: str, kind: Kind = "other") -> None:
        """Add a finding, unless the same mistake has been found with other numbers."""
        self._kinds.add(kind)
        if not sentence.startswith((f"{self._owner}: ", "Cannot ")):
            sentence = f"{self._owner}: {sentence}"
        self._found.setdefault(_kind_of(sentence), sentence)

    @contextmanager
    def collected(self, advice: str = "") -> Iterator[None]:
        """Add an exception of the block as a finding, with the line of the user's code that raises it, and advice."""
        try:
            yield
        except Exception as error:  # the user's code may raise anything
            sentence = self._sentence(error, advice)
            known = (_WRITES in sentence and self.any_of("writes")) or (_DRAWS in sentence and self.any_of("draws"))
            if not known:  # the engine's sentences name less than those of the watcher
                self.add(sentence)

    def _sentence(self, error: Exception, advice: str) -> str:
        frame = self._user_frame(error)
        place = "" if frame is None else f" ({Path(frame[0].f_code.co_filename).name}, line {frame[1]})"
        text = one_line(str(error), _LONGEST) + advice
        if isinstance(error, ValueError | AttributeError) and text.startswith((f"{self._owner}: ", "Cannot ")):
            return f"{text}{place}"
        method = "the run" if frame is None else f"'{frame[0].f_code.co_name}'"
        return f"{self._owner}: {method} raises {type(error).__name__}: {text}{place}"

    def _user_frame(self, error: Exception) -> tuple[FrameType, int] | None:
        """Return the innermost frame of the files that define the class, with its line."""
        errors = [error, *([] if error.__cause__ is None else [error.__cause__])]  # the engine's, and PyTorch's
        frames = [
            (frame, line)
            for raised in errors
            for frame, line in traceback.walk_tb(raised.__traceback__)
            if frame.f_code.co_filename in self._files
        ]
        return frames[-1] if frames else None


def _files_of(kind: type[Any]) -> set[str]:
    """Return the files of the methods of a class and its bases, down to the contract."""
    base = contract_of(kind)
    codes = [
        getattr(method, "__code__", None)
        for cls in kind.__mro__
        if cls not in base.__mro__
        for method in vars(cls).values()
    ]
    return {code.co_filename for code in codes if code is not None and code.co_filename != "<string>"}


def _kind_of(sentence: str) -> str:
    """Return what findings of the same mistake have in common: the sentence without values, shapes and places."""
    sentence = sentence.partition(", got ")[0]
    return re.sub(r"\([^()]*\)|(?<![\w'.])[\d.]+(?![\w'])", "", sentence)
