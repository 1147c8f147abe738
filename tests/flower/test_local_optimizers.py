"""A deployment with local optimisers: the bits and bytes of the simulation."""

from __future__ import annotations

import pytest

import fedmos as fm

pytest.importorskip("flwr", reason="flwr is not installed: pip install 'fedmos[flower]'")
from helpers.flower_runs import arguments, assert_same, model

D = sum(p.numel() for p in model().parameters())
LOCALS = {
    "averaged": (fm.local.AdamW(average=True), 2 * D + 1),
    "kept": ([fm.local.SAM(rho=0.1), fm.local.SGD(momentum=0.9, keep=True)], 0),
    "both": ([fm.local.Adam(keep=True), fm.local.Muon(average=True)], D),
}


@pytest.mark.parametrize("engine", ["loop", pytest.param("batched", marks=pytest.mark.extended)])
@pytest.mark.parametrize("name", LOCALS)
def test_the_same_as_the_simulation(deployed, name, engine):
    """The server counts what it sends and receives; that is what the state declares, its numbers included."""
    local, extra = LOCALS[name]
    given = arguments(algorithm=fm.Scaffold(lr=0.05), local=local, engine=engine)
    result, expected = deployed(given).run(), fm.run(**given)
    assert_same(result, expected)
    for record in result.history:
        numbers = len(record.cohort) * (2 * D + extra)
        assert (record.bytes_down, record.bytes_up) == (4 * numbers, 4 * numbers)
