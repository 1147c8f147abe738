"""Check the pages of the documentation site in Chromium, and write its screenshots.

    python tools/site_screenshots.py [FOLDER]

FOLDER holds a built site; without it, the site is built into a temporary folder. Every page is opened at the width of a
phone, three pages also on a wide screen, light and dark. The screenshots go to docs/images. Needs Chromium.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from report_screenshots import ROOT, save

from helpers.browser import Browser, browser

LOOKS = {"light": (1280, 800, False), "dark": (1280, 800, True), "phone": (390, 844, False)}
PAGES = {"home": "index.html", "guide": "codecs.html", "method": "algorithms/fedmos.html"}
SAVED = ("home-light", "home-dark", "guide-light", "guide-phone", "method-dark", "method-phone")
READY = 'document.readyState === "complete" && !document.getAnimations().length'
QUESTIONS = """
answer.overflow = document.documentElement.scrollWidth - document.documentElement.clientWidth;
answer.missing = [...document.images].filter((image) => !image.naturalWidth).map((image) => image.src);
"""


def main() -> None:
    with tempfile.TemporaryDirectory() as temporary:
        site = Path(sys.argv[1] if len(sys.argv) > 1 else temporary)
        if site == Path(temporary):
            command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", temporary]
            subprocess.run(command, cwd=ROOT, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"}, check=True)
        found = check_all(site) + shoot_all(site)
    print("\n".join(found) or "no page overflows, logs an error or lacks a file")
    sys.exit(bool(found))


def check_all(site: Path) -> list[str]:
    """Return the problems of all pages on a phone."""
    pages = sorted(site.rglob("*.html"))
    assert pages, f"{site} has no pages"
    return [problem for page in pages for problem in problems(browser(), page, "phone")]


def shoot_all(site: Path) -> list[str]:
    """Write the screenshots, and return the problems of their pages in all looks."""
    found = []
    for name, place in PAGES.items():
        for look in LOOKS:
            found += problems(browser(), site / place, look)
            if f"{name}-{look}" in SAVED:
                save(browser(), f"site-{name}-{look}")
    return found


def problems(chromium: Browser, page: Path, look: str) -> list[str]:
    """Open a page; return a line for each of its errors, missing files and remote requests, and if it overflows."""
    chromium.open(page, *LOOKS[look])
    answer = chromium.ask(QUESTIONS, READY)
    found = answer["faults"] + chromium.bad_requests() + [f"missing image: {image}" for image in answer["missing"]]
    if answer["overflow"] > 0:
        found.append(f"wider than the window by {answer['overflow']} px")
    return [f"{page.parent.name}/{page.name} ({look}): {problem}" for problem in found]


if __name__ == "__main__":
    main()
