"""`fm.run` and its result."""

import copy
import gc
import hashlib
import math
import weakref

import numpy as np
import pytest
import torch
from torch import nn

import fedmos as fm
from fedmos.run import build
from helpers import fresh
from helpers.federations import poisoned


def digest(tensor: torch.Tensor) -> str:
    return hashlib.sha256(tensor.numpy().tobytes()).hexdigest()


def test_a_run_is_repeated_to_the_bit_and_follows_its_seed(quick):
    one, same, other = quick(seed=3), quick(seed=3), quick(seed=4)
    assert digest(one.params) == digest(same.params)
    assert [r.cohort for r in one.history] == [r.cohort for r in same.history]
    assert digest(one.params) != digest(other.params)


def test_the_global_generator_is_neither_used_nor_moved(quick):
    torch.manual_seed(1)
    before = torch.get_rng_state()
    one = quick()
    assert torch.equal(before, torch.get_rng_state())
    torch.manual_seed(2)
    assert digest(one.params) == digest(quick().params)


def test_the_callers_model_is_left_alone(quick):
    model = fm.models.cnn_digits(dropout=True)
    before = copy.deepcopy(model.state_dict())
    result = quick(model=model)
    assert all(torch.equal(v, before[name]) for name, v in model.state_dict().items())
    assert any(isinstance(layer, nn.Dropout) for layer in result.model)
    flat = torch.cat([p.detach().flatten() for p in result.model.parameters()])
    assert torch.equal(flat, result.params)


def test_history_records_each_round(quick, digits):
    result = quick(rounds=5, eval_every=2)
    history = result.history
    assert [r.round for r in history] == [1, 2, 3, 4, 5]
    assert [r.accuracy is not None for r in history] == [False, True, False, True, True]
    D = len(result.params)
    for r in history:
        assert len(r.cohort) == 4
        assert r.cohort == sorted(set(r.cohort))
        assert r.bytes_down == r.bytes_up == 4 * D * 4
        assert r.weights == pytest.approx([20 / 4 * float(digits.importance[i]) for i in r.cohort])
        assert r.seconds > 0
    columns = history.to_dict()
    assert columns["round"] == [1, 2, 3, 4, 5]
    assert set(columns) >= {"cohort", "weights", "bytes_down", "bytes_up", "seconds", "train_loss", "accuracy"}


def test_metrics_equal_their_definitions(quick, digits):
    """train_loss is Σ p_i f_i, test_loss and accuracy are means over the test set, at the new model."""
    result = quick(dtype=torch.float64)
    model, normalize = result.model.eval(), digits.normalize
    with torch.no_grad():
        f = [
            float(nn.functional.cross_entropy(model(normalize(x, torch.float64)), y))
            for x, y in (digits.client(i) for i in range(len(digits)))
        ]
        scores = model(normalize(digits.test[0], torch.float64))
    last = result.history[-1]
    assert last.train_loss == pytest.approx(float(digits.importance @ torch.tensor(f, dtype=torch.float64)), abs=1e-12)
    assert last.test_loss == pytest.approx(float(nn.functional.cross_entropy(scores, digits.test[1])), abs=1e-12)
    assert last.accuracy == pytest.approx(float((scores.argmax(1) == digits.test[1]).double().mean()), abs=1e-12)


def test_a_target_ends_the_run_and_is_counted_from_one(quick):
    result = quick(rounds=200, target={"accuracy": 0.5})
    when = result.rounds_to("accuracy", 0.5)
    assert when == len(result.history) < 200
    assert result.history[when - 1].accuracy >= 0.5 > max([0, *[r.accuracy for r in result.history][:-1]])
    assert result.bytes_to("accuracy", 0.5) == sum(r.bytes_down + r.bytes_up for r in result.history)
    assert result.rounds_to("accuracy", 1.1) is None
    with pytest.raises(ValueError, match="bytes_to: 'target' must be a number"):
        result.bytes_to("accuracy", "0.5")
    with pytest.raises(ValueError, match="rounds_to: 'metric' must be one of train_loss"):
        result.rounds_to("acc", 0.5)
    with pytest.raises(ValueError, match=r"time_to: 'metric' must be one of train_loss, .*, got 3"):
        result.time_to(3, 0.5)
    for unknown in (len(result.last), -1, "a"):
        with pytest.raises(ValueError, match=f"client_state: 'i' must be a client from 0 to .*, got {unknown!r}"):
            result.client_state(unknown)
    assert result.bytes_to("accuracy", 1.1) is None
    loss = result.history[1].train_loss
    assert result.rounds_to("train_loss", max(loss, result.history[0].train_loss)) == 1  # losses count downwards


def test_paths_and_models_of_results_are_checked(quick, tmp_path):
    result = quick()
    result.save(tmp_path)
    for wrong, sentence in (
        (lambda: result.save(3), "save: 'path' must be a path, got 3"),
        (lambda: result.export(None), "export: 'path' must be a path, got None"),
        (lambda: fm.Result.load(3), "Result.load: 'path' must be a path, got 3"),
        (lambda: fm.Result.load(tmp_path, "mlp"), "Result.load: 'model' must be a torch.nn.Module or None, got 'mlp'"),
        (lambda: fm.Result.load(tmp_path, outputs=3), "Result.load: 'outputs' must be a function or None, got 3"),
    ):
        with pytest.raises(ValueError, match=sentence):
            wrong()


def test_batch_norm_is_refused_and_converted(quick):
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 6), nn.BatchNorm1d(6), nn.Linear(6, 10))
    with pytest.raises(ValueError, match=r"GroupNorm.*fm\.models\.convert_batchnorm"):
        quick(model=model)
    converted = fm.models.convert_batchnorm(model)
    assert isinstance(model[2], nn.BatchNorm1d)
    assert isinstance(converted[2], nn.GroupNorm)
    assert math.isfinite(quick(model=converted).history[-1].train_loss)


class WithBuffer(nn.Module):
    """A buffer, a frozen parameter, a module with two names and a parameter in two modules."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", torch.tensor(2.0))
        self.offset = nn.Parameter(torch.ones(10), requires_grad=False)
        self.a = nn.Linear(64, 10, bias=False)
        self.b = self.a
        self.c = nn.Linear(64, 10, bias=False)
        self.c.weight = self.a.weight

    def forward(self, x):
        x = x.flatten(1)
        return self.scale * (self.a(x) + self.b(x) + self.c(x)) + self.offset


@pytest.mark.parametrize("engine", ["loop", "batched"])
def test_buffers_and_frozen_parameters_stay(quick, engine):
    model = WithBuffer()
    result = quick(model=model, engine=engine)
    assert len(result.params) == 640
    assert torch.equal(result.model.offset, torch.ones(10))
    assert not torch.equal(result.model.a.weight, model.a.weight)
    assert result.model.a is result.model.b
    assert result.model.c.weight is result.model.a.weight
    plain = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    with torch.no_grad():
        plain[1].weight.copy_(6 * model.a.weight)
        plain[1].bias.fill_(1)
    plain[1].bias.requires_grad_(False)
    same = quick(model=plain, engine=engine, algorithm=fm.FedAvg(lr=0.1 * 36))  # the same function, scaled
    assert torch.allclose(same.params, 6 * result.params, rtol=1e-4, atol=1e-5)


class Restless(nn.Module):
    def __init__(self, how: str) -> None:
        super().__init__()
        self.how, self.linear = how, nn.Linear(64, 10)
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x):
        if self.training and self.how == "random":
            x = x + 0.1 * torch.rand(x.shape)
        if self.training and self.how == "buffer":
            self.seen += 1
        return self.linear(x.flatten(1))


@pytest.mark.parametrize(("how", "why"), [("random", "global generator"), ("buffer", "changes its buffers")])
def test_models_that_would_not_repeat_are_refused(quick, how, why):
    with pytest.raises(ValueError, match=why):
        quick(model=Restless(how), engine="loop")


@pytest.mark.parametrize("engine", ["loop", "batched"])
def test_any_loss_and_real_targets(engine):
    rng = np.random.default_rng(0)
    w = rng.normal(size=(3, 1))
    xs = [rng.normal(size=(n, 3)) for n in (5, 9, 2)]
    data = fm.FederatedData.from_arrays([(x, x @ w) for x in xs])

    def huber(outputs, targets):
        return nn.functional.huber_loss(outputs, targets)

    result = fm.run(
        nn.Linear(3, 1),
        data,
        fm.FedAvg(lr=0.3),
        fm.Full(),
        rounds=60,
        local_epochs=1,
        batch_size=4,
        loss=huber,
        engine=engine,
    )
    assert result.history[-1].train_loss < 1e-4
    assert result.history[-1].accuracy is None
    with pytest.raises(ValueError, match="must name one of train_loss"):
        fm.run(
            nn.Linear(3, 1),
            data,
            fm.FedAvg(lr=0.3),
            fm.Full(),
            rounds=1,
            local_steps=1,
            loss=huber,
            target={"accuracy": 1},
        )


def test_a_loss_that_cannot_be_vectorised_is_evaluated_one_by_one(quick, digits):
    def stubborn(outputs, targets):
        assert float(outputs.detach().sum()) == float(outputs.detach().sum())  # needs a number
        return nn.functional.cross_entropy(outputs, targets)

    plain = quick(engine="loop")
    assert torch.equal(quick(engine="loop", loss=stubborn).params, plain.params)


def test_ctrl_c_leaves_a_usable_result(quick, tmp_path):
    def interrupt(record):
        if record.round == 3:
            raise KeyboardInterrupt

    result = quick(rounds=50, callbacks=[interrupt], out=tmp_path / "run")
    assert result.interrupted
    assert len(result.history) == 3
    assert torch.equal(fm.Result.load(tmp_path / "run").params, result.params)


def test_ctrl_c_inside_a_round_undoes_the_round(quick):
    class Impatient(nn.Module):
        calls = 0

        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(64, 10)
            nn.init.zeros_(self.linear.weight)

        def forward(self, x):
            if torch.is_grad_enabled():
                Impatient.calls += 1
                if Impatient.calls == 8 * 2 + 5:  # in the third round: two rounds are four clients × two steps each
                    raise KeyboardInterrupt
            return self.linear(x.flatten(1))

    model = Impatient()
    stopped = quick(model=model, engine="loop", rounds=5, algorithm=fm.Scaffold(lr=0.1))
    assert stopped.interrupted
    Impatient.calls = -1000
    whole = quick(model=model, engine="loop", rounds=2, algorithm=fm.Scaffold(lr=0.1))
    assert torch.equal(stopped.params, whole.params)
    assert stopped.clients.keys() == whole.clients.keys()


@pytest.mark.parametrize("algorithm", [fm.FedMoS(lr=0.05), fm.Scaffold(lr=0.05), fm.FedHBM(lr=0.05, scale="elapsed")])
def test_a_saved_run_resumes_to_the_same_bits(quick, tmp_path, algorithm):
    whole = quick(algorithm=algorithm, rounds=6)
    quick(algorithm=algorithm, rounds=3, out=tmp_path / "run")
    resumed = quick(algorithm=algorithm, rounds=6, out=tmp_path / "run", resume=True)
    assert digest(resumed.params) == digest(whole.params)
    assert [r.train_loss for r in resumed.history] == [r.train_loss for r in whole.history]
    assert len(quick(algorithm=algorithm, rounds=6, out=tmp_path / "run", resume=True).history) == 6
    with pytest.raises(ValueError, match="'seed' is 0, got 1"):
        quick(algorithm=algorithm, rounds=6, out=tmp_path / "run", resume=True, seed=1)


def test_save_and_load(quick, tmp_path):
    model = fm.models.logistic(features=64)
    result = quick(model=model, algorithm=fm.Scaffold(lr=0.1))
    result.save(tmp_path / "a" / "result")
    loaded = fm.Result.load(tmp_path / "a" / "result", model)
    assert torch.equal(loaded.params, result.params)
    assert loaded.history.to_dict() == result.history.to_dict()
    client = result.history[0].cohort[0]
    assert torch.equal(loaded.client_state(client)["c_i"], result.client_state(client)["c_i"])
    assert torch.equal(loaded.server_state["c"], result.server_state["c"])
    assert torch.equal(loaded.model[1].weight, result.model[1].weight)
    with pytest.raises(ValueError, match=r"Result\.load\(path, model\)"):
        _ = fm.Result.load(tmp_path / "a" / "result").model
    (tmp_path / "a" / "result" / "checkpoints" / "000001" / "manifest.json").write_text("{")
    with pytest.raises(ValueError, match="damaged"):
        fm.Result.load(tmp_path / "a" / "result")
    with pytest.raises(FileNotFoundError, match="there is none"):
        fm.Result.load(tmp_path / "nothing")
    assert not [p.name for p in (tmp_path / "a").iterdir() if p.name.startswith(".")]


@pytest.mark.parametrize("engine", ["loop", "batched"])
def test_an_update_that_is_not_finite(quick, digits, engine):
    data = poisoned(digits, client=2)
    cohorts = fm.FixedCohorts([[0, 1], [1, 2], [2]])
    with pytest.raises(fm.DivergenceError, match="client 2 in round 2") as error:
        quick(data=data, selection=cohorts, engine=engine)
    assert len(error.value.result.history) == 1
    dropped = quick(data=data, selection=cohorts, engine=engine, on_bad_update="drop")
    same = quick(data=data, selection=fm.FixedCohorts([[0, 1], [1]]), rounds=2, engine=engine)
    assert torch.allclose(dropped.params, same.params, atol=1e-7)  # client 1 alone, then nobody


def test_callbacks_see_every_round(quick):
    class Watch(fm.Callback):
        def __init__(self) -> None:
            self.events = []

        def on_start(self, rounds, done):
            self.events.append(("start", rounds, done))

        def on_round(self, record):
            self.events.append(record.round)

        def on_end(self, result):
            self.events.append(("end", len(result.history)))

    watch = Watch()
    quick(callbacks=[watch])
    assert watch.events == [("start", 3, 0), 1, 2, 3, ("end", 3)]


def test_progress_shows_rounds_accuracy_and_time_left(quick):
    import io

    from fedmos.run.callbacks import Progress

    out = io.StringIO()
    quick(callbacks=[Progress("FedAvg", out)])
    last = out.getvalue().split("\r")[-1]
    assert "FedAvg" in last
    assert "3/3" in last
    assert "accuracy 0." in last
    assert "0:00 left" in last


def test_importing_is_light():
    code = "import sys, fedmos; print(sorted({'pydantic', 'typer', 'rich', 'sklearn', 'scipy'} & set(sys.modules)))"
    done = fresh.run(code)
    assert done.stdout.strip() == "[]", done.stderr


def test_an_empty_folder_is_as_good_as_none(quick, tmp_path):
    first = quick(out=tmp_path, resume=True)
    (tmp_path / "notes.txt").write_text("mine")
    assert torch.equal(fm.Result.load(tmp_path).params, first.params)
    quick(out=tmp_path, resume=True, rounds=5)
    assert len(fm.Result.load(tmp_path).history) == 5
    assert (tmp_path / "notes.txt").read_text() == "mine"
    assert sorted(p.name for p in (tmp_path / "checkpoints").iterdir()) == ["000001", "000002"]


def test_resuming_with_other_data_or_another_model_is_refused(quick, digits, tmp_path):
    quick(out=tmp_path / "run")
    other = fm.datasets.load("digits").partition(fm.partition.ByClass(classes=2, size=(4, 22)), clients=20, seed=1)
    with pytest.raises(ValueError, match="its 'data' is"):
        quick(out=tmp_path / "run", resume=True, data=other, rounds=5)
    with pytest.raises(ValueError, match="its 'model' is"):
        quick(
            out=tmp_path / "run",
            resume=True,
            model=nn.Sequential(nn.Flatten(), nn.Identity(), nn.Linear(64, 10)),
            rounds=5,
        )


def test_numpy_numbers_are_numbers(quick, tmp_path):
    plain = quick(seed=3, weight_decay=0.5)
    numpy = quick(
        seed=np.int64(3),
        rounds=np.int64(3),
        batch_size=np.int32(4),
        weight_decay=np.float32(0.5),
        target={"accuracy": np.float32(1)},
        out=tmp_path / "run",
    )
    assert torch.equal(plain.params, numpy.params)


def test_an_interrupted_commit_is_completed(quick, monkeypatch):
    """Ctrl-C while a round's results are put away: the round counts as a whole."""
    from fedmos.engine.client_store import ClientStore

    write, calls = ClientStore.write, []

    def interrupted(self, ids, own):
        write(self, ids[:2], {name: v[:2] for name, v in own.items()})
        calls.append(len(ids))
        if len(calls) == 2:  # within the second round's four clients
            raise KeyboardInterrupt
        write(self, ids, own)

    whole = quick(engine="loop", algorithm=fm.Scaffold(lr=0.1), rounds=2)
    monkeypatch.setattr(ClientStore, "write", interrupted)
    cut = quick(engine="loop", algorithm=fm.Scaffold(lr=0.1), rounds=9)
    assert cut.interrupted
    assert len(cut.history) == 2
    assert torch.equal(cut.params, whole.params)
    assert all(torch.equal(cut.client_state(i)["c_i"], whole.client_state(i)["c_i"]) for i in whole.clients)


@pytest.mark.parametrize("engine", ["loop", "batched"])
def test_losses_of_shape_one_and_losses_with_our_names(quick, digits, engine):
    """A loss of shape (1,), one named like ours, and labels of integers for bce."""

    def mse(outputs, targets):
        return (nn.functional.one_hot(targets, 10) - outputs).square().mean().reshape(1)

    assert quick(engine=engine, loss=mse).history[-1].train_loss < 1
    bits = fm.FederatedData.from_arrays([(np.eye(4, dtype=np.float32), [[0], [1], [1], [0]])] * 2)
    result = quick(model=nn.Linear(4, 1), data=bits, selection=fm.Full(), loss="bce", engine=engine, rounds=30)
    assert result.history[-1].train_loss < result.history[0].train_loss


def test_ghbm_remembers_models_of_rounds_without_updates():
    """Nobody is there in round 1 (from 0), and x_1 = x_2 is still what round 3 looks back on, with τ = 2."""
    data = fm.FederatedData.from_arrays([(np.ones((1, 1)), [[0.0]])])
    model = nn.Linear(1, 1, bias=False)
    with torch.no_grad():
        model.weight.fill_(1.0)
    runs = fm.run(
        model,
        data,
        fm.GHBM(lr=0.1, tau=2, beta=0.5),
        fm.Full(),
        rounds=4,
        local_steps=1,
        loss="mse",
        dtype=torch.float64,
        availability=fm.Trace([(0, 0, 1), (0, 2, 9)]),
    )
    x = [1.0]
    for t in range(4):
        momentum = x[t] - x[t - 2] if t >= 2 else 0.0
        x.append(x[t] if t == 1 else x[t] - 0.1 * 2 * x[t] + 0.25 * momentum)
    assert float(runs.params) == pytest.approx(x[4], abs=1e-14)


def test_stored_samples_become_the_models_inputs(quick, digits):
    result = quick()
    scores = result.model(digits.inputs(digits.test[0]))
    hits = (scores.argmax(1) == digits.test[1]).double().mean()
    assert float(hits) == pytest.approx(result.history[-1].accuracy)


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_earlier_runs_are_freed_before_a_run_on_a_gpu(device):
    class Node:
        def __init__(self) -> None:
            self.itself = self

    gc.disable()
    try:
        earlier = weakref.ref(Node())
        build._free_earlier_runs(torch.device(device))
        assert (earlier() is None) == (device == "cuda")
    finally:
        gc.enable()
