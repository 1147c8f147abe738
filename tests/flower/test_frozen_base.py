"""A deployment of adapters on a frozen base: clients have the base, and only adapters are sent."""

from __future__ import annotations

import pytest
import torch

import fedmos as fm

pytest.importorskip("flwr", reason="flwr is not installed: pip install 'fedmos[flower]'")
from helpers.flower_runs import arguments, assert_same, model


@pytest.mark.parametrize("engine", ["loop", "batched"])
def test_the_same_as_the_simulation(deployed, engine):
    adapted = fm.models.lora(model(), 2, "0", dropout=0.2, train="2.*")
    given = arguments(model=adapted, algorithm=fm.Scaffold(lr=0.05), engine=engine)
    result, expected = deployed(given).run(), fm.run(**given)
    assert_same(result, expected)
    D = 2 * (5 + 8) + 8 * 3 + 3
    for record in result.history:
        assert record.bytes_down == record.bytes_up == 4 * len(record.cohort) * 2 * D
    assert torch.equal(result.model[0].base_layer.weight, adapted[0].base_layer.weight)
