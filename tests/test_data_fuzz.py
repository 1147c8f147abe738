"""A few hundred malformed federations: each is refused in a sentence, or trains to a finite model."""

from collections import Counter

from hypothesis import HealthCheck, given, settings

import fedmos as fm
from data_fuzz import federations, outcome, splits

QUICK = settings(max_examples=200, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))


def check_arrays(arguments, model, loss, train=True):
    return outcome(lambda: fm.FederatedData.from_arrays(**arguments), model, loss, train)


def check_split(split, train=True):
    dataset, parts, clients = split
    return outcome(lambda: dataset.partition(fm.partition.Fixed(parts), clients), "linear", "cross_entropy", train)


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
