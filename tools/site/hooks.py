"""MkDocs hooks of the documentation: pages that are generated, and links that leave `docs`.

| what | how |
|---|---|
| API reference and command line | generated from the package (`reference_pages.py`, `command_pages.py`) |
| notebooks | shown as Markdown with their stored outputs (`notebook_pages.py`), and copied for download |
| CONTRIBUTING.md, examples and source files that pages link to | shown as pages of the site (`repository_files.py`) |
| Mermaid diagrams | replaced by SVG files that `python tools/site/diagrams.py` draws (`diagrams.py`) |
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from command_pages import command_pages
from diagrams import with_drawings
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from notebook_pages import notebook_markdown
from reference_pages import reference_pages
from repository_files import linked_files, page_of, rewrite_links, shown

ROOT = Path(__file__).resolve().parents[2]


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the generated pages, and replace notebooks by their Markdown."""
    pages = reference_pages() | command_pages()
    for file in list(files):
        if file.src_uri.endswith(".ipynb"):
            pages[file.src_uri.removesuffix(".ipynb") + ".md"] = notebook_markdown(ROOT / "docs" / file.src_uri)
    for path in sorted(linked_files(ROOT)):
        pages[page_of(path)] = shown(ROOT, path)
    for uri, text in pages.items():
        files.append(File.generated(config, uri, content=text))
    return files


def on_page_markdown(markdown: str, *, page: Page, files: Files, **_: Any) -> str:
    """Rewrite links to files outside `docs`, and insert the drawings of diagrams."""
    return with_drawings(rewrite_links(markdown, page.file.src_uri, ROOT), page.file.src_uri, ROOT / "docs")


def on_post_build(*, config: MkDocsConfig) -> None:
    """Delete the page for missing addresses, which only a server shows and whose links do not work from the disk."""
    (Path(config.site_dir) / "404.html").unlink(missing_ok=True)
