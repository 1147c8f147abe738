"""Files of the repository that pages link to and that are no pages themselves: they become pages of the site."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

LINK = re.compile(r"(?<=\]\()(?!\w+:|#)([^)\s#]+)(#[^)\s]*)?(?=\))")
LANGUAGES = {".py": "python", ".toml": "toml", ".sh": "sh"}
LISTED = {*LANGUAGES, ".md", ".json"}


def page_of(path: str) -> str:
    """Return the file of the site that shows the file or folder `path` of the repository."""
    if path == "README.md":
        return "README.md"
    suffix = posixpath.splitext(path)[1]
    if path.startswith("docs/") and suffix not in ("", ".py"):
        return path.removeprefix("docs/").replace(".ipynb", ".md")
    return f"files/{path}.md"


def _path_of(uri: str) -> str:
    """Return the file of the repository that the page `uri` of the site shows."""
    return uri.removeprefix("files/").removesuffix(".md") if uri.startswith("files/") else f"docs/{uri}"


def _target(link: str, source: str) -> str:
    return posixpath.normpath(posixpath.join(posixpath.dirname(source), link))


def linked_files(root: Path) -> set[str]:
    """Return the files and folders that need a page, because pages link to them, directly or through others."""
    found: set[str] = set()
    pages = [path.relative_to(root).as_posix() for path in sorted((root / "docs").rglob("*.md"))]
    while pages:
        source = pages.pop()
        links = [_target(link, source) for link, _ in LINK.findall((root / source).read_text("utf-8"))]
        links += [file for link in links for file in _listed(root, link)]
        new = {link for link in links if (root / link).exists() and page_of(link).startswith("files/")} - found
        found |= new
        pages += [path for path in new if path.endswith(".md")]
    return found


def _listed(root: Path, path: str) -> list[str]:
    """Return the files of a folder, none for a file."""
    if not (root / path).is_dir():
        return []
    files = sorted(file for file in (root / path).rglob("*") if file.is_file() and file.suffix in LISTED)
    return [file.relative_to(root).as_posix() for file in files]


def shown(root: Path, path: str) -> str:
    """Return the page of a file: its text as a page, its code in a block, or the list of a folder's files."""
    file = root / path
    if file.suffix == ".md":
        return file.read_text("utf-8")
    search = "---\nsearch:\n  exclude: true\n---\n\n"
    if file.is_dir():
        above = posixpath.dirname(path) or "."
        lines = [f"- [`{name}`]({posixpath.relpath(name, above)})" for name in _listed(root, path)]
        return f"{search}# `{path}`\n\n" + "\n".join(lines) + "\n"
    return f"{search}# `{path}`\n\n````{LANGUAGES.get(file.suffix, 'text')}\n{file.read_text('utf-8').rstrip()}\n````\n"


def rewrite_links(markdown: str, uri: str, root: Path) -> str:
    """Return the page with its links to files of the repository led to what shows them in the site."""
    source = _path_of(uri)

    def rewritten(match: re.Match[str]) -> str:
        target = _target(match[1], source)
        if not (root / target).exists():
            return match[0]
        return posixpath.relpath(page_of(target), posixpath.dirname(uri) or ".") + (match[2] or "")

    return LINK.sub(rewritten, markdown)
