"""The examples in the docstrings of public objects run and print what they show."""

import doctest
import inspect
import sys
from pathlib import Path

import pytest
import torch

import fedmos as fm

sys.path.insert(0, str(Path(__file__).parent.parent / "tools" / "site"))

from reference_pages import GROUPS, MODULES, members


def public():
    """Every object that the API reference has, by name: classes and functions."""
    found = {name: getattr(fm, name) for _, names in GROUPS.values() for name in names.split()}
    found |= {f"{key}.{name}": getattr(module, name) for key, module in MODULES.items() for name in members(module)}
    return {name: value for name, value in found.items() if inspect.isclass(value) or inspect.isfunction(value)}


def documented():
    """Every public object with an example, and the public members of public modules and classes, by name."""
    found = {}
    for name, value in ({name: getattr(fm, name) for name in fm.__all__} | public()).items():
        members = {name: value}
        for path, member in list(members.items()):
            if inspect.isclass(member):
                members |= {f"{path}.{key}": v for key, v in vars(member).items() if not key.startswith("_")}
        for path, member in members.items():
            member = inspect.unwrap(member.__func__ if isinstance(member, classmethod | staticmethod) else member)
            if ">>>" in (getattr(member, "__doc__", None) or ""):
                found.setdefault(id(member), (path, member.__doc__))
    return dict(sorted(found.values()))


@pytest.fixture(scope="module")
def names():
    """The names that examples use without defining them."""
    data = fm.datasets.load("digits").partition(fm.partition.Dirichlet(alpha=0.5), clients=10)
    return {"fm": fm, "torch": torch, "data": data, "model": fm.models.logistic(features=64)}


EXAMPLES = documented()


@pytest.mark.parametrize("name", EXAMPLES)
def test_example(name, names, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    example = doctest.DocTestParser().get_doctest(EXAMPLES[name], dict(names), name, None, 0)
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    report = []
    runner.run(example, out=report.append)
    assert runner.failures == 0, "".join(report)


def test_every_public_name_has_an_example():
    missing = {name for name in fm.__all__ if name != "__version__" and "Example" not in getattr(fm, name).__doc__}
    assert not missing


def test_every_public_object_has_an_example():
    """All objects of the API reference: also those in public modules."""
    found = public()
    assert len(found) > 190
    assert [name for name, value in found.items() if ">>>" not in (inspect.getdoc(value) or "")] == []
