"""The documentation's code works as printed."""

import re
from pathlib import Path

import pytest

from fedmos import config

ROOT = Path(__file__).parent.parent


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / page).read_text(), re.S)


@pytest.mark.parametrize("page", ["README.md", "docs/contract.md", "docs/data.md"])
def test_python_blocks_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code = "\n".join(blocks(page, "python"))
    assert "import fedmos as fm" in code
    exec(compile(code, page, "exec"), {"__name__": page})


def test_configuration_page_is_a_valid_run(tmp_path):
    (text,) = blocks("docs/configuration.md", "toml")
    (tmp_path / "mos.toml").write_text(text)
    settings = config.load(config.RunConfig, tmp_path / "mos.toml", ["rounds=2", "eval_every=1"])
    result = settings.run(settings.algorithm, settings.selection, settings.seed)
    assert len(result.history) == 2
