"""Clients with similar numbers of steps train in groups, with the results of the whole cohort."""

from __future__ import annotations

from dataclasses import asdict, replace
from itertools import pairwise

import pytest
import torch

import fedmos as fm
from fedmos.engine import executor
from fedmos.engine.similar_steps import round_up, similar_steps

SIZES = (7, 120, 3, 15, 90, 1, 16, 4, 30, 8, 5, 60)


def time_of(groups: list[torch.Tensor], steps: torch.Tensor) -> int:
    return sum(int(steps[group].max()) * (8 + len(group)) for group in groups)


def every_division(M: int) -> list[list[tuple[int, int]]]:
    """All ways to cut M clients in order into parts of the sizes that groups may have."""
    if M == 0:
        return [[]]
    starts = [start for start in range(M) if round_up(M - start) == M - start]
    return [[*cuts, (start, M)] for start in starts for cuts in every_division(start)]


@pytest.mark.parametrize("seed", range(5))
def test_groups_take_the_least_estimated_time(seed):
    steps = torch.randint(1, 200, (9,), generator=torch.Generator().manual_seed(seed)) ** 2 // 100 + 1
    groups = similar_steps(steps)
    order = steps.argsort(descending=True, stable=True)
    least = min(time_of([order[a:b] for a, b in cuts], steps) for cuts in every_division(9))
    together = int(steps.max()) * (8 + 9)
    if groups is None:
        assert together <= 1.1 * least
        return
    assert torch.cat(groups).sort().values.equal(torch.arange(9))
    assert all(bool((group.diff() > 0).all()) for group in groups)
    assert all(int(steps[a].min()) >= int(steps[b].max()) for a, b in pairwise(groups))
    assert time_of(groups, steps) == least


def test_equal_steps_and_small_differences_stay_together():
    assert similar_steps(torch.full((30,), 12)) is None
    assert similar_steps(torch.tensor([20, 21, 22, 20, 19])) is None
    assert similar_steps(torch.tensor([500])) is None


DEADLINE = fm.System(speed=fm.LogNormal(median=50.0, sigma=1.0), deadline=20.0)
FEEDBACK = fm.codecs.ErrorFeedback(fm.codecs.TopK(0.1))
JOBS = {
    "FedAvg": (fm.FedAvg(lr=0.1), {}),
    "SCAFFOLD, some clients": (fm.Scaffold(lr=0.1), {"selection": fm.Uniform(m=9)}),
    "FedNova, momentum": (fm.FedNova(lr=0.1), {"local": fm.local.SGD(momentum=0.9)}),
    "FedMoS, deadline": (fm.FedMoS(lr=0.1), {"system": DEADLINE}),
    "feedback, personal": (fm.FedAvg(lr=0.1), {"uplink": FEEDBACK, "personal": ["2.*"]}),
    "median": (fm.FedAvg(lr=0.1), {"aggregation": fm.aggregation.Median()}),
    "reports": (fm.FedAvg(lr=0.1), {"selection": fm.OCS(m=4)}),
}


def trained(job: str, engine: str) -> tuple[torch.Tensor, list[dict], list[dict]]:
    """Train clients of unequal sizes; returns the model, the records without times, and the clients' state."""
    algorithm, more = JOBS[job]
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)
    clients = [(torch.randn(n, 6, generator=generator), torch.randint(3, (n,), generator=generator)) for n in SIZES]
    result = fm.run(
        torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.Tanh(), torch.nn.Linear(5, 3)),
        fm.FederatedData.from_arrays(clients),
        algorithm,
        **({"selection": fm.Full()} | more),
        rounds=4,
        local_epochs=2,
        batch_size=4,
        engine=engine,
        device="cpu",
        dtype=torch.float64,
        progress=False,
    )
    x = torch.nn.utils.parameters_to_vector(result.model.parameters()).detach()
    records = [asdict(replace(record, seconds=0.0)) for record in result.history]
    return x, records, [result.client_state(i) for i in range(len(SIZES))]


@pytest.mark.parametrize("job", JOBS)
def test_results_are_those_of_the_whole_cohort(monkeypatch, job):
    made = []

    def noted(steps: torch.Tensor) -> list[torch.Tensor] | None:
        made.append(similar_steps(steps))
        return made[-1]

    monkeypatch.setattr(executor, "similar_steps", noted)
    x, records, states = trained(job, "batched")
    assert any(groups is not None for groups in made)
    monkeypatch.setattr(executor, "similar_steps", lambda steps: None)
    whole, records_of_whole, states_of_whole = trained(job, "batched")
    assert x.equal(whole)
    assert records == records_of_whole
    for state, expected in zip(states, states_of_whole, strict=True):
        assert state.keys() == expected.keys()
        assert all(v.equal(expected[name]) for name, v in state.items())
    torch.testing.assert_close(x, trained(job, "loop")[0], rtol=0, atol=1e-10)
