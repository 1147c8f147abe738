"""Callbacks: what they are called with, and how they end a run."""

import math

import pytest
import torch
from torch import nn

import fedmos as fm
from fedmos.core.flat_model import FlatModel
from fedmos.core.history import History
from fedmos.run.callback_list import takes_model


@pytest.fixture
def given(run_arguments):
    return run_arguments | {"selection": fm.Uniform(m=3)}


def weights(model: nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


class TestModel:
    def test_functions_and_callbacks_get_the_model_after_each_round(self, given):
        class Watch(fm.Callback):
            def __init__(self):
                self.seen = {}

            def on_round(self, record, model):
                self.seen[record.round] = weights(model)

        watch, seen = Watch(), {}

        def keep(record, model):
            assert isinstance(model, nn.Module)
            assert not model.training
            seen[record.round] = weights(model)

        result = fm.run(**given, callbacks=[keep, watch])
        for rounds in (1, 2):
            expected = fm.run(**given | {"rounds": rounds}).params
            assert torch.equal(seen[rounds], expected)
            assert torch.equal(watch.seen[rounds], expected)
        assert torch.equal(seen[3], result.params)

    def test_what_a_callback_does_to_the_model_does_not_change_the_run(self, given):
        def spoil(record, model):
            with torch.no_grad():
                for p in model.parameters():
                    p.zero_()

        assert torch.equal(fm.run(**given, callbacks=[spoil]).params, fm.run(**given).params)

    def test_it_is_made_once_a_round_and_only_where_it_is_taken(self, given, monkeypatch):
        made = []
        original = FlatModel.module_with
        monkeypatch.setattr(FlatModel, "module_with", lambda self, y: made.append(1) or original(self, y))
        rounds = []
        fm.run(**given, callbacks=[rounds.append, lambda record: None, lambda record, verbose=False: None])
        assert len(made) == 1  # of the result
        assert [record.round for record in rounds] == [1, 2, 3]
        fm.run(**given, callbacks=[lambda record, model: None, lambda record, model=None: model.eval()])
        assert len(made) == 1 + 3 + 1

    def test_runs_side_by_side(self, given):
        seen = [[], []]
        runs = [{"seed": i, "callbacks": [lambda record, model, i=i: seen[i].append(weights(model))]} for i in (0, 1)]
        results = fm.run_many(runs, **given, engine="batched")
        for own, result in zip(seen, results, strict=True):
            assert len(own) == 3
            assert torch.equal(own[-1], result.params)

    @pytest.mark.parametrize(
        ("function", "takes"),
        [
            (lambda record: None, False),
            (lambda record, model: None, True),
            (lambda record, net: None, True),
            (lambda record, model=None: None, True),
            (lambda record, verbose=False: None, False),
            (lambda *args: None, False),
            (print, False),
            ([].append, False),
            (fm.Callback().on_round, False),
        ],
    )
    def test_which_functions_take_it(self, function, takes):
        assert takes_model(function) == takes

    @pytest.mark.parametrize("function", [lambda: None, lambda record, model, more: None, lambda *, record: None])
    def test_other_signatures_are_refused_before_the_first_round(self, given, function):
        with pytest.raises(ValueError, match=r"functions of \(record\) or \(record, model\), got <function"):
            fm.run(**given, callbacks=[function])


def history(*values, metric="accuracy"):
    common = {"cohort": [], "weights": [], "bytes_down": 0, "bytes_up": 0, "seconds": 0.0}
    return History([fm.Record(round=t, **common, **{metric: value}) for t, value in enumerate(values, 1)])


class TestEarlyStopping:
    @pytest.mark.parametrize(
        ("values", "stops"),
        [
            ((0.1, 0.2, 0.3), False),
            ((0.3, 0.2, 0.1), True),
            ((0.3, 0.3, 0.3), True),
            ((0.3, 0.2), False),
            ((0.3, 0.2, 0.31), False),
            ((0.3, None, None), False),  # not evaluated
            ((0.3, None, 0.2), True),
            ((math.nan, math.nan), True),
            ((math.nan, 0.1, 0.05), False),
            ((), False),
        ],
    )
    def test_two_rounds_without_an_improvement(self, values, stops):
        stopping = fm.EarlyStopping(patience=2)
        assert stopping.should_stop(history(*values)) == stops
        growing = History()
        for record in history(*values):  # one by one, as in a run
            growing.append(record)
            last = stopping.should_stop(growing)
        assert not values or last == stops

    def test_losses_improve_downwards_and_small_improvements_do_not_count(self):
        loss = fm.EarlyStopping("test_loss", patience=2)
        assert not loss.should_stop(history(3.0, 2.0, 1.0, metric="test_loss"))
        assert loss.should_stop(history(1.0, 2.0, 3.0, metric="test_loss"))
        slow = fm.EarlyStopping(patience=2, min_delta=0.05)
        assert slow.should_stop(history(0.5, 0.52, 0.54))
        assert not slow.should_stop(history(0.5, 0.52, 0.56))

    @pytest.mark.parametrize("engine", ["loop", "batched"])
    def test_the_run_ends_as_a_finished_one_and_stays_so(self, given, tmp_path, engine):
        given |= {"rounds": 30, "engine": engine, "callbacks": [fm.EarlyStopping("train_loss", 4, min_delta=10.0)]}
        ended = []
        given["callbacks"].append(ended.append)
        result = fm.run(**given, out=tmp_path)
        assert len(result.history) == 5
        assert not result.interrupted
        assert result.info["stopped"] == "EarlyStopping(metric='train_loss', patience=4, min_delta=10.0)"
        stored = fm.Result.load(tmp_path)
        assert not stored.interrupted
        assert stored.info["stopped"] == result.info["stopped"]
        again = fm.run(**given, out=tmp_path, resume=True)
        assert [len(again.history), len(ended)] == [5, 5]
        assert torch.equal(again.params, result.params)
        longer = fm.run(**given | {"callbacks": [], "rounds": 6}, out=tmp_path, resume=True)
        assert len(longer.history) == 6
        assert "stopped" not in longer.info

    def test_an_interrupted_run_stops_at_the_same_round(self, given, tmp_path):
        given |= {"rounds": 30}
        stopping = fm.EarlyStopping("train_loss", 4, min_delta=10.0)

        def interrupt(record):
            if record.round == 3:
                raise KeyboardInterrupt

        first = fm.run(**given, callbacks=[stopping, interrupt], out=tmp_path)
        assert first.interrupted
        assert len(fm.run(**given, callbacks=[stopping], out=tmp_path, resume=True).history) == 5

    def test_one_serves_runs_side_by_side(self, given):
        stopping = fm.EarlyStopping("accuracy", patience=2)
        runs = [{"seed": seed, "algorithm": fm.FedAvg(lr=lr)} for seed, lr in enumerate((1e-9, 0.2, 1e-9))]
        given |= {"rounds": 12, "callbacks": [stopping], "engine": "batched"}
        del given["algorithm"]
        together = fm.run_many(runs, **given)
        for run, result in zip(runs, together, strict=True):
            assert len(result.history) == len(fm.run(**given, **run).history)
        assert len(together[0].history) == 3 < len(together[1].history)

    def test_own_callbacks_can_end_a_run(self, given):
        class After(fm.Callback):
            def should_stop(self, history):
                return history[-1].round == 2

        result = fm.run(**given, callbacks=[After()])
        assert (len(result.history), result.interrupted) == (2, False)

    def test_a_metric_that_is_not_measured_is_refused(self, given):
        with pytest.raises(
            ValueError, match=r"EarlyStopping: 'metric' must be one of .*, got 'acuracy' \(did you mean"
        ):
            fm.run(**given, callbacks=[fm.EarlyStopping("acuracy")])

    @pytest.mark.parametrize("wrong", [{"patience": 0}, {"min_delta": -1}, {"metric": 3}, {"min_delta": math.nan}])
    def test_wrong_arguments_get_a_sentence(self, wrong):
        with pytest.raises(ValueError, match=f"EarlyStopping: '{next(iter(wrong))}' must be"):
            fm.EarlyStopping(**wrong)
