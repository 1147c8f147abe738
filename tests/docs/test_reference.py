"""What the API reference shows of docstrings that are completed when the package is imported."""

import inspect
import sys

import pytest

import fedmos as fm
from helpers.documents import ROOT

griffe = pytest.importorskip("griffe")
sys.path.insert(0, str(ROOT / "tools" / "site"))

Sections = pytest.importorskip("griffe_sections").Sections


@pytest.fixture(scope="module")
def package():
    return griffe.load("fedmos", search_paths=[ROOT / "src"], extensions=griffe.Extensions(Sections()))


def test_the_reference_of_run_has_every_option(package):
    shown = package["run.api.run"]
    expected = inspect.signature(fm.run).parameters
    assert [(one.name, one.kind.value) for one in shown.parameters] == [
        (one.name, one.kind.description) for one in expected.values()
    ]
    assert shown.parameters["device"].annotation == "str | torch.device"
    (section,) = [one for one in shown.docstring.parse("google") if one.kind.value == "parameters"]
    assert [one.name for one in section.value] == list(expected)
    assert all(one.description for one in section.value)


def test_pages_named_in_docstrings_are_links(package):
    assert "[docs/personal.md](../personal.html)" in package["run.api.run"].docstring.value


def test_public_modules_are_attributes_of_the_package():
    import fedmos.diagnostics
    import fedmos.tracking

    assert fm.tracking.Tracker is fedmos.tracking.Tracker
    assert "drift" in " ".join(fedmos.diagnostics.MEASURES)
