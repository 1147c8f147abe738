"""Arrays and splits of any shape are accepted and trained on, or refused with a sentence."""

from collections import Counter

from hypothesis import HealthCheck, given, settings

from helpers.data_checks import check_arrays, check_split
from helpers.data_fuzz import federations, splits

QUICK = settings(max_examples=200, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))


def test_arrays():
    seen = Counter()

    @QUICK
    @given(federations())
    def run(federation):
        seen[check_arrays(*federation)] += 1

    run()
    assert seen["refused"] > 20
    assert seen["trained"] > 5


@QUICK
@given(splits())
def test_splits(split):
    check_split(split)
