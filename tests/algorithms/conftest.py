"""Fixtures for tests of algorithms."""

import pytest


@pytest.fixture(params=["batched", *(pytest.param(name, marks=pytest.mark.extended) for name in ("loop", "auto"))])
def engine(request):
    """An engine; `test_engines_agree` compares the others with it in the default suite."""
    return request.param
