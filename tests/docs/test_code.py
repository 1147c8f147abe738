"""Every block of code in the documentation: Python runs as printed, TOML is a valid configuration."""

import re
import tomllib
import warnings

import pytest

from fedmos.config import schema as config
from fedmos.config.installation import ClientFile, is_client
from helpers.documents import blocks, pages, prose

PAGES = pages()
LANGUAGES = {"python", "toml", "sh", "text", "mermaid", "nginx", "ini", "yaml", "json", "systemd", "dockerfile"}
NOT_RUN = re.compile(r"<!-- not run: \S.* -->")
METHODS = [name for name in PAGES if name.startswith("docs/algorithms/")]
RUN = [name for name, text in PAGES.items() if name not in METHODS and blocks(text, "python")]


@pytest.mark.parametrize("page", PAGES)
def test_blocks_are_fenced_and_have_a_language(page):
    assert {block.language for block in blocks(PAGES[page])} <= LANGUAGES
    lines = prose(PAGES[page]).splitlines()
    indented = [i + 1 for i, line in enumerate(lines[1:], 1) if line.startswith("    ") and not lines[i - 1].strip()]
    lists = [i for i in indented if re.match(r" *([-*]|\d+\.) ", lines[i - 1]) or _in_list(lines, i - 1)]
    assert set(indented) == set(lists), "indented code has no language; use a fence"


def _in_list(lines, i):
    """Whether the lines above line `i` are an item of a list."""
    above = [line for line in lines[:i] if line.strip() and not line.startswith("    ")]
    return bool(above) and bool(re.match(r" *([-*]|\d+\.) ", above[-1]))


def run(page, folder):
    """Execute the Python blocks of a page one after another; those marked as not run are compiled only."""
    names = {"__name__": page}
    for block in blocks(PAGES[page], "python"):
        code = compile("\n" * block.line + block.text, page, "exec")
        if not NOT_RUN.fullmatch(block.above.strip()):
            exec(code, names)


@pytest.mark.parametrize("page", RUN)
def test_python_runs(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=UserWarning, module="torch")
        run(page, tmp_path)


def test_python_of_the_pages_of_methods_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert len([page for page in METHODS if blocks(PAGES[page], "python")]) > 35
    for page in METHODS:
        run(page, tmp_path)


def test_few_blocks_are_not_run():
    marked = [(page, block.above) for page, text in PAGES.items() for block in blocks(text, "python")]
    marked = [(page, above) for page, above in marked if NOT_RUN.fullmatch(above.strip())]
    assert len(marked) <= 6, marked


BASE = {
    "rounds": 30,
    "local_steps": 5,
    "data": {"name": "digits", "clients": 20, "partition": {"name": "Dirichlet", "alpha": 0.5}},
    "model": {"name": "cnn_digits"},
    "algorithm": {"name": "FedAvg", "lr": 0.1},
    "selection": {"name": "Uniform", "m": 5},
}
COMPARED = {"title": "a comparison", "seeds": [0], "target": {"accuracy": 0.9}, "methods": []}
OWN = """
import torch
import fedmos as fm
class Net(torch.nn.Linear):
    def __init__(self, width): super().__init__(width, 10)
class FedSAM(fm.FedAvg): pass
class Focal:
    def __init__(self, gamma): self.gamma = gamma
    def __call__(self, outputs, targets): return outputs.mean()
def top5(outputs, targets): return 0.0
def hospitals(year): return fm.datasets.load("digits").partition(fm.partition.IID(), clients=20)
class Mine(fm.FedAvg): pass
"""
"""The user's file mine.py that pages name."""
FLOWER = {"superlink", "tool", "project"}
"""Tables of Flower's files and of pyproject.toml."""
TOML = [(name, block) for name, text in PAGES.items() for block in blocks(text, "toml")]


@pytest.mark.parametrize(("page", "block"), TOML, ids=[f"{name}:{block.line}" for name, block in TOML])
def test_toml_is_a_valid_configuration(page, block, tmp_path):
    table = tomllib.loads(block.text)
    assert table
    if set(table) & FLOWER:
        return
    if is_client(table):
        config.parse(ClientFile, table, page)
        return
    kind, whole = config.RunConfig, dict(BASE)
    if set(table) & {"methods", "tune", "seeds"}:
        kind = config.CompareConfig
        whole = {key: value for key, value in BASE.items() if key not in ("algorithm", "selection")} | COMPARED
    elif "sweep" in table:
        kind = config.SweepConfig
    for key, value in table.items():
        nested = isinstance(value, dict) and isinstance(whole.get(key), dict) and "name" not in value
        whole[key] = {**whole[key], **value} if nested else value
    (tmp_path / "mine.py").write_text(OWN)
    text = config.parse(kind, _with_path(whole, tmp_path), page)
    assert set(table) <= set(type(text).model_fields) | {"deploy"}


def _with_path(value, folder):
    """Return a table with `mine.py:` found in a folder."""
    if isinstance(value, dict):
        return {key: _with_path(one, folder) for key, one in value.items()}
    if isinstance(value, list):
        return [_with_path(one, folder) for one in value]
    return value.replace("mine.py:", f"{folder}/mine.py:") if isinstance(value, str) else value


def test_an_invalid_configuration_would_be_found(tmp_path):
    with pytest.raises(ValueError, match="local_step"):
        config.parse(config.RunConfig, BASE | {"local_step": 3}, "page")


def test_the_configuration_page_is_a_run():
    block = blocks(PAGES["docs/configuration.md"], "toml")[0]
    table = tomllib.loads(block.text) | {"rounds": 2, "eval_every": 1}
    settings = config.parse(config.RunConfig, table, "page")
    assert len(settings.run(settings.algorithm, settings.selection, settings.seed).history) == 2
