"""Clients with similar numbers of steps train in groups, with the results of the whole cohort."""

from __future__ import annotations

from dataclasses import asdict, replace
from itertools import pairwise

import pytest
import torch

import fedmos as fm
from fedmos.engine import executor, merged_runs
from fedmos.engine.execution_plan import ExecutionPlan
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
SPEED = fm.System(speed=fm.LogNormal(median=50.0, sigma=1.0))
BUFFERED = {"buffer": fm.Buffer(size=3, concurrency=9), "system": SPEED, "selection": fm.Uniform(m=1), "rounds": 9}
FEEDBACK = fm.codecs.ErrorFeedback(fm.codecs.TopK(0.1))
JOBS = {
    "FedAvg": (fm.FedAvg(lr=0.1), {}),
    "SCAFFOLD, some clients": (fm.Scaffold(lr=0.1), {"selection": fm.Uniform(m=9)}),
    "FedNova, momentum": (fm.FedNova(lr=0.1), {"local": fm.local.SGD(momentum=0.9)}),
    "FedMoS, deadline": (fm.FedMoS(lr=0.1), {"system": DEADLINE}),
    "feedback, personal": (fm.FedAvg(lr=0.1), {"uplink": FEEDBACK, "personal": ["2.*"]}),
    "median": (fm.FedAvg(lr=0.1), {"aggregation": fm.aggregation.Median()}),
    "buffer": (fm.Scaffold(lr=0.1), BUFFERED),
    "reports": (fm.FedAvg(lr=0.1), {"selection": fm.OCS(m=4)}),
}


class Replayed:
    """In place of captured graphs: a function is kept for each key."""

    def __init__(self) -> None:
        self.made: dict = {}

    def run(self, key, body, *given):
        return self.made.setdefault(key, body)(*given)


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
        **({"selection": fm.Full(), "rounds": 4} | more),
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


@pytest.mark.parametrize("job", ["SCAFFOLD, some clients", "FedNova, momentum", "FedMoS, deadline"])
def test_few_numbers_of_steps_are_captured(monkeypatch, job):
    """A captured graph has at least as many steps as the cohort needs, and clients ignore the others."""
    monkeypatch.setitem(JOBS, job, (JOBS[job][0], JOBS[job][1] | {"selection": fm.Uniform(m=2), "rounds": 12}))
    x, records, states = trained(job, "batched")
    make, executors = executor.JobExecutor.__init__, []

    def recording(self, *given) -> None:
        make(self, *given)
        if self.plan.engine == "batched":
            self._graphs = Replayed()
            executors.append(self)

    monkeypatch.setattr(executor.JobExecutor, "__init__", recording)
    monkeypatch.setattr(ExecutionPlan, "fixed_shapes", True)
    captured, records_of_captured, states_of_captured = trained(job, "batched")
    torch.testing.assert_close(captured, x, rtol=0, atol=1e-12)
    torch.testing.assert_close(states_of_captured, states, rtol=0, atol=1e-12)
    assert [record["cohort"] for record in records_of_captured] == [record["cohort"] for record in records]
    steps = {key[5] for one in executors for key in one._graphs.made if key[0] == "train"}
    needed = {2 * -(-max(SIZES[i] for i in record["cohort"]) // 4) for record in records}
    assert steps == {min(round_up(n), 60) for n in needed}
    assert steps - needed


@pytest.mark.parametrize(("steps", "together"), [({"local_epochs": 1}, 1), ({"local_steps": 3}, 2)], ids=str)
def test_runs_whose_clients_train_in_groups_are_not_merged(monkeypatch, steps, together):
    make, merged = merged_runs.MergedRuns.__init__, []

    def noting(self, runs, evaluator) -> None:
        merged.append(len(runs))
        make(self, runs, evaluator)

    monkeypatch.setattr(merged_runs.MergedRuns, "__init__", noting)
    clients = [(torch.randn(n, 6), torch.zeros(n, dtype=torch.int64)) for n in SIZES]
    shared = {"model": torch.nn.Linear(6, 3), "data": fm.FederatedData.from_arrays(clients), "selection": fm.Full()}
    shared |= {"algorithm": fm.FedAvg(lr=0.1), "rounds": 1, "batch_size": 4, "engine": "batched", "device": "cpu"}
    fm.run_many([{"seed": 0}, {"seed": 1}], progress=False, **steps, **shared)
    assert max(merged) == together
