"""Runs side by side: each gets what it would get alone."""

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import pytest
import torch
from torch import nn

import fedmos as fm
from fedmos.data import Dataset, FederatedData
from fedmos.engine import batched
from fedmos.engine import execution_plan as plan
from fedmos.engine.execution_plan import ExecutionPlan
from fedmos.engine.executor import JobExecutor
from fedmos.evaluation import sample_weights
from fedmos.evaluation.metrics import Evaluator

DIGITS = fm.datasets.load("digits")


def run_of(seed: int, algorithm: fm.Algorithm, **more):
    data = DIGITS.partition(fm.partition.ByClass(classes=2, size=(4, 22)), clients=20, seed=seed)
    return {"seed": seed, "data": data, "algorithm": algorithm, "model": fm.models.cnn_digits(seed=seed)} | more


SHARED = {
    "selection": fm.Uniform(m=4),
    "rounds": 4,
    "local_steps": 3,
    "batch_size": 4,
    "dtype": torch.float64,
    "engine": "batched",
}


def same(one: fm.Result, other: fm.Result) -> bool:
    if not torch.allclose(one.params, other.params, rtol=0, atol=1e-12):
        return False
    for a, b in zip(one.history, other.history, strict=True):
        if (a.cohort, a.weights, a.bytes_up) != (b.cohort, b.weights, b.bytes_up) or a.accuracy != b.accuracy:
            return False
    return True


@pytest.mark.parametrize("name", sorted(fm.algorithms()))
@pytest.mark.extended
def test_every_algorithm_beside_others(name):
    """Seeds, splits, initial weights and step sizes differ."""
    kind = fm.algorithms()[name]
    more = {"mu": 0.1} if name == "FedProx" else {}
    runs = [run_of(seed, kind(lr=lr, **more)) for seed, lr in ((0, 0.1), (1, 0.05), (5, 0.1))]
    for together, given in zip(fm.run_many(runs, **SHARED), runs, strict=True):
        assert same(together, fm.run(**SHARED | given))


def test_other_numbers_may_differ_and_other_kinds_run_by_themselves():
    runs = [
        run_of(0, fm.FedMoS(lr=0.1, mu=0.001)),
        run_of(1, fm.FedMoS(lr=0.1, mu=0.1, beta=0.5)),
        run_of(2, fm.FedAvg(lr=0.1), selection=fm.ACS(m=3)),
        run_of(3, fm.FedAvg(lr=0.1), selection=fm.Bernoulli(rate=0.2), rounds=6),
        run_of(4, fm.FedAvg(lr=0.1), engine="loop"),
    ]
    for together, given in zip(fm.run_many(runs, **SHARED), runs, strict=True):
        assert same(together, fm.run(**SHARED | given))


def test_each_ends_when_it_is_done(tmp_path):
    runs = [
        run_of(0, fm.FedAvg(lr=0.1), target={"accuracy": 0.0}, out=tmp_path / "a"),
        run_of(1, fm.FedAvg(lr=0.1)),
        run_of(2, fm.FedAvg(lr=1e200)),
    ]
    reached, whole, diverged = fm.run_many(runs, **SHARED)
    assert len(reached.history) == 1
    assert len(whole.history) == 4
    assert diverged.interrupted
    assert len(diverged.history) < 4
    assert torch.equal(fm.Result.load(tmp_path / "a").params, reached.params)


class Net(nn.Module):
    """Two of these may differ in what no parameter shows."""

    def __init__(self, act=torch.relu, drop: float = 0.0) -> None:
        super().__init__()
        self.one, self.two, self.act, self.drop = nn.Linear(64, 8), nn.Linear(8, 10), act, nn.Dropout(drop)
        with torch.no_grad():
            for p in self.parameters():
                p.copy_(torch.linspace(-0.1, 0.1, p.numel()).view_as(p))

    def forward(self, x):
        return self.two(self.drop(self.act(self.one(x.flatten(1)))))


@pytest.mark.parametrize("other", [{"act": torch.tanh}, {"drop": 0.8}])
def test_models_that_compute_something_else_do_not_share_a_program(other):
    runs = [run_of(0, fm.FedAvg(lr=0.1), model=net) for net in (Net(drop=0.1), Net(**{"drop": 0.1} | other))]
    for together, given in zip(fm.run_many(runs, **SHARED), runs, strict=True):
        assert same(together, fm.run(**SHARED | given))


def test_a_resumed_run_beside_a_fresh_one(tmp_path):
    late = run_of(1, fm.FedAvg(lr=0.1))
    fm.run(**SHARED | late | {"rounds": 2, "out": tmp_path / "run"})
    early = run_of(0, fm.FedAvg(lr=0.1))
    fresh, resumed = fm.run_many([early, late | {"out": tmp_path / "run", "resume": True}], **SHARED)
    assert same(fresh, fm.run(**SHARED | early))
    assert same(resumed, fm.run(**SHARED | late))


def test_numbers_that_an_algorithm_branches_on(caplog):
    """Mime asks whether β is zero, which a column of several β cannot answer."""
    runs = [run_of(0, fm.Mime(lr=0.1, beta=0.5)), run_of(1, fm.Mime(lr=0.1, beta=0.9))]
    for together, given in zip(fm.run_many(runs, **SHARED), runs, strict=True):
        assert same(together, fm.run(**SHARED | given))
    assert "one by one because their beta differ" in caplog.text


def test_fedhbm_with_several_betas_side_by_side(caplog):
    """Its warning, which asks for β, is the server's."""
    runs = [run_of(seed, fm.FedHBM(lr=0.1, beta=beta), selection=fm.Full()) for seed, beta in ((0, 0.5), (1, 1.0))]
    with pytest.warns(UserWarning, match="FedHBM with beta ≥ 1 and every client in every round diverges"):
        together = fm.run_many(runs, **SHARED)
    with pytest.warns(UserWarning, match="use beta < 1"):
        assert all(same(a, fm.run(**SHARED | given)) for a, given in zip(together, runs, strict=True))
    assert "one by one" not in caplog.text


@pytest.mark.extended
def test_more_runs_than_memory_holds(monkeypatch):
    compute = batched.Batched.loss_and_gradient

    def scarce(self, y, batch):
        if len(self.chunk.ids) > 5:
            raise torch.OutOfMemoryError("no memory")
        return compute(self, y, batch)

    runs = [run_of(seed, fm.Scaffold(lr=0.1)) for seed in range(3)]
    alone = [fm.run(**SHARED | given) for given in runs]
    monkeypatch.setattr(batched.Batched, "loss_and_gradient", scarce)
    assert all(same(a, b) for a, b in zip(fm.run_many(runs, **SHARED), alone, strict=True))
    monkeypatch.undo()
    monkeypatch.setattr(plan, "_max_parallel_clients", lambda task: 4)
    assert all(same(a, b) for a, b in zip(fm.run_many(runs, **SHARED), alone, strict=True))


def test_ctrl_c_ends_all_of_them():
    def stop(record):
        raise KeyboardInterrupt

    runs = [run_of(seed, fm.FedAvg(lr=0.1), engine="loop", callbacks=[stop]) for seed in range(2)]
    results = fm.run_many(runs, **{k: v for k, v in SHARED.items() if k != "engine"})
    assert [len(r.history) for r in results] == [1, 0]
    assert all(r.interrupted for r in results)


def test_callbacks_may_differentiate():
    def slope(record):
        w = torch.ones(1, requires_grad=True)
        (w * 2).sum().backward()

    fm.run_many([run_of(s, fm.FedAvg(lr=0.1), callbacks=[slope]) for s in range(2)], **SHARED)


def test_mistakes_get_a_sentence(tmp_path):
    for runs in ({"seed": 1}, [], "ab", [1]):
        with pytest.raises(ValueError, match="run_many: 'runs' must be a list of mappings"):
            fm.run_many(runs)
    with pytest.raises(ValueError, match="run_many: 'out' must be a folder of its own for each run"):
        fm.run_many([run_of(0, fm.FedAvg(lr=0.1)), run_of(1, fm.FedAvg(lr=0.1))], **SHARED, out=tmp_path / "run")

    class Careless(Net):
        def forward(self, x):
            return torch.nn.functional.dropout(super().forward(x), 0.5)

    with pytest.raises(ValueError, match="draws from PyTorch's global generator"):
        fm.run_many([run_of(0, fm.FedAvg(lr=0.1), model=Careless())], **SHARED | {"engine": "loop"})
    with pytest.raises(TypeError, match="missing a required argument"):
        fm.run_many([{"seed": 1}])


@pytest.mark.parametrize("much_fewer", [0, 1], ids=["all samples for all", "each its own samples"])
def test_models_evaluated_together_get_their_own_weights(monkeypatch, much_fewer):
    """As on a GPU: one evaluation for all, though cohorts of different sizes bring the runs there in another order."""
    monkeypatch.setattr(sample_weights, "_MUCH_FEWER", much_fewer)
    monkeypatch.setattr(Evaluator, "of_all", classmethod(lambda cls, tasks: cls(tasks, vectorised=True)))
    runs = [run_of(seed, fm.FedAvg(lr=0.1)) for seed in range(4)]
    shared = SHARED | {"selection": fm.MD(m=6)}
    for together, given in zip(fm.run_many(runs, **shared), runs, strict=True):
        alone = fm.run(**shared | given)
        for a, b in zip(together.history, alone.history, strict=True):
            assert a.train_loss == pytest.approx(b.train_loss, abs=1e-12)
            assert a.test_loss == pytest.approx(b.test_loss, abs=1e-12)


@pytest.mark.parametrize("much_fewer", [0, 1], ids=["all samples for all", "each its own samples"])
def test_samples_of_other_runs_do_not_spoil_an_evaluation(monkeypatch, much_fewer):
    class Given:
        def __init__(self, *parts: list[int]) -> None:
            self.parts = parts

        def split(self, labels, clients, seed):
            return self.parts

    monkeypatch.setattr(sample_weights, "_MUCH_FEWER", much_fewer)
    monkeypatch.setattr(Evaluator, "of_all", classmethod(lambda cls, tasks: cls(tasks, vectorised=True)))
    x = np.array([[1e25], [1.0], [2.0]], np.float32)  # the first one's loss is infinite
    data = Dataset("numbers", x, x.copy())
    runs = [{"data": data.partition(Given(*parts), 2)} for parts in ([[1], [2]], [[0], [1, 2]])]
    shared = {"algorithm": fm.FedAvg(lr=0.1), "selection": fm.Uniform(m=1), "rounds": 2, "local_steps": 1}
    shared |= {"model": nn.Linear(1, 1), "loss": "mse", "engine": "batched"}
    together, alone = fm.run_many(runs, **shared)[0], fm.run(**shared | runs[0])
    assert together.history[-1].train_loss == pytest.approx(alone.history[-1].train_loss)


def test_runs_that_end_early_leave_the_others_their_evaluation(monkeypatch):
    monkeypatch.setattr(Evaluator, "of_all", classmethod(lambda cls, tasks: cls(tasks, vectorised=True)))
    runs = [run_of(seed, fm.FedAvg(lr=lr)) for seed, lr in ((0, 0.1), (1, 1e30), (2, 0.1))]
    done = fm.run_many(runs, **SHARED)
    assert [result.interrupted for result in done] == [False, True, False]
    for i in (0, 2):
        alone = fm.run(**SHARED | runs[i])
        assert [r.train_loss for r in done[i].history] == pytest.approx(
            [r.train_loss for r in alone.history], abs=1e-12
        )


def test_a_run_that_diverged_is_not_played_again(tmp_path, monkeypatch):
    run = run_of(0, fm.FedAvg(lr=1e30)) | {"out": tmp_path / "run"}
    (first,) = fm.run_many([run], **SHARED)
    assert "is not finite" in first.info["diverged"]
    # As if it had been brought from a machine on which it diverged: here it would go on.
    monkeypatch.setattr(fm.FedAvg, "step", lambda self, y, s, c, grad, k: (y, s))
    (again,) = fm.run_many([run | {"resume": True}], **SHARED)
    assert len(again.history) == len(first.history)
    assert again.interrupted


class Replayed:
    """What a recording on a GPU does: the first job's work again, on other tensors, whatever else has changed."""

    def __init__(self) -> None:
        self.made = {}

    def run(self, key, body, *given):
        return self.made.setdefault(key, body)(*given)


def recorded(monkeypatch) -> list[JobExecutor]:
    """Capture all jobs from now on; returns the list of executors, which grows as they are made."""
    executors = []
    make = JobExecutor.__init__

    def recording(self, *given) -> None:
        make(self, *given)
        self._graphs = Replayed()
        executors.append(self)

    monkeypatch.setattr(JobExecutor, "__init__", recording)
    monkeypatch.setattr(ExecutionPlan, "fixed_shapes", True)
    return executors


@pytest.mark.parametrize(
    "algorithm",
    [
        fm.FedMoS(lr=0.1),
        *(pytest.param(one, marks=pytest.mark.extended) for one in (fm.FedHBM(lr=0.1), fm.Scaffold(lr=0.1))),
    ],
    ids=repr,
)
def test_cohorts_of_many_sizes_share_recordings(monkeypatch, algorithm):
    """Unless the algorithm asks how many clients take part, as FedHBM does."""
    runs = [run_of(seed, algorithm, selection=fm.MD(m=8), rounds=12) for seed in range(3)]
    alone = [fm.run(**SHARED | given) for given in runs]
    executors = recorded(monkeypatch)
    for together, single in zip(fm.run_many(runs, **SHARED), alone, strict=True):
        assert same(together, single)
    sizes = {len(record.cohort) for single in alone for record in single.history}
    assert len(sizes) > 2
    made = executors[-1]._graphs.made
    if isinstance(algorithm, fm.FedHBM):
        assert {key[-1] for key in made} <= sizes
    else:
        assert all(key[1] == 3 for key in made if key[-1] is None)  # all runs at once, but perhaps in the first round
        assert len({key for key in made if key[-1] is None}) <= len(sizes)


class Turning(fm.Mime):
    """Sends its vectors in another order every other round."""

    def broadcast(self, x, state, ctx):
        msg = super().broadcast(x, state, ctx)
        return dict(reversed(msg.items())) if ctx.t % 2 else msg


def test_a_recording_does_not_depend_on_the_order_of_a_message(monkeypatch):
    given = SHARED | run_of(0, Turning(lr=0.1, beta=0.2))
    alone = fm.run(**given)
    recorded(monkeypatch)
    assert same(fm.run(**given), alone)


@dataclass(frozen=True, kw_only=True)
class Matrix(fm.Algorithm):
    """The server sends a matrix with as many rows as two cohorts have clients."""

    lr: float = 0.1
    server_state = (("B", 8),)
    down = ("x", "B")

    def init(self, x):
        return {"B": torch.stack([(row + 1) * x for row in range(8)])}

    def direction(self, y, s, c, grad, k):
        return grad(y) + 0.01 * c.msg["B"][1], s


def test_a_matrix_in_the_message():
    runs = [run_of(seed, Matrix()) for seed in (0, 1)]
    for given, result in zip(runs, fm.run_many(runs, **SHARED), strict=True):
        assert same(result, fm.run(**given, **SHARED))


def scaled(scale: float) -> nn.Module:
    """A model whose class is defined anew, with a number that is no attribute."""

    class Scaled(nn.Linear):
        def forward(self, x):
            return scale * super().forward(x)

    torch.manual_seed(0)
    return Scaled(60, 10)


class Optional(nn.Linear):
    """A model in which a private attribute of None and one of 0 have different meanings."""

    def __init__(self, scale):
        super().__init__(60, 10)
        self._scale = scale
        nn.init.zeros_(self.weight)

    def forward(self, x):
        return super().forward(x) * (3 if self._scale is None else self._scale + 1)


SYNTHETIC = fm.datasets.synthetic(clients=6)
OTHER = fm.datasets.synthetic(clients=6, seed=1)
IGNORED = replace(SYNTHETIC, y=SYNTHETIC.y.where(torch.arange(len(SYNTHETIC.y)) % 3 > 0, -100))
LARGER = FederatedData.from_arrays([(np.eye(n, 60), np.arange(n) % 10) for n in [12] * 6])
SMALLER = FederatedData.from_arrays([(np.eye(n, 60), np.arange(n) % 10) for n in [8] * 6])


@fm.losses.Batch
def whole_batch(outputs, targets):
    return nn.functional.cross_entropy(outputs, targets) + outputs.mean(0).square().sum()


@pytest.mark.parametrize(
    "pair",
    [
        [{"model": scaled(1.0)}, {"model": scaled(3.0)}],
        [{"model": Optional(None)}, {"model": Optional(0)}],
        [{"class_weights": [1.0] * 10}, {"class_weights": [1.0 + n for n in range(10)]}],
        [{"class_weights": "balanced"}, {"class_weights": "balanced", "data": OTHER}],
        [{}, {"data": IGNORED}],
        [{"data": n, "loss": whole_batch, "batch_size": None} for n in (SMALLER, LARGER)],
    ],
    ids=["closure", "private attribute", "class weights", "balanced", "ignored targets", "batches without padding"],
)
def test_what_runs_do_not_have_in_common_is_not_shared(pair):
    shared = SHARED | {"selection": fm.Full(), "model": scaled(1.0), "data": SYNTHETIC, "algorithm": fm.FedAvg(lr=0.1)}
    for together, given in zip(fm.run_many(pair, **shared), pair, strict=True):
        assert torch.equal(together.params, fm.run(**shared | given).params)


@dataclass(frozen=True, kw_only=True)
class Derived(fm.FedAvg):
    """Has a number that is computed from a field at the start."""

    mu: float = 0.1

    def __post_init__(self):
        super().__post_init__()
        object.__setattr__(self, "early", self.mu / 2)

    def finish(self, y, s, c, grad):
        uploads, own = super().finish(y, s, c, grad)
        return {name: v * self.early for name, v in uploads.items()}, own


@dataclass(frozen=True, kw_only=True)
class Cached(fm.FedAvg):
    """Has a number that is computed from a field at its first use."""

    mu: float = 0.1

    @cached_property
    def late(self):
        return self.mu / 2

    def finish(self, y, s, c, grad):
        uploads, own = super().finish(y, s, c, grad)
        return {name: v * self.late for name, v in uploads.items()}, own

    def server(self, x, state, agg, ctx):
        return super().server(x, state, {name: v / self.late for name, v in agg.items()}, ctx)


@pytest.mark.parametrize("kind", [Derived, Cached])
def test_numbers_that_are_computed_from_fields_are_those_of_the_run(kind):
    shared = SHARED | {"model": scaled(1.0), "data": SYNTHETIC, "rounds": 2}
    runs = [{"algorithm": kind(lr=0.1, mu=mu)} for mu in (0.1, 0.9)]
    for together, given in zip(fm.run_many(runs, **shared), runs, strict=True):
        assert torch.allclose(together.params, fm.run(**shared | given).params, rtol=0, atol=1e-12)
