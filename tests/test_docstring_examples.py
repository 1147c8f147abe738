"""The examples in the docstrings of public objects run and print what they show."""

import doctest
import inspect

import pytest
import torch

import fedmos as fm


def documented():
    """Every public object with an example, and the public members of public modules and classes, by name."""
    found = {}
    for name in fm.__all__:
        value = getattr(fm, name)
        members = {name: value}
        if inspect.ismodule(value):
            members |= {f"{name}.{key}": getattr(value, key) for key in getattr(value, "__all__", ())}
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
