"""A comparison and its report, shared by the tests of this folder."""

import pytest

from helpers import comparisons
from helpers.command_line import command_line


@pytest.fixture(scope="session")
def comparison(tmp_path_factory):
    """The folder of a comparison."""
    out = tmp_path_factory.mktemp("comparison")
    comparisons.run(out)
    return out


@pytest.fixture(scope="session")
def written(comparison):
    """The file of its report."""
    done = command_line("report", str(comparison), "--out", str(comparison / "report.html"), cwd=comparison)
    assert done.returncode == 0, done.stderr
    return comparison / "report.html"
