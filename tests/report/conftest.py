"""A comparison and its report, shared by the tests of this folder."""

import pytest

from fedmos.report import page
from helpers import comparisons
from helpers.command_line import command_line_process
from helpers.studies import large_study


@pytest.fixture(scope="session")
def comparison(tmp_path_factory):
    """The folder of a comparison."""
    out = tmp_path_factory.mktemp("comparison")
    comparisons.run(out)
    return out


@pytest.fixture(scope="session")
def written(comparison):
    """The file of its report."""
    done = command_line_process("report", str(comparison), "--out", str(comparison / "report.html"), cwd=comparison)
    assert done.returncode == 0, done.stderr
    return comparison / "report.html"


@pytest.fixture(scope="session")
def large_page() -> str:
    """The report of twenty runs of 5,000 rounds."""
    return page.html(large_study())
