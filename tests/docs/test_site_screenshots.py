"""The check of the site's pages in a browser finds what is wrong with a page."""

import runpy

import pytest

from helpers import browser
from helpers.documents import ROOT

pytestmark = [pytest.mark.browser, browser.needs_browser]
PAGES = {
    "<p>A page.</p>": "",
    "<pre style='overflow-x: auto'>" + "wide " * 100 + "</pre>": "",
    "<pre>" + "wide " * 100 + "</pre>": "wider than the window",
    "<script>console.error('no figure')</script>": "error: no figure",
    "<link rel=stylesheet href=missing.css>": "ERR_FILE_NOT_FOUND: file:///",
    "<img src=missing.png>": "missing image: file:///",
    "<script src=http://127.0.0.1:9/script.js></script>": "needs the network: http://127.0.0.1:9/script.js",
}


@pytest.mark.parametrize("body", PAGES)
def test_problems_of_a_page(body, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    problems = runpy.run_path(str(ROOT / "tools" / "site_screenshots.py"))["problems"]
    page = tmp_path / "page.html"
    page.write_text(f"<!doctype html><meta name=viewport content='width=device-width'>{body}", "utf-8")
    found = "\n".join(problems(browser.browser(), page, "phone"))
    assert PAGES[body] in found
    assert bool(found) == bool(PAGES[body])
