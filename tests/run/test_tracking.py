"""Trackers, with stand-ins for the packages."""

import sys
from types import ModuleType, SimpleNamespace

import pytest

from fedmos.run.tracking import MLflow, TensorBoard, WandB


class Calls(list):
    """Notes every call."""

    def __getattr__(self, name):
        def call(*given, **named):
            self.append((name, given, named))
            return SimpleNamespace(
                info=SimpleNamespace(run_id="7"),
                log=call_of("log"),
                finish=call_of("finish"),
                config=SimpleNamespace(update=call_of("update")),
            )

        def call_of(inner):
            return lambda *given, **named: self.append((inner, given, named))

        return call


@pytest.fixture
def fake(monkeypatch):
    calls = Calls()

    def install(name):
        module = ModuleType(name)
        module.__getattr__ = lambda attribute: getattr(calls, attribute)
        monkeypatch.setitem(sys.modules, name, module)
        return calls

    return install


def test_tensorboard(quick, monkeypatch, tmp_path):
    calls = Calls()
    module = ModuleType("torch.utils.tensorboard")
    module.SummaryWriter = lambda folder: calls
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", module)
    result = quick(callbacks=[TensorBoard(tmp_path)], eval_every=3)
    scalars = {given for name, given, _ in calls if name == "add_scalar"}
    assert ("accuracy", result.history[2].accuracy, 3) in scalars
    assert ("megabytes_up", result.history[0].bytes_up / 1e6, 1) in scalars
    assert not any(name == "accuracy" and step < 3 for name, _, step in scalars)
    assert not any(name == "clock" for name, _, _ in scalars)
    assert [name for name, _, _ in calls][-2:] == ["add_text", "close"]


def test_wandb(quick, fake):
    calls = fake("wandb")
    result = quick(callbacks=[WandB(project="skew")])
    assert calls[0] == ("init", (), {"project": "skew"})
    logs = [(given[0], named["step"]) for name, given, named in calls if name == "log"]
    assert [step for _, step in logs] == [1, 2, 3]
    assert logs[-1][0]["train_loss"] == result.history[2].train_loss
    update = next(given[0] for name, given, _ in calls if name == "update")
    assert update["algorithm"].startswith("FedAvg(lr=0.1")
    assert calls[-1][0] == "finish"


def test_mlflow(quick, fake):
    calls = fake("mlflow")
    quick(callbacks=[MLflow("skew", uri="file:///nowhere")])
    assert [name for name, _, _ in calls][:3] == ["set_tracking_uri", "set_experiment", "start_run"]
    assert [named["step"] for name, _, named in calls if name == "log_metrics"] == [1, 2, 3]
    assert all(named["run_id"] == "7" for name, _, named in calls if name == "log_metrics")
    assert [name for name, _, _ in calls][-2:] == ["log_params", "end_run"]


def test_mlflow_describes_its_own_run_while_another_is_active(quick, monkeypatch):
    stack, logged = [], []
    module = ModuleType("mlflow")
    run = SimpleNamespace

    def start_run(run_id="ours", run_name=None, nested=False):
        assert nested or not stack
        stack.append(run_id)
        return run(info=run(run_id=run_id))

    module.start_run, module.end_run = start_run, lambda: stack.pop()
    module.active_run = lambda: run(info=run(run_id=stack[-1])) if stack else None
    module.log_metrics = lambda values, step, run_id: logged.append(run_id)
    module.log_params = lambda values: logged.append(stack[-1])
    monkeypatch.setitem(sys.modules, "mlflow", module)
    tracker = MLflow()
    module.end_run()
    start_run("another")
    quick(callbacks=[tracker])
    assert set(logged) == {"ours"}
    assert stack == ["another"]


@pytest.mark.parametrize(
    ("tracker", "module", "extra"),
    [
        (lambda: TensorBoard("x"), "torch.utils.tensorboard", "tensorboard"),
        (WandB, "wandb", "wandb"),
        (MLflow, "mlflow", "mlflow"),
    ],
)
def test_a_missing_package_is_named(tracker, module, extra, monkeypatch):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ImportError) as error:
        tracker()
    assert str(error.value) == f"Cannot track with {extra} because it is missing; use pip install 'fedmos[{extra}]'"


def test_tensorboard_itself(quick, tmp_path):
    pytest.importorskip("tensorboard")
    result = quick(callbacks=[TensorBoard(tmp_path)])
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(tmp_path))
    events.Reload()
    assert [(e.step, e.value) for e in events.Scalars("accuracy")] == [
        (r.round, pytest.approx(r.accuracy)) for r in result.history
    ]


def test_a_callback_may_end_the_run(quick):
    def stop(record):
        if record.round == 2:
            raise KeyboardInterrupt

    result = quick(callbacks=[stop])
    assert result.interrupted
    assert len(result.history) == 2
