"""The lines of logs that the pages about deployments quote."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "deploy" / "security.md"


def quoted_lines() -> list[str]:
    """Return the quoted lines: those of blocks ```text. In them, … stands for anything."""
    blocks = re.findall(r"```text\n(.*?)```", PAGE.read_text("utf-8"), re.S)
    return [line for block in blocks for line in block.splitlines()]


def is_quoted(line: str) -> bool:
    """Whether the page quotes a line."""
    patterns = [".+?".join(map(re.escape, quoted.split("…"))) for quoted in quoted_lines()]
    return any(re.fullmatch(pattern, line.strip()) for pattern in patterns)
