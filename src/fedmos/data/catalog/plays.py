"""Reader of the text of plays: the text of each speaking role as windows with their next character as target."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from importlib import resources
from pathlib import Path

import numpy as np

from .characters import WINDOW, codes, in_time
from .chunks import Items, Origin, Part, SampleChunk, check_size, of_files, slices
from .errors import reading

_TEXT = "tinyshakespeare.txt"
_LARGEST = 16 * 2**20
# "First Citizen:" in the bundled text; "FIRST CITIZEN." in Project Gutenberg's.
_HEADINGS = (re.compile(r"(\S[^:\n]{0,60}):"), re.compile(r"([A-Z][A-Z’' ,-]{1,60})\."))


def bundled() -> Origin:
    """Return the origin of the bundled text: a million characters from Shakespeare's plays."""
    text = resources.files("fedmos.data").joinpath("texts", _TEXT).read_bytes()
    identity = [[f"fedmos:{_TEXT}", hashlib.sha256(text).hexdigest()]]
    return Origin(f"fedmos ({_TEXT})", identity, lambda: _windows(roles(text.decode("utf-8"))))


def origin(path: Path) -> Origin:
    """Return the origin of a text file."""
    return of_files(path, [path], lambda: _read(path))


def _read(path: Path) -> Items:
    with reading(path):
        check_size("the text", path.stat().st_size, _LARGEST)
        found = roles(path.read_bytes().decode("utf-8-sig"))
        if not found:
            raise ValueError('it has no speaking roles: lines "Name:" or "NAME." that follow an empty line')
        yield from _windows(found)


def roles(text: str) -> dict[str, str]:
    """Return the speeches of each role, joined by newlines in their order.

    A role is identified by its name: messengers of two plays are one role. A block of lines without a name continues
    the speech before it.
    """
    blocks = re.split(r"\n\s*\n", text.replace("\r\n", "\n"))
    styles = [[style.fullmatch(block.strip().split("\n")[0].strip()) for block in blocks] for style in _HEADINGS]
    headings = max(styles, key=lambda found: sum(match is not None for match in found))
    speeches: dict[str, list[str]] = {}
    speaker = None
    for block, heading in zip(blocks, headings, strict=True):
        lines = [line.strip() for line in block.strip().split("\n")]
        speaker = " ".join(heading[1].split()) if heading else speaker
        speech = "\n".join(lines[1:] if heading else lines)
        if speaker is not None and speech:
            speeches.setdefault(speaker, []).append(speech)
    return {name: "\n".join(said) for name, said in speeches.items()}


def _windows(texts: Mapping[str, str]) -> Items:
    for name, text in texts.items():
        yield from windows(name, codes(text))


def windows(name: str, text: np.ndarray) -> Iterator[SampleChunk]:
    """Yield all windows of 80 characters of a role's text, and the character that follows each."""
    samples = len(text) - WINDOW
    if samples < 1:
        return
    x, y = np.lib.stride_tricks.sliding_window_view(text[:-1], WINDOW), text[WINDOW:]
    cut, resume = in_time(samples)
    spans: tuple[tuple[Part, slice], ...] = (("train", slice(0, cut)), ("test", slice(resume, None)))
    for part, span in spans:
        for rows in slices(len(y[span]), WINDOW):
            few = y[span][rows]
            yield SampleChunk(part, x[span][rows], few, [name] * len(few))
