"""The norms of clients' updates in the records."""

from __future__ import annotations

import pytest
import torch

import fedmos as fm
from fedmos.config import schema as config
from helpers.config_fuzz import RUN

COHORT = [0, 3, 4, 7, 11]


@pytest.fixture
def given(run_arguments):
    return run_arguments | {"selection": fm.FixedCohorts([COHORT]), "rounds": 1, "local_steps": 3}


def expected(given, clients=COHORT):
    """The length of the server's step if each client is the only one of its round."""
    start = torch.cat([p.detach().flatten() for p in given["model"].parameters()])
    alone = [fm.run(**given | {"selection": fm.FixedCohorts([[i]], [[1.0]])}) for i in clients]
    return [float((result.params - start).norm()) for result in alone]


@pytest.mark.parametrize("engine", ["loop", "batched"])
def test_they_are_those_of_each_client_in_the_order_of_the_cohort(given, engine):
    given["engine"] = engine
    plain, result = fm.run(**given), fm.run(**given, update_norms=True)
    record = result.history[0]
    assert record.cohort == COHORT
    assert record.update_norms == pytest.approx(expected(given), rel=1e-5)
    assert len(set(record.update_norms)) == len(COHORT)
    assert plain.history[0].update_norms is None
    assert torch.equal(plain.params, result.params)
    assert (record.bytes_up, record.bytes_down) == (plain.history[0].bytes_up, plain.history[0].bytes_down)


@pytest.mark.parametrize("algorithm", [fm.Scaffold(lr=0.1), fm.FedCM(lr=0.1), fm.FedMoS(lr=0.1), fm.MimeLite(lr=0.1)])
def test_other_algorithms_and_selectors(given, algorithm):
    """A selector's own reports stay as they are."""
    given |= {"algorithm": algorithm, "rounds": 4, "selection": fm.PowerOfChoice(m=3, d=6, loss="reported")}
    plain, result = fm.run(**given), fm.run(**given, update_norms=True)
    assert torch.equal(plain.params, result.params)
    assert [r.bytes_up for r in plain.history] == [r.bytes_up for r in result.history]
    for record in result.history:
        assert len(record.update_norms) == len(record.cohort)
        assert all(norm > 0 for norm in record.update_norms)


def test_clients_that_send_no_update_have_no_norm(given):
    given["algorithm"] = fm.LocalOnly(lr=0.1)
    assert fm.run(**given, update_norms=True).history[0].update_norms is None
    with pytest.raises(ValueError, match="Cannot report 'update_norm' because clients send no update with LocalOnly"):
        fm.run(**given | {"selection": fm.OCS(m=2)})


def test_runs_side_by_side(given):
    given |= {"engine": "batched", "rounds": 2, "selection": fm.Uniform(m=4)}
    runs = [{"seed": 0, "update_norms": True}, {"seed": 1, "update_norms": True}, {"seed": 2}]
    results = fm.run_many(runs, **given)
    for run, result in zip(runs, results, strict=True):
        for mine, alone in zip(result.history, fm.run(**given, **run).history, strict=True):
            norms = None if alone.update_norms is None else pytest.approx(alone.update_norms, rel=1e-4)
            assert mine.update_norms == norms
    assert results[2].history[0].update_norms is None


def test_updates_that_do_not_count_have_none(given):
    slow = fm.PerClient([1e-3 if i == 4 else 1e6 for i in range(20)])
    record = fm.run(**given, update_norms=True, system=fm.System(speed=slow, deadline=60.0)).history[0]
    assert record.late == [4]
    assert [norm is None for norm in record.update_norms] == [False, False, True, False, False]
    given_alone = [norm for norm in record.update_norms if norm is not None]
    assert given_alone == pytest.approx(expected(given, [0, 3, 7, 11]), rel=1e-5)
    nobody = fm.PerClient([1e-3] * 20)
    abandoned = fm.run(**given, update_norms=True, system=fm.System(speed=nobody, deadline=60.0)).history[0]
    assert abandoned.abandoned
    assert abandoned.update_norms == [None] * 5


def test_they_are_kept_in_the_folder(given, tmp_path):
    given |= {"rounds": 2, "update_norms": True}
    result = fm.run(**given, out=tmp_path)
    stored = fm.Result.load(tmp_path)
    assert [r.update_norms for r in stored.history] == [r.update_norms for r in result.history]
    longer = fm.run(**given | {"rounds": 3, "update_norms": False}, out=tmp_path, resume=True)
    assert longer.history[1].update_norms == result.history[1].update_norms
    assert longer.history[2].update_norms is None


def test_a_configuration_can_ask_for_them():
    settings = config.parse(config.RunConfig, RUN | {"update_norms": True, "rounds": 1})
    result = settings.run(settings.algorithm, settings.selection, settings.seed)
    assert len(result.history[0].update_norms) == len(result.history[0].cohort)
    with pytest.raises(config.ConfigError, match="update_norms: must be true or false, got 1"):
        config.parse(config.RunConfig, RUN | {"update_norms": 1})
