"""The files of the project: versions, citation, templates and workflows."""

import re
import runpy
import shutil
import tomllib
from pathlib import Path

import pytest
import yaml

import fedmos as fm

ROOT = Path(__file__).parent.parent
check_release = runpy.run_path(str(ROOT / "tools" / "check_release.py"))


def test_all_files_have_the_version_of_the_package():
    assert set(check_release["versions"](ROOT).values()) == {fm.__version__}
    assert check_release["problem"](ROOT, f"v{fm.__version__}") is None
    assert "the tag has 9.9.9" in check_release["problem"](ROOT, "v9.9.9")


def test_a_different_version_in_a_file_is_found(tmp_path):
    for name in check_release["PLACES"]:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    citation = tmp_path / "CITATION.cff"
    citation.write_text(citation.read_text().replace(f"version: {fm.__version__}", "version: 7.7.7"))
    assert "CITATION.cff has 7.7.7" in check_release["problem"](tmp_path)


def test_the_citation_has_the_fields_that_the_format_requires():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))
    assert citation["cff-version"] == "1.2.0"
    assert {"message", "title", "authors"} <= set(citation)
    assert all(set(author) <= {"name", "family-names", "given-names", "orcid"} for author in citation["authors"])
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert citation["license"] == project["license"]
    assert citation["repository-code"] == project["urls"]["Source"]
    assert [author["name"] for author in citation["authors"]] == [author["name"] for author in project["authors"]]


FORMS = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))


@pytest.mark.parametrize("path", [form for form in FORMS if form.name != "config.yml"], ids=lambda path: path.stem)
def test_issue_forms_are_valid(path):
    form = yaml.safe_load(path.read_text("utf-8"))
    assert set(form) <= {"name", "description", "labels", "title", "assignees", "body"}
    assert {"name", "description", "body"} <= set(form)
    for field in form["body"]:
        assert field["type"] in {"textarea", "input", "dropdown", "checkboxes", "markdown"}
        assert field["attributes"]["label"]
    names = [field["id"] for field in form["body"]]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("name", ["ci", "release"])
def test_workflows_use_what_exists(name):
    text = (ROOT / ".github" / "workflows" / f"{name}.yml").read_text("utf-8")
    workflow = yaml.safe_load(text)
    assert workflow["permissions"] == {"contents": "read"}
    for job in workflow["jobs"].values():
        assert set(job.get("needs", "").split()) <= set(workflow["jobs"])
    makefile = (ROOT / "Makefile").read_text("utf-8")
    targets = [target for job in workflow["jobs"].values() for target in _targets(job)]
    assert all(re.search(rf"^{re.escape(target)}:", makefile, re.M) for target in targets)
    for tool in re.findall(r"python (tools/\S+\.py)", text):
        assert (ROOT / tool).exists()


def _targets(job: dict) -> list[str]:
    """The targets of `make` that a job runs."""
    matrix = job.get("strategy", {}).get("matrix", {})
    found = [match[1] for step in job["steps"] if (match := re.match(r"make (\S+|\$\{\{.*?\}\})", step.get("run", "")))]
    return [name for target in found for name in (matrix["target"] if target.startswith("${{") else [target])]


def test_only_the_job_that_publishes_may_ask_for_an_identity():
    workflow = yaml.safe_load((ROOT / ".github/workflows/release.yml").read_text("utf-8"))
    assert [name for name, job in workflow["jobs"].items() if "permissions" in job] == ["publish"]
    assert workflow["jobs"]["publish"]["needs"] == "wheel"
    assert workflow["jobs"]["publish"]["if"] == "github.ref_type == 'tag'"
