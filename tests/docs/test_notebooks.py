"""The notebooks of the tutorials run from top to bottom and give the outputs that are stored in them."""

import re
import runpy
from pathlib import Path

import nbformat
import pytest

from helpers.documents import ROOT

FOLDER = ROOT / "docs" / "tutorials"
NOTEBOOKS = sorted(path.name for path in FOLDER.glob("*.ipynb"))
NUMBER = re.compile(r"-?\d+(?:\.\d+)?")


def outputs(notebook) -> list[tuple[str, str]]:
    """The kind and the text of every output; a figure has no text."""
    found = []
    for cell in notebook.cells:
        for output in cell.get("outputs", ()):
            data = output.get("data", {})
            found.append((output.get("name") or min(data), output.get("text") or data.get("text/plain", "")))
    return found


def close(before: str, now: str) -> bool:
    """Whether two texts differ in numbers only, and in these by a tenth at most: processors round differently."""
    a, b = ([float(word) for word in NUMBER.findall(text)] for text in (before, now))
    same = [NUMBER.sub("0", " ".join(text.split())) for text in (before, now)]
    return same[0] == same[1] and all(abs(x - y) <= 0.1 * max(1, abs(x)) for x, y in zip(a, b, strict=True))


def test_there_are_three():
    assert NOTEBOOKS == ["images.ipynb", "table.ipynb", "text.ipynb"]


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_notebook_gives_its_outputs(name, monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(ROOT / "tools" / "site"))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path))
    executed = runpy.run_path(str(ROOT / "tools" / "site" / "run_notebooks.py"))["executed"]
    stored, now = nbformat.read(FOLDER / name, as_version=4), executed(Path(FOLDER / name))
    assert "stderr" not in [kind for kind, _ in outputs(now)]
    assert [kind for kind, _ in outputs(stored)] == [kind for kind, _ in outputs(now)]
    for (_, before), (_, after) in zip(outputs(stored), outputs(now), strict=True):
        assert close(before, after), after


def test_changed_outputs_would_be_found():
    assert close("accuracy 0.83", "accuracy 0.85")
    assert not close("accuracy 0.83", "accuracy 0.53")
    assert not close("accuracy 0.83", "loss 0.83")
