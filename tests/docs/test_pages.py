"""Pages link to what exists, are in the site's navigation, and name modules and functions that exist."""

import inspect
import json
import re

import pytest
import yaml

import fedmos as fm
from helpers.documents import ROOT, pages

PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
REPOSITORY = re.compile(
    r"https://(?:github\.com/fedmos/fedmos/blob|raw\.githubusercontent\.com/fedmos/fedmos)/(?:main/)"
)


def anchor(heading: str) -> str:
    """The anchor that GitHub gives to a heading."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def check_link(link: str, page) -> None:
    if REPOSITORY.match(link):
        link, page = REPOSITORY.sub("", link), ROOT / "README.md"
    if link.startswith("http"):
        return
    path, _, place = link.partition("#")
    target = page.parent / path if path else page
    assert target.exists(), link
    if place:
        assert place in map(anchor, re.findall(r"^#+ (.*)$", target.read_text("utf-8"), re.M)), link


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_between_pages_exist(page):
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text("utf-8")):
        check_link(link, page)


def test_links_of_notebooks_exist():
    for path in (ROOT / "docs" / "tutorials").glob("*.ipynb"):
        cells = json.loads(path.read_text("utf-8"))["cells"]
        for cell in (cell for cell in cells if cell["cell_type"] == "markdown"):
            for link in re.findall(r"\]\(([^)\s]+)\)", "".join(cell["source"])):
                check_link(link, path)


def test_the_readme_is_short_and_works_away_from_the_repository():
    text = (ROOT / "README.md").read_text("utf-8")
    assert len(text.splitlines()) < 80
    assert [link for link in re.findall(r"\]\(([^)\s]+)\)", text) if not link.startswith("https://")] == []


class Loader(yaml.SafeLoader):
    """Reads mkdocs.yml without the Python objects that it names."""


Loader.add_multi_constructor("tag:yaml.org,2002:python/", lambda loader, suffix, node: None)


def test_every_page_of_docs_is_in_the_navigation():
    def leaves(value):
        if isinstance(value, str):
            return [value]
        return [leaf for one in (value.values() if isinstance(value, dict) else value) for leaf in leaves(one)]

    listed = leaves(yaml.load((ROOT / "mkdocs.yml").read_text("utf-8"), Loader)["nav"])
    assert len(listed) == len(set(listed))
    there = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    there |= {path.relative_to(ROOT / "docs").as_posix()[:-6] + ".md" for path in (ROOT / "docs").rglob("*.ipynb")}
    assert {page for page in listed if not page.startswith("reference/")} == there


def test_every_option_of_a_run_has_its_default_and_an_example_on_its_page():
    text = (ROOT / "docs/running.md").read_text("utf-8")
    rows = {row[0]: row[1:] for row in re.findall(r"^\| `(\w+)` \| `?(.*?)`? \| (`.+?) \| .+ \|$", text, re.M)}
    options = inspect.signature(fm.run).parameters
    assert sorted(rows) == sorted(options)
    for name, (default, _) in rows.items():
        expected = options[name].default
        assert default == ("required" if expected is inspect.Parameter.empty else repr(expected)), name


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "docs/engine.md"])
def test_modules_that_the_developer_pages_name_exist(page):
    paths = set(re.findall(r"[`>]((?:\w+/)+\w+\.py)\b", (ROOT / page).read_text("utf-8")))
    assert len(paths) > 5
    assert [path for path in paths if not ((ROOT / path).exists() or (ROOT / "src/fedmos" / path).exists())] == []


def test_functions_that_the_engine_page_names_exist():
    text = (ROOT / "docs/engine.md").read_text("utf-8")
    sources = "\n".join(path.read_text("utf-8") for path in (ROOT / "src/fedmos").rglob("*.py"))
    named = re.findall(r"^\| \d+ \| `([\w.]+)` \(`([\w/]+\.py)`\)", text, re.M)
    assert len(named) == 8, "from fm.run to the server's step, naming at most eight functions"
    for name, path in named:
        assert re.search(rf"def {name.split('.')[-1]}\(", (ROOT / "src/fedmos" / path).read_text("utf-8")), name
    for name in set(re.findall(r"`([A-Z]\w+)(?:\.\w+)?`", text)) - {"N", "S", "M", "R", "D"}:
        assert re.search(rf"^(class {name}\b|{name}\b)", sources, re.M), name


AVOIDED = r"crew|errand|visit|blame|hire|letters|seat|tether|troupe|onlooker|foresee|fitness|ledger|knock|befriend|whose fault"
"""Words of metaphors that DESIGN.md replaces by common terms; `letters` in the sense of characters is accepted."""
ACCEPTED = {"docs/data.md": {"letters"}, "docs/robust.md": {"letters"}}


@pytest.mark.parametrize("page", pages())
def test_words(page):
    found = {word.lower() for word in re.findall(rf"\b(?:{AVOIDED})s?\b", pages()[page], re.I)}
    assert not found - ACCEPTED.get(page, set())
