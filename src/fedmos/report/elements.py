"""Elements of the report's page."""

from __future__ import annotations

import json
from collections.abc import Sequence
from html import escape
from importlib import resources
from typing import Any

_POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"
_SCRIPTS = ("plotly-basic.min.js", "theme.js", "curves.js", "hover.js", "figures.js", "tables.js", "page.js")


def html_document(title: str, parts: Sequence[str], data: dict[str, Any]) -> str:
    """Return the page; its script draws the figures from `data`."""
    scripts = "\n".join(f"<script>{asset(name)}</script>" for name in _SCRIPTS)
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{_POLICY}">
<link rel="icon" href="data:,">
<title>{escape(title)}</title>
<style>{asset("page.css")}</style>
</head>
<body>
<main>
{chr(10).join(parts)}
</main>
<script type="application/json" id="data">{_json(data)}</script>
{scripts}
</body>
</html>
"""


def asset(name: str) -> str:
    """Return a file of the package's folder `assets`."""
    return resources.files("fedmos.report").joinpath("assets", name).read_text("utf-8")


def _json(data: Any) -> str:
    """Return JSON that can stand in a script element, which "</script" would end."""
    return json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")


def html_figure(name: str, description: str, caption: str, low: bool = False) -> str:
    """Return an empty figure that the script fills."""
    kind = "plot low" if low else "plot"
    return (
        f'<figure><div class="{kind}" id="plot-{name}" role="img" aria-label="{escape(description)}"></div>'
        f"<figcaption>{escape(caption)}</figcaption></figure>"
    )
