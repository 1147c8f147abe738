"""10,000 configurations gone wrong (`make test-faults`): no traceback, and nothing invalid accepted."""

import pytest
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

import fedmos as fm
from helpers.config_checks import check_mutated, check_text, check_torn
from helpers.config_fuzz import CUTS, MUTATIONS, quick_load

pytestmark = pytest.mark.slow

MANY = settings(
    max_examples=3400, deadline=None, derandomize=False, database=None, suppress_health_check=list(HealthCheck)
)


@pytest.fixture(autouse=True)
def _quick_digits(monkeypatch):
    monkeypatch.setattr(fm.datasets, "load", quick_load)


@seed(1)
@MANY
@given(st.integers(0, 1), MUTATIONS)
def test_changed_tables(number, mutations):
    check_mutated(number, mutations)


@seed(2)
@MANY
@given(st.integers(0, 1), MUTATIONS)
def test_changed_files(tmp_path_factory, number, mutations):
    check_text(number, mutations, tmp_path_factory.getbasetemp() / "changed.toml")


@seed(3)
@MANY
@given(st.integers(0, 1), CUTS)
def test_torn_files(tmp_path_factory, number, cuts):
    check_torn(number, cuts, tmp_path_factory.getbasetemp() / "torn.toml")
