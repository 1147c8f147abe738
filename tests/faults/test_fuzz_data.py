"""10,000 malformed federations (`make test-faults`): each is refused in a sentence, or trains to a finite model."""

import pytest
from hypothesis import HealthCheck, given, seed, settings

from helpers.data_checks import check_arrays, check_split
from helpers.data_fuzz import federations, splits

pytestmark = pytest.mark.slow


def many(examples):
    return settings(max_examples=examples, deadline=None, database=None, suppress_health_check=list(HealthCheck))


@seed(1)
@many(8000)
@given(federations())
def test_arrays(federation):
    check_arrays(*federation)


@seed(2)
@many(2000)
@given(splits())
def test_splits(split):
    check_split(split)
