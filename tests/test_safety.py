"""No code of the library unpickles or evaluates what it reads: not from files, and not from other processes.

The standard library's process pools (`experiments/compare.py`) pickle the arguments that this program itself gives its
own workers. They are the only exception, and need no call that is listed here.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src"

MODULES = {"pickle", "_pickle", "cPickle", "cloudpickle", "dill", "joblib", "jsonpickle", "marshal", "shelve"}
"""Modules that must not be imported."""

BUILTINS = {"eval", "exec", "compile", "__import__"}
"""Functions that must not be called by their plain names."""

QUALIFIED = {"torch.load", "torch.save", "yaml.load", "yaml.unsafe_load", "yaml.full_load"}
"""Functions that must not be used, by their full names."""

METHODS = {
    "all_gather_object", "broadcast_object_list", "gather_object", "scatter_object_list", "send_object_list",
    "recv_object_list", "read_pickle", "to_pickle",
}  # fmt: skip
"""Functions that must not be used, whatever module or object they belong to. The first six are torch's collectives."""


def full_name(node: ast.expr, aliases: dict[str, str]) -> str:
    """The dotted name of an expression, with imported names written in full; '' for any other expression."""
    if isinstance(node, ast.Name):
        return aliases.get(node.id, node.id)
    if isinstance(node, ast.Attribute) and (base := full_name(node.value, aliases)):
        return f"{base}.{node.attr}"
    return ""


def forbidden(code: str) -> Iterator[str]:
    """Every forbidden import, call and argument in a module."""
    tree = ast.parse(code)
    aliases: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            aliases |= {alias.asname: alias.name for alias in node.names if alias.asname}
            yield from (alias.name for alias in node.names if alias.name.split(".")[0] in MODULES)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
            aliases |= names
            yield from (name for name in names.values() if name.split(".")[0] in MODULES)
    for node in ast.walk(tree):
        if isinstance(node, ast.Name | ast.Attribute):
            name = full_name(node, aliases)
            last = node.attr if isinstance(node, ast.Attribute) else name.split(".")[-1]
            if name in QUALIFIED:
                yield name
            elif last in METHODS:
                yield last
            elif isinstance(node, ast.Name) and name in BUILTINS:
                yield name
        elif isinstance(node, ast.keyword) and node.arg == "allow_pickle" and ast.unparse(node.value) != "False":
            yield "allow_pickle"


def test_the_library_neither_pickles_nor_evaluates():
    files = sorted(SOURCE.rglob("*.py"))
    assert len(files) > 100
    found = {
        f"{path.relative_to(SOURCE.parent)}: {name}" for path in files for name in forbidden(path.read_text("utf-8"))
    }
    assert not found


@pytest.mark.parametrize(
    ("code", "name"),
    [
        ("import pickle", "pickle"),
        ("import os, dill as d", "dill"),
        ("from pickle import loads", "pickle.loads"),
        ("import torch\ntorch.load('x', weights_only=True)", "torch.load"),
        ("import torch as t\nt.load('x')", "torch.load"),
        ("from torch import load as read\nread('x')", "torch.load"),
        ("import yaml\nyaml.load(text, Loader)", "yaml.load"),
        ("import torch.distributed as dist\ndist.all_gather_object(boxes, 1)", "all_gather_object"),
        ("from torch.distributed import broadcast_object_list as b\nb(boxes)", "broadcast_object_list"),
        ("f = self.group.gather_object", "gather_object"),
        ("eval('1')", "eval"),
        ("import numpy as np\nnp.load('x', allow_pickle=True)", "allow_pickle"),
    ],
)
def test_each_way_of_writing_it_is_found(code, name):
    assert name in set(forbidden(code))


@pytest.mark.parametrize(
    "code",
    [
        "model.eval()",
        "import re\nre.compile('x')",
        "import safetensors.torch\nsafetensors.torch.load_file('x')",
        "import safetensors.torch\nsafetensors.torch.save({})",
        "import numpy as np\nnp.load('x', allow_pickle=False)",
        "import json\njson.load(file)",
    ],
)
def test_harmless_code_is_not(code):
    assert not set(forbidden(code))
