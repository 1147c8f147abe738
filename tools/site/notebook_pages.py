"""Markdown of a notebook: its text, its code, and the outputs that are stored in it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def notebook_markdown(path: Path) -> str:
    """Return a notebook as Markdown with the outputs that it contains."""
    cells = json.loads(path.read_text("utf-8"))["cells"]
    parts = [part for cell in cells for part in _parts(cell)]
    parts.insert(1, f'*This page is a notebook: <a href="{path.name}" download>download it</a>.*')
    return "\n\n".join(parts) + "\n"


def _parts(cell: dict[str, Any]) -> list[str]:
    source = "".join(cell["source"])
    if cell["cell_type"] == "markdown":
        return [source]
    return [f"```python\n{source}\n```", *filter(None, map(_output, cell["outputs"]))]


def _output(output: dict[str, Any]) -> str:
    if output["output_type"] == "stream":
        return f"```{{ .text .output }}\n{''.join(output['text']).rstrip()}\n```"
    data = output.get("data", {})
    if "image/png" in data:
        return (
            f'<img alt="The figure of the cell above" src="data:image/png;base64,{"".join(data["image/png"]).strip()}">'
        )
    if "text/plain" in data:
        return f"```{{ .text .output }}\n{''.join(data['text/plain']).rstrip()}\n```"
    return ""
