"""Mermaid diagrams of the documentation as SVG files, so that the site draws them without a network.

`python tools/site/diagrams.py MERMAID.JS` draws every diagram that has no file yet, with Chromium and the file
`dist/mermaid.min.js` of the npm package `mermaid`, into `docs/images/diagrams`. A file is named by a hash of the
diagram's text. A diagram without a file is shown as text.
"""

from __future__ import annotations

import hashlib
import html
import posixpath
import re
import subprocess
import sys
import tempfile
from pathlib import Path

BLOCK = re.compile(r"^```mermaid\n(.*?)^```$", re.S | re.M)
FOLDER = "images/diagrams"
READABLE = 0.6
"""The smallest scale of a drawing; wider ones scroll."""


def name(text: str) -> str:
    """Return the file name of a diagram."""
    return hashlib.sha256(text.encode()).hexdigest()[:12] + ".svg"


def with_drawings(markdown: str, uri: str, docs: Path) -> str:
    """Return a page with its Mermaid blocks replaced by their drawings."""

    def drawing(match: re.Match[str]) -> str:
        file = docs / FOLDER / name(match[1])
        if not file.exists():
            return f"```text\n{match[1]}```"
        place = posixpath.relpath(f"{FOLDER}/{file.name}", posixpath.dirname(uri) or ".")
        width = re.findall(r' width="([\d.]+)"', file.read_text("utf-8"))[0]
        return f'![Diagram]({place}){{ .diagram style="min-width: {READABLE * float(width):.0f}px" }}'

    return BLOCK.sub(drawing, markdown)


def draw(text: str, script: Path) -> str:
    """Return the SVG that Mermaid draws of a diagram, in headless Chromium."""
    text = re.sub(r"</?b>", "", text)  # drawings have no HTML
    page = f"""<!doctype html><meta charset="utf-8"><pre class="mermaid">{html.escape(text)}</pre>
<script src="{script.resolve().as_uri()}"></script>
<script>mermaid.initialize({{startOnLoad: true, theme: "neutral", htmlLabels: false,
  flowchart: {{htmlLabels: false, useMaxWidth: false}}}});</script>"""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "page.html"
        file.write_text(page, "utf-8")
        flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]
        flags += [f"--user-data-dir={folder}/profile", "--virtual-time-budget=10000", "--dump-dom"]
        dom = subprocess.run(["chromium", *flags, file.as_uri()], capture_output=True, text=True, timeout=120).stdout
    found = re.search(r"<svg.*?</svg>", dom, re.S)
    if found is None or "Syntax error" in found[0]:
        raise ValueError(f"Cannot draw the diagram because Mermaid refuses it: {text[:80]!r}")
    svg = found[0].replace("<br>", "<br/>")
    return svg if "xmlns=" in svg[:300] else svg.replace("<svg", '<svg xmlns="http://www.w3.org/2000/svg"', 1)


def main() -> None:
    """Draw the diagrams of all pages, and delete drawings that no page uses."""
    root = Path(__file__).resolve().parents[2]
    pages = [root / "CONTRIBUTING.md", *(root / "docs").rglob("*.md")]
    texts = {name(text): text for page in pages for text in BLOCK.findall(page.read_text("utf-8"))}
    folder = root / "docs" / FOLDER
    folder.mkdir(exist_ok=True)
    for file in folder.glob("*.svg"):
        if file.name not in texts:
            file.unlink()
    for file_name, text in texts.items():
        if not (folder / file_name).exists():
            (folder / file_name).write_text(draw(text, Path(sys.argv[1])) + "\n", "utf-8")


if __name__ == "__main__":
    main()
