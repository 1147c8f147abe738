"""Check the built site: links and anchors inside it exist, and no page loads anything from the network.

Example: python tools/site/check_links.py site
"""

from __future__ import annotations

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

LOADED = {"img": "src", "script": "src", "source": "src", "iframe": "src"}


class Links(HTMLParser):
    """The anchors of a page, what it links to, and what it loads."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Collect one element."""
        values = {key: value for key, value in attrs if value}
        self.anchors |= {values[key] for key in ("id", "name") if key in values}
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        if tag in LOADED and LOADED[tag] in values:
            self.loaded.append(values[LOADED[tag]])
        if tag == "link" and "href" in values and values.get("rel") not in ("canonical", "prev", "next", "edit"):
            self.loaded.append(values["href"])


def problems(site: Path) -> list[str]:
    """Return a line for each link without a target and each file loaded from elsewhere."""
    pages = {path.resolve(): Links(path.read_text("utf-8")) for path in sorted(site.rglob("*.html"))}
    found = [] if pages else [f"{site} has no pages"]
    for path, page in pages.items():
        name = path.relative_to(site.resolve())
        found += [f"{name} loads {url}" for url in page.loaded if urlsplit(url).scheme in ("http", "https")]
        found += [f"{name} links to {url}" for url in page.links + page.loaded if not _exists(url, path, pages)]
    return found


def _exists(url: str, page: Path, pages: dict[Path, Links]) -> bool:
    parts = urlsplit(url)
    if parts.scheme or parts.netloc:
        return True
    target = (page.parent / unquote(parts.path)).resolve() if parts.path else page
    if not target.is_file() and not (target.is_dir() and (target / "index.html").is_file()):
        return False
    anchor = unquote(parts.fragment)
    return not anchor or anchor.startswith("__") or target not in pages or anchor in pages[target].anchors


def main() -> None:
    """Print the problems of the site, and end with an error if there are any."""
    site = Path(sys.argv[1])
    found = problems(site)
    print(
        "\n".join(found) or f"{sum(1 for _ in site.rglob('*.html'))} pages: all links exist, nothing external is loaded"
    )
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
