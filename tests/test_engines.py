"""What the engines are made of: batches, dropout, chunks."""

from itertools import chain, product

import numpy as np
import pytest
import torch
from torch import nn

import fedmos as fm
from fedmos.core.dropout import StreamDropout
from fedmos.core.flat_model import FlatModel
from fedmos.core.losses import Loss
from fedmos.engine import batched, loop, program
from fedmos.engine import execution_plan as plan
from fedmos.engine import local_backend as work
from fedmos.engine.batches import Batches, Chunk
from fedmos.engine.client_store import ClientStore
from fedmos.engine.task import Task
from fedmos.kernels import convolution, tiles

SIZES = [5, 12, 1, 8]


def task(model: nn.Module | None = None, **how) -> Task:
    """Clients of unequal size whose inputs are their own sample numbers."""
    data = fm.FederatedData.from_arrays(
        [(np.arange(n, dtype=np.float64)[:, None] / 10 + i, np.arange(n) % 3) for i, n in enumerate(SIZES)]
    )
    how = {"local_steps": None, "local_epochs": None, "batch_size": None} | how
    model = FlatModel(model or nn.Linear(1, 3), torch.device("cpu"), torch.float64)
    return Task(model=model, data=data, loss=Loss("cross_entropy"), seed=0, **how)


EVERYONE = torch.arange(len(SIZES))


def batches_of(how: Task, t: int) -> Batches:
    return Batches(how, Chunk.of(how, EVERYONE), t)


def used(batch, i: int) -> list[int]:
    return batch.positions[i, : int(batch.size[i])].tolist()


def test_steps_draw_without_replacement_and_independently():
    batches = batches_of(task(local_steps=6, batch_size=4), t=3)
    assert batches.K.tolist() == [6] * 4
    seen = set()
    for k in range(6):
        for i, n in enumerate(SIZES):
            chosen = used(batches.step(k), i)
            assert len(chosen) == len(set(chosen)) == min(4, n)
            assert all(0 <= j < n for j in chosen)
        seen.add(tuple(used(batches.step(k), 1)))
    assert len(seen) == 6


def test_steps_draw_uniformly():
    counts = np.zeros(5)
    rounds = 3000
    how = task(local_steps=1, batch_size=2)
    for t in range(rounds):
        counts[used(Batches(how, Chunk.of(how, torch.tensor([0])), t).step(0), 0)] += 1
    z = (counts - rounds * 0.4) / np.sqrt(rounds * 0.4 * 0.6)
    assert np.abs(z).max() < 4


def test_epochs_visit_every_sample_once_and_keep_the_short_batch():
    batches = batches_of(task(local_epochs=2, batch_size=4), t=0)
    assert batches.K.tolist() == [4, 6, 2, 4]
    for i, n in enumerate(SIZES):
        steps = [used(batches.step(k), i) for k in range(int(batches.K[i]))]
        half = len(steps) // 2
        first, second = (list(chain.from_iterable(part)) for part in (steps[:half], steps[half:]))
        assert sorted(first) == sorted(second) == list(range(n))
        assert n < 3 or first != second
        assert all(len(step) == 4 for step in steps[: half - 1])


def test_whole_batches_keep_the_stored_order():
    batches = batches_of(task(local_steps=2), t=0)
    assert [used(batches.step(1), i) for i in range(4)] == [list(range(n)) for n in SIZES]
    assert batches_of(task(local_epochs=3), t=0).K.tolist() == [3] * 4


@pytest.mark.parametrize("how", [{"local_steps": 3}, {"local_epochs": 2}])
def test_batches_do_not_depend_on_company(how):
    how = task(batch_size=3, **how)
    together = Batches(how, Chunk.of(how, EVERYONE), t=5)
    for i in range(4):
        alone = Batches(how, Chunk.of(how, torch.tensor([i])), t=5)
        for k in range(int(alone.K[0])):
            assert used(alone.step(k), 0) == used(together.step(k), i)
        assert used(alone.first(2), 0) == used(together.first(2), i)


def test_the_first_batch_has_a_stream_of_its_own():
    batches = batches_of(task(local_steps=1, batch_size=4), t=0)
    assert used(batches.first(4), 1) != used(batches.step(0), 1)


@pytest.mark.parametrize("engine", [loop.Loop, batched.Batched])
def test_gradients_in_pieces_are_gradients(engine, monkeypatch):
    """Cutting a client's data to bound memory changes nothing but rounding, dropout included."""
    how = task(nn.Sequential(nn.Linear(1, 8), nn.Dropout(0.5), nn.Linear(8, 3)), local_steps=1)
    ids = torch.tensor([1]) if engine is loop.Loop else EVERYONE
    y = how.model.initial()
    whole = engine(how, Chunk.of(how, ids), 0).full(y)
    module = loop if engine is loop.Loop else batched
    monkeypatch.setattr(module, "_SAMPLES_AT_ONCE", 5)
    pieces = engine(how, Chunk.of(how, ids), 0).full(y)
    assert not torch.equal(whole, torch.zeros_like(whole))
    assert torch.allclose(whole, pieces, rtol=0, atol=1e-14)


@pytest.mark.parametrize("engine", [loop.Loop, batched.Batched])
def test_gradients_over_all_data_keep_only_so_much_at_once(engine, monkeypatch):
    """Pieces are as large as memory should hold, of the vectorised program whole batches; a step's batch stays whole."""

    model = nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 3))

    def take() -> tuple[torch.Tensor, torch.Tensor, list[int]]:
        how = task(model, local_steps=1, batch_size=3)
        assert how.sample_bytes >= 8 * (1 + 8 + 3)  # inputs of both layers, scores
        ids = torch.tensor([SIZES.index(max(SIZES))]) if engine is loop.Loop else EVERYONE
        grad, widths = engine(how, Chunk.of(how, ids), 0), []
        parts = grad.parts
        monkeypatch.setattr(grad, "parts", lambda batch, width: (widths.append(width), parts(batch, width))[1])
        y = how.model.initial()
        return grad.full(y), grad(y), widths

    full, step, (wide, _) = take()
    assert wide >= max(SIZES)
    company = 1 if engine is loop.Loop else len(SIZES)
    monkeypatch.setattr("fedmos.engine.task._KEPT_AT_ONCE", 5 * company * task(model, local_steps=1).sample_bytes)
    in_pieces, again, (narrow, of_step) = take()
    assert narrow == (5 if engine is loop.Loop else 3)
    assert of_step >= 3
    assert torch.equal(again, step)
    assert torch.allclose(in_pieces, full, rtol=0, atol=1e-14)


def test_the_reported_loss_is_the_mean_of_first_losses():
    """With FedMoS the full gradient before the first step counts for step 0; later steps count their first gradient."""
    how = task(local_epochs=1, batch_size=4)
    for engine, ids in ((loop.Loop, torch.tensor([1])), (batched.Batched, EVERYONE)):
        grad = engine(how, Chunk.of(how, ids), 0)
        y = grad.start(how.model.initial())
        expected = [grad.loss_and_gradient(y, grad.batches.all())[0]]
        grad.full(y)
        for k in range(1, 3):
            grad.k = k
            expected.append(grad.loss_and_gradient(y + k, grad.batches.step(k))[0])
            grad(y + k), grad(y)
        grad.k = None
        grad.full(y)
        row = int((ids == 1).nonzero())
        assert float(grad.reported()[row]) == pytest.approx(float(torch.stack(expected)[:, row].mean()), abs=1e-14)
        if len(ids) > 1:  # client 2 has one step only
            assert float(grad.reported()[2]) == pytest.approx(float(expected[0][2]), abs=1e-14)


def test_dropout_drops_the_right_share_and_keeps_the_mean():
    layer = StreamDropout(0.3, channels=False).train()
    layer.key = torch.arange(1000)
    out = layer(torch.ones(1000, 7, 3))
    assert sorted(out.unique().tolist()) == pytest.approx([0.0, 1 / 0.7])
    assert abs(float((out == 0).double().mean()) - 0.3) < 0.01
    channels = StreamDropout(0.5, channels=True).train()
    channels.key = torch.arange(50)
    dropped = (channels(torch.ones(50, 6, 4, 4)) == 0).flatten(2)
    assert torch.equal(dropped.any(2), dropped.all(2))
    assert 0.3 < float(dropped.double().mean()) < 0.7
    layer.eval()
    assert torch.equal(layer(torch.ones(2, 2)), torch.ones(2, 2))


@pytest.mark.parametrize("make", [fm.models.cnn_digits, lambda **more: fm.models.mlp(features=64, **more)])
def test_dropout_is_the_same_on_both_engines_and_differs_from_none(quick, make):
    runs = {
        (engine, dropout): quick(
            model=make(dropout=dropout), engine=engine, dtype=torch.float64, algorithm=fm.FedMoS(lr=0.1), local_steps=3
        ).params
        for engine in ("loop", "batched")
        for dropout in (True, False)
    }
    assert torch.allclose(runs["loop", True], runs["batched", True], rtol=0, atol=1e-12)
    assert not torch.allclose(runs["loop", True], runs["loop", False], atol=1e-4)


def test_a_clients_update_does_not_depend_on_its_company(quick):
    """The same client in cohorts of one and of three, on the loop: the same bits."""
    alone = quick(selection=fm.FixedCohorts([[3]], [[1.0]]), rounds=1, engine="loop").params
    among = quick(selection=fm.FixedCohorts([[7, 3, 1]], [[0.0, 1.0, 0.0]]), rounds=1, engine="loop").params
    assert torch.equal(alone, among)


@pytest.mark.parametrize(
    ("make", "count"),
    [
        (fm.models.cnn_mnist, 21_840),
        (fm.models.mlp, 52_500),
        (fm.models.logistic, 7_850),
        (fm.models.cnn_digits, 1_898),
    ],
)
def test_models_have_the_papers_sizes_and_follow_their_seed(make, count):
    flat = [torch.cat([p.detach().flatten() for p in make(seed=seed).parameters()]) for seed in (0, 0, 1)]
    assert torch.equal(flat[0], flat[1])
    assert not torch.equal(flat[0], flat[2])
    assert len(flat[0]) == count


def test_client_state_on_disk_is_client_state_in_memory(tmp_path):
    """The file is sparse, starts from the initial values, and gives back what was written."""
    initial = {"c_i": torch.zeros(1000), "r_i": torch.arange(1000.0)}
    stores = [
        ClientStore(tuple(initial), initial, clients=100_000, folder=tmp_path, in_memory=limit) for limit in (2**40, 0)
    ]
    for store in stores:
        store.write(torch.tensor([7, 99_999]), {"c_i": torch.ones(2, 1000) * torch.tensor([[1.0], [2.0]])})
        store.write(torch.tensor([7]), {"r_i": torch.full((1, 1000), 5.0)})
        store.note(torch.tensor([7, 99_999]), 3)
    memory, disk = (store.read(torch.tensor([7, 0, 99_999])) for store in stores)
    for name in initial:
        assert torch.equal(memory[name], disk[name])
    assert torch.equal(disk["r_i"][2], initial["r_i"])
    assert list(stores[0]) == list(stores[1]) == [7, 99_999]
    assert torch.equal(stores[1][7]["c_i"], torch.ones(1000))
    with pytest.raises(KeyError):
        stores[1][0]
    (file,) = tmp_path.rglob("c_i")
    assert file.stat().st_size == 100_000 * 4000
    assert file.stat().st_blocks * 512 < 100_000
    del stores, store
    assert not list(tmp_path.iterdir())


def test_a_run_with_its_client_state_on_disk_is_the_same_run(quick, monkeypatch, tmp_path):
    algorithm = fm.Scaffold(lr=0.1)
    memory = quick(algorithm=algorithm)
    monkeypatch.setattr(ClientStore.__init__, "__defaults__", (None, 0, (0, 1)))
    disk = quick(algorithm=algorithm, out=tmp_path / "run")
    assert torch.equal(memory.params, disk.params)
    assert list(memory.clients) == list(disk.clients)
    loaded = fm.Result.load(tmp_path / "run")
    for i in memory.clients:
        assert torch.equal(memory.client_state(i)["c_i"], disk.client_state(i)["c_i"])
        assert torch.equal(memory.client_state(i)["c_i"], loaded.client_state(i)["c_i"])


class Branching(nn.Module):
    """Control flow that depends on the data, which vmap cannot follow."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(64, 10)

    def forward(self, x):
        x = x.flatten(1)
        return self.linear(x) if float(x.detach().sum()) > -1e9 else x


def test_what_cannot_be_vectorised_runs_in_the_loop(quick, caplog):
    result = quick(model=Branching(), engine="auto")
    assert result.info["engine"] == "loop"
    assert "cannot be vectorised" in caplog.text
    with pytest.raises(ValueError, match=r"Cannot vectorise the model.*use engine='loop'"):
        quick(model=Branching(), engine="batched")


def test_auto_takes_what_is_fastest_and_remembers_it(quick, tmp_path, monkeypatch):
    """Timings are made up: what counts is that the fastest wins, that it is said why, and that it is not timed again."""
    monkeypatch.setenv("FEDMOS_CACHE", str(tmp_path))
    for fastest, times in (("loop", [0.001, 0.5]), ("batched", [0.5, 0.001])):
        made_up = iter(times)
        monkeypatch.setattr(plan, "_time", lambda work, made_up=made_up: next(made_up))
        model = fm.models.mlp(features=64) if fastest == "loop" else fm.models.cnn_digits()
        result = quick(model=model)
        assert result.info["engine"] == fastest
        assert "ms a cohort step" in result.info["engine_why"]
        assert quick(model=model, seed=1).info["engine"] == fastest  # no timing is left to take


def test_auto_compiles_only_what_earns_it(quick, tmp_path, monkeypatch):
    monkeypatch.setenv("FEDMOS_CACHE", str(tmp_path))
    monkeypatch.setattr(plan, "_time", lambda work: 0.02)
    monkeypatch.setattr(plan, "_measure_compiled", lambda task, ids: {"compiled": 0.001})
    monkeypatch.setattr(plan, "can_compile", lambda device: True)
    task = how_of(quick)
    assert not plan.choose_plan("auto", task, 4, rounds=10).compiled
    assert plan.choose_plan("auto", task, 4, rounds=10_000).compiled
    assert not plan.choose_plan("auto", task, 4, rounds=10).compiled  # known to be faster, but not worth its time
    monkeypatch.setenv("FEDMOS_ENGINE", "compiled")
    assert plan.choose_plan("loop", task, 4).compiled
    monkeypatch.setenv("FEDMOS_ENGINE", "fast")
    with pytest.raises(ValueError, match="FEDMOS_ENGINE must be 'loop', 'batched' or 'compiled', got 'fast'"):
        plan.choose_plan("auto", task, 4)


@pytest.mark.parametrize("written", ["", "[1]", '{"KEY": 5}', '{"KEY": {"loop": 1.0}}', '{"KEY": {"loop": "x"}}'])
def test_what_others_wrote_into_the_memory_of_timings_is_ignored(quick, tmp_path, monkeypatch, written):
    monkeypatch.setenv("FEDMOS_CACHE", str(tmp_path))
    quick()
    (key,) = plan._read(tmp_path / "engines.json")
    (tmp_path / "engines.json").write_text(written.replace("KEY", key))
    quick()
    assert set(plan._read(tmp_path / "engines.json")[key]) >= {"loop", "batched", "operations"}


def test_engines_are_measured_apart_where_the_work_differs(quick, tmp_path, monkeypatch):
    monkeypatch.setenv("FEDMOS_CACHE", str(tmp_path))
    quick()
    for more in (
        {"loss": lambda o, t: nn.functional.cross_entropy(o, t) * 2},
        {"batch_size": 3},
        {"dtype": torch.float64},
    ):
        before = len(plan._read(tmp_path / "engines.json"))
        quick(**more)
        assert len(plan._read(tmp_path / "engines.json")) == before + 1


def test_a_run_is_resumed_as_it_began(quick, tmp_path, monkeypatch):
    monkeypatch.setenv("FEDMOS_ENGINE", "loop")
    how = {"engine": "batched", "out": tmp_path / "run", "resume": True}
    quick(**how, rounds=1)
    assert quick(**how).info["engine"] == "loop"
    monkeypatch.delenv("FEDMOS_ENGINE")
    with pytest.raises(ValueError, match="its 'engine' is 'loop', got 'batched'"):
        quick(**how)
    assert quick(**how | {"engine": "auto"}).info["engine"] == "loop"


def test_fixed_shapes_change_nothing(monkeypatch):
    """Rows and columns that are filled up, as for compiled programs, without the compiling."""
    data = fm.datasets.load("digits").partition(fm.partition.QuantitySkew(skew=0.7, least=5), clients=15, seed=0)
    monkeypatch.setattr(work.ExecutionPlan, "fixed_shapes", property(lambda plan: plan.engine == "batched"))
    monkeypatch.setattr(plan, "_room", lambda task: 4)
    for algorithm in (fm.FedMoS(lr=0.05), fm.Scaffold(lr=0.05), fm.Mime(lr=0.05)):
        how = {
            "model": fm.models.logistic(features=64),
            "data": data,
            "algorithm": algorithm,
            "selection": fm.Bernoulli(rate=0.4),
            "rounds": 4,
            "local_epochs": 2,
            "batch_size": 16,
            "dtype": torch.float64,
        }
        a, b = (fm.run(**how, engine=engine) for engine in ("loop", "batched"))
        assert torch.allclose(a.params, b.params, rtol=0, atol=1e-11)


def test_convolutions_of_a_cohort_are_convolutions():
    """The layer that replaces nn.Conv2d on a GPU, outside and under vmap, on images that are not square."""
    layer = nn.Conv2d(40, 6, 3, stride=2, padding=1).double()
    ours = convolution.CohortConv2d(layer, None)
    x = torch.randn(3, 2, 40, 8, 6, dtype=torch.float64)

    def energy(conv):
        def f(w, x):
            return (torch.func.functional_call(conv, {"weight": w}, (x,)) ** 2).sum()

        return f

    w = torch.stack([layer.weight.detach() * k for k in (1, 2, 3)])
    for here, there in zip(
        torch.func.vmap(torch.func.grad(energy(ours), argnums=(0, 1)))(w, x),
        torch.func.vmap(torch.func.grad(energy(layer), argnums=(0, 1)))(w, x),
        strict=True,
    ):
        assert torch.allclose(here, there, rtol=1e-12)
    assert torch.allclose(ours(x[0]), layer(x[0]), rtol=1e-12)
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Conv2d(2, 2, 3, groups=2), nn.Conv2d(2, 2, 3))
    model[2].register_forward_hook(lambda module, inputs, output: output)
    convolution.replace_convolutions(model, None)
    assert [type(m) is nn.Conv2d for m in model] == [False, True, True]


def test_precision_is_refused_where_it_means_nothing(quick):
    with pytest.raises(ValueError, match=r"'precision' must be None where 'dtype' is torch.float64, got 'bf16'"):
        quick(precision="bf16", dtype=torch.float64)
    with pytest.raises(ValueError, match="'precision' must be None or 'bf16' on a CPU, got 'tf32'"):
        quick(precision="tf32", device="cpu")
    exact, short = quick(device="cpu").params, quick(precision="bf16", device="cpu").params
    assert 0 < float((exact - short).norm() / exact.norm()) < 0.02


def how_of(quick) -> Task:
    return task(nn.Sequential(nn.Linear(1, 8), nn.ReLU(), nn.Linear(8, 3)), local_steps=2, batch_size=4)


def test_compiled_programs_compute_the_same(quick, monkeypatch):
    """Dropout and augmentation included, in both precisions."""
    data = fm.datasets.load("digits").declare(augment=fm.Augment(crop=1)).partition(fm.partition.IID(), 8, seed=0)
    for dtype, bound in ((torch.float64, 1e-12), (torch.float32, 1e-5)):
        how = {"model": fm.models.cnn_digits(dropout=True), "data": data, "dtype": dtype, "batch_size": 8}
        plain = quick(**how, engine="loop").params
        monkeypatch.setenv("FEDMOS_ENGINE", "compiled")
        result = quick(**how)
        monkeypatch.delenv("FEDMOS_ENGINE")
        assert result.info["compiled"]
        assert float((result.params - plain).norm() / plain.norm()) < bound


PLAIN_STEPS = {
    "weight decay": {"weight_decay": 0.1},
    "clipped": {"clip": 0.01},
    "epochs of unequal length": {"local_steps": None, "local_epochs": 2, "batch_size": 4},
    "full batches": {"batch_size": None, "local_steps": None, "local_epochs": 2},
    "batches in parts": {"at_once": 8, "batch_size": 8},
}


@pytest.mark.parametrize("name", PLAIN_STEPS)
def test_a_compiled_plain_step_is_the_gradient_and_the_step(quick, monkeypatch, name):
    """FedAvg's step is compiled with the gradient, but where it is clipped or cut into parts; alone and side by side."""
    how = {"dtype": torch.float64, "algorithm": fm.FedAvg(lr=0.1)} | PLAIN_STEPS[name]
    fused = []
    descend = program.Program.descend
    monkeypatch.setattr(program.Program, "descend", lambda *given: fused.append(1) or descend(*given))
    monkeypatch.setattr(batched, "_SAMPLES_AT_ONCE", how.pop("at_once", 8192))
    loop = quick(engine="loop", **how)
    monkeypatch.setenv("FEDMOS_ENGINE", "compiled")
    result = quick(**how)
    assert result.info["compiled"]
    assert bool(fused) == (name not in ("clipped", "batches in parts"))
    assert torch.allclose(result.params, loop.params, rtol=0, atol=1e-12)
    assert result.history[-1].train_loss == pytest.approx(loop.history[-1].train_loss, abs=1e-12)


def test_plain_steps_of_runs_side_by_side_have_their_own_step_sizes(quick, digits, monkeypatch):
    rates = [0.05, 0.1, 0.2]
    how = {"dtype": torch.float64, "weight_decay": 0.01}
    alone = [quick(engine="loop", algorithm=fm.FedAvg(lr=lr), **how).params for lr in rates]
    monkeypatch.setenv("FEDMOS_ENGINE", "compiled")
    model, selection = fm.models.logistic(features=64), fm.Uniform(m=4)
    how |= {"model": model, "data": digits, "selection": selection, "rounds": 3, "local_steps": 2, "batch_size": 4}
    together = fm.run_many([{"algorithm": fm.FedAvg(lr=lr)} for lr in rates], **how)
    for result, params in zip(together, alone, strict=True):
        assert torch.allclose(result.params, params, rtol=0, atol=1e-12)


def test_steps_that_cannot_be_compiled_whole_are_taken_by_parts(quick, monkeypatch, caplog):
    def fail(*given):
        raise RuntimeError("the compiler gave up\nfor reasons of its own")

    how = {"dtype": torch.float64, "algorithm": fm.FedAvg(lr=0.1)}
    loop = quick(engine="loop", **how)
    monkeypatch.setattr(program.Program, "_descend", fail)
    monkeypatch.setenv("FEDMOS_ENGINE", "compiled")
    result = quick(**how)
    assert result.info["compiled"]
    assert torch.allclose(result.params, loop.params, rtol=0, atol=1e-12)
    assert caplog.text.count("Compiling gradients alone because whole steps fail: the compiler gave up\n") == 1


class OwnStep(fm.Algorithm):
    """An algorithm whose step is decided when it is made."""

    def __init__(self, lr: float, half: bool) -> None:
        self.lr = lr
        if half:
            self.step = lambda y, s, c, grad, k: (y - 0.5 * c.lr * grad(y), s)


@pytest.mark.parametrize("engine", ["loop", "batched"])
def test_a_step_of_the_object_s_own_counts(quick, engine):
    how = {"dtype": torch.float64, "engine": engine}
    plain, half, small = (
        quick(algorithm=algorithm, **how).params
        for algorithm in (OwnStep(0.1, half=False), OwnStep(0.1, half=True), fm.FedAvg(lr=0.05))
    )
    assert torch.allclose(half, small, rtol=0, atol=1e-12)
    assert not torch.allclose(half, plain)


@pytest.mark.parametrize("chunk", [1, 3])
def test_chunks_change_rounding_at_most(quick, monkeypatch, chunk):
    how = {"engine": "batched", "dtype": torch.float64, "algorithm": fm.Scaffold(lr=0.1), "local_steps": 3}
    whole = quick(**how)
    monkeypatch.setattr(plan, "_room", lambda task: chunk)
    parts = quick(**how)
    assert parts.info["chunk"] == chunk
    assert torch.allclose(whole.params, parts.params, rtol=0, atol=1e-12)
    assert parts.history[-1].cohort == whole.history[-1].cohort


def test_out_of_memory_is_met_with_smaller_chunks(quick, monkeypatch, caplog):
    whole = quick(engine="batched", dtype=torch.float64, algorithm=fm.Scaffold(lr=0.1))
    compute = batched.Batched.loss_and_gradient

    def scarce(self, y, batch):
        if len(self.chunk.ids) > 1 and self.task.local_steps:
            raise torch.OutOfMemoryError("no memory")
        return compute(self, y, batch)

    monkeypatch.setattr(plan, "why_not_vectorised", lambda task: None)
    monkeypatch.setattr(batched.Batched, "loss_and_gradient", scarce)
    result = quick(engine="batched", dtype=torch.float64, algorithm=fm.Scaffold(lr=0.1))
    assert result.info["chunk"] == 1
    assert "bits may differ" in result.info["narrowed"]
    assert "going on with chunks of 2 instead of 4 clients" in caplog.text
    assert torch.allclose(whole.params, result.params, rtol=0, atol=1e-12)
    assert len(result.history) == 3

    def none(self, y, batch):
        raise torch.OutOfMemoryError("no memory")

    monkeypatch.setattr(batched.Batched, "loss_and_gradient", none)
    with pytest.raises(torch.OutOfMemoryError):
        quick(engine="batched")


def test_many_clients_of_a_large_model_are_cut_by_memory(monkeypatch):
    large = task(nn.Sequential(nn.Linear(1, 1000), nn.Linear(1000, 3)), local_steps=1, batch_size=2)
    assert plan._room(large) > 4
    monkeypatch.setattr(plan, "total_memory", lambda device: 10**6)
    assert plan._room(large) == 1


class Twice(nn.Module):
    """One dropout layer used twice, and known by two names."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.drop = nn.Linear(64, 10), nn.Dropout(0.5)
        self.again = self.drop
        self.seen = []

    def forward(self, x):
        ones = torch.ones(len(x), 50)
        self.seen.append((self.drop(ones), self.again(ones)))
        return self.linear(x.flatten(1))


def test_a_dropout_layer_used_twice_draws_two_masks():
    how = task(local_steps=1)
    model = FlatModel(Twice(), torch.device("cpu"), torch.float64)
    model.module.train()
    for _ in range(2):
        model(model.initial(), torch.zeros(3, 64, dtype=torch.float64), torch.tensor([1, 2, 3]))
    (a, b), (c, d) = model.module.seen
    assert not torch.equal(a, b)
    assert torch.equal(a, c)
    assert torch.equal(b, d)
    assert how.model.has_dropout is False


def test_a_step_that_writes_in_place_does_not_reach_the_server(quick):
    from dataclasses import dataclass

    @dataclass(frozen=True, kw_only=True)
    class InPlace(fm.Algorithm):
        lr: float

        def step(self, y, s, c, grad, k):
            y -= c.lr * grad(y)
            return y, s

    assert torch.equal(quick(algorithm=InPlace(lr=0.1), engine="loop").params, quick(engine="loop").params)


def test_the_batch_in_finish_is_each_clients_last(quick):
    from dataclasses import dataclass

    @dataclass(frozen=True, kw_only=True)
    class Late(fm.Algorithm):
        lr: float

        def finish(self, y, s, c, grad):
            return {"delta": y - c.lr * grad(y) - c.x}, {}

    runs = [
        quick(algorithm=Late(lr=0.1), local_steps=None, local_epochs=2, engine=engine, dtype=torch.float64).params
        for engine in ("loop", "batched")
    ]
    assert torch.allclose(*runs, rtol=0, atol=1e-12)


class Flattening(nn.Module):
    """Says `view` after a convolution, which images stored channels last do not stand."""

    def __init__(self, view: bool) -> None:
        super().__init__()
        self.conv, self.last, self.view = nn.Conv2d(3, 4, 3), nn.Linear(4 * 6 * 6, 10), view

    def forward(self, x):
        y = torch.relu(self.conv(x))
        self.seen = y.is_contiguous(memory_format=torch.channels_last)
        return self.last(y.view(len(y), -1) if self.view else y.flatten(1))


@pytest.mark.parametrize("view", [True, False])
def test_images_are_stored_channels_last_where_the_model_takes_them_so(view):
    torch.manual_seed(0)
    module, images = Flattening(view), torch.randn(5, 3, 8, 8)
    model = FlatModel(module, torch.device("cpu"), torch.float32)
    outputs = model(model.initial(), model.laid_out(images))
    assert model.module.seen is not view
    assert torch.allclose(outputs, module(images), atol=1e-6)
    exact = FlatModel(module, torch.device("cpu"), torch.float64)
    assert exact.laid_out(images.double()).is_contiguous()


@pytest.mark.parametrize(("kibibytes", "stages"), [(99, 2), (163, 2), (227, 3)], ids=["most", "A100", "H200"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_tiles_fit_into_a_gpu_s_shared_memory(kibibytes, stages, dtype):
    """As many of either factor's as Triton makes room for there, where a loop has three stages."""
    for C, CO, K in product((1, 3, 10, 16, 20, 32, 64, 65), (6, 20, 64, 200), (1, 3, 5, 7)):
        x, rows, T = torch.empty((10, 20, C, 32, 32), dtype=dtype, device="meta"), 20 * 28 * 28, C * K * K
        found = [tiles.forward_tiles(x, CO, rows, T, pad) for pad in (0, 1)]
        sizes = [BT * (BR + BO) for BR, BT, BO, _ in found]
        BR, BT, BO, _ = tiles.weight_tiles(x, CO, rows, T, kibibytes * 1024)
        assert stages * dtype.itemsize * max(*sizes, BR * (BT + BO)) <= kibibytes * 1024


def test_a_gpu_with_room_gets_the_tiles_that_were_fastest_on_it():
    """MNIST's second layer, 10 → 20 channels."""
    x = torch.empty((25, 20, 10, 12, 12), device="meta")
    assert tiles.weight_tiles(x, 20, 20 * 8 * 8, 250, 227 * 1024)[:3] == (64, 256, 32)
    assert tiles.weight_tiles(x, 20, 20 * 8 * 8, 250, 99 * 1024)[:3] == (32, 128, 32)


@pytest.mark.parametrize("compiled", [False, True])
def test_convolutions_client_by_client_on_a_cpu(monkeypatch, compiled):
    monkeypatch.setattr(convolution, "_LARGE", 0)
    data = fm.datasets.load("digits").partition(fm.partition.ByClass(classes=2, size=(4, 22)), clients=10, seed=0)
    settings = {"data": data, "algorithm": fm.FedMoS(lr=0.1), "selection": fm.Uniform(m=4), "rounds": 3}
    settings |= {"model": fm.models.cnn_digits(), "local_steps": 2, "batch_size": 4}
    expected = fm.run(**settings, engine="loop").params
    if compiled:
        monkeypatch.setenv("FEDMOS_ENGINE", "compiled")
    assert torch.allclose(fm.run(**settings, engine="batched").params, expected, rtol=1e-5, atol=1e-6)
