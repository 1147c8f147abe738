"""Parameters that stay with the clients: trajectories, composition with everything else, and what is refused."""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
import pytest
import torch
from torch import nn

import fedmos as fm
from fedmos.core.personal_parameters import personal_names
from fedmos.run.build import _warn_of_initial_model, _warn_of_initial_values
from helpers.conformance import CASES, EACH, LOGISTIC, LR, close, train
from helpers.reference_shared import BIASES_OF, WEIGHTS_OF, SharedPart, one_step, trained

ELSEWHERE = {"FedACG", "FedInit", "LocalOnly", "FedGamma", "FedSpeed", "FedSMOO", "FedLESAM"}
"""Methods that take the gradient of their first step elsewhere than at x."""
AT_X = [case for case in CASES if case.name not in ELSEWHERE and case.fields.get("first_batch", "full") == "full"]
AT_X = [case for case in AT_X if case.fields.get("option") != 1 and case.name != "MimeLite"]
"""Without those that take a gradient after the last step, at the new values of the client's own parameters."""
EXTENDED = pytest.mark.extended
SIDE = [(0.1, 0), (0.2, 1)]
SOME = ("Scaffold", "FedCM", "Mime", "FedMoS", "Ditto")


def some(cases):
    """Mark all cases but the first of a few classes as extended."""
    seen: set[str] = set()
    params = []
    for case in cases:
        quick = case.name in SOME and case.name not in seen
        seen.add(case.name)
        params.append(pytest.param(case, id=str(case), marks=[] if quick else [EXTENDED]))
    return params


def check(result: fm.Result, problem: SharedPart, x: np.ndarray, tolerance: float = 1e-10) -> None:
    """The shared parameters, and those of every client, also in its module."""
    close(result.params, x, tolerance)
    for i in range(len(problem)):
        own = result.personal_model(i)
        flat = torch.cat([p.detach().flatten() for p in own.parameters()]).numpy()
        close(flat[problem.own], problem.v[i], tolerance, f"v of client {i}")
        close(flat[problem.shared], x, tolerance)


@pytest.mark.parametrize("case", some(AT_X))
@pytest.mark.parametrize("engine", ["batched", pytest.param("loop", marks=EXTENDED)])
def test_one_step_of_every_method(case, engine):
    """The algorithm works on the shared parameters; the others take a step along their gradient at the same point."""
    problem = SharedPart(LOGISTIC, BIASES_OF)
    trace = one_step(case, problem)
    result = train(LOGISTIC, case.make(), engine, rounds=case.rounds, local_steps=1, personal=["bias"])
    x = trace.xs[-1] if trace.evaluated is None else trace.evaluated
    close(result.params, x)
    for i in range(len(LOGISTIC)):
        own = result.client_state(i).get("personal", torch.tensor(LOGISTIC.x0[BIASES_OF]))
        close(own, problem.v[i], 1e-10, f"v of client {i}")
        for name, value in trace.clients.get(i, {}).items():
            close(result.client_state(i)[name], value, 1e-10, name)


METHODS = {
    "FedPer": (fm.FedAvg(lr=LR), {}, {}),
    "FedProx": (fm.FedProx(lr=LR, mu=0.3), {}, {"mu": 0.3}),
    "SCAFFOLD": (fm.Scaffold(lr=LR), {}, {"scaffold": True}),
    "momentum": (fm.FedAvg(lr=LR), {"local": fm.local.SGD(momentum=0.5)}, {"beta": 0.5}),
    "FedRep": (fm.FedAvg(lr=LR), {"steps": 2}, {"steps": 2}),
    "FedRep, SCAFFOLD": (fm.Scaffold(lr=LR), {"steps": 2}, {"steps": 2, "scaffold": True}),
}


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize(("pattern", "own"), [("bias", BIASES_OF), ("weight", WEIGHTS_OF)], ids=["head", "body"])
@pytest.mark.parametrize("engine", ["batched", pytest.param("loop", marks=EXTENDED)])
def test_trajectory(name, pattern, own, engine):
    """FedPer keeps the last layer, LG-FedAvg the first ones; the order of the parameters does not matter."""
    algorithm, given, fields = METHODS[name]
    problem = SharedPart(LOGISTIC, own)
    trace = trained(problem, K=5, rounds=6, **fields)
    personal = fm.Personal([pattern], steps=given.get("steps"))
    options = {key: value for key, value in given.items() if key != "steps"}
    result = train(LOGISTIC, algorithm, engine, rounds=6, local_steps=5, personal=personal, **options)
    check(result, problem, trace.xs[-1])


@pytest.mark.parametrize(
    "algorithm",
    [fm.FedCM, *(pytest.param(a, marks=EXTENDED) for a in (fm.FedNova, fm.FedAvgMom))],
    ids=lambda c: c.__name__,
)
def test_means_over_steps_count_the_steps_of_shared_parameters(algorithm):
    """With a head that has no effect, K steps after two of the head are K steps."""

    class Idle(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.head = LOGISTIC.model(), nn.Parameter(torch.zeros(2, dtype=torch.float64))

        def forward(self, a):
            return self.body(a) + 0 * self.head.sum()

    common = {"rounds": 5, "loss": "cross_entropy", "dtype": torch.float64, "engine": "loop", "device": "cpu"}
    parts = [LOGISTIC.data(), algorithm(lr=LR), fm.Full()]
    alone = fm.run(LOGISTIC.model(), *parts, local_steps=3, **common)
    after = fm.run(Idle(), *parts, local_steps=5, personal=fm.Personal(["head"], steps=2), **common)
    close(after.params, alone.params, 1e-12)


@pytest.mark.parametrize("case", [pytest.param(c, id=str(c), marks=EXTENDED) for c in EACH])
@pytest.mark.parametrize("steps", [None, 2])
def test_engines_agree(case, steps):
    work = {"local_steps": 4, "batch_size": 4, "clip": 1.0, "weight_decay": 0.01, "rounds": 4}
    personal = fm.Personal(["bias"], steps=steps)
    a, b = (train(LOGISTIC, case.make(), engine, personal=personal, **work) for engine in ("loop", "batched"))
    close(a.params, b.params, 1e-9)
    for i in range(len(LOGISTIC)):
        assert set(a.client_state(i)) == set(b.client_state(i))
        for name, v in a.client_state(i).items():
            close(v, b.client_state(i)[name], 1e-9, name)


@pytest.mark.parametrize("case", some(EACH))
def test_personal_parameters_are_not_sent(case):
    """Every vector has the size of the shared parameters, and its bytes are counted so."""
    result = train(LOGISTIC, case.make(), "loop", fm.Full(), rounds=2, local_steps=1, personal=["weight"])
    down, up = (vectors * 3 * 8 * len(LOGISTIC) for vectors in case.wire)
    assert result.history[1].bytes_down == down
    assert result.history[1].bytes_up == up + case.numbers * 8 * len(LOGISTIC)
    assert len(result.params) == 3
    for i in range(len(LOGISTIC)):
        assert result.client_state(i)["personal"].shape == (12,)


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"local": fm.local.AdamW(keep=True)}, marks=EXTENDED),
        pytest.param({"local": fm.local.Adam(average=True)}, marks=EXTENDED),
        {"local": fm.local.SAM(rho=0.1)},
        pytest.param({"local": fm.local.Muon()}, marks=EXTENDED),
        {"uplink": fm.codecs.ErrorFeedback(fm.codecs.TopK(0.5))},
        pytest.param({"uplink": fm.codecs.Quantize(8), "downlink": fm.codecs.Quantize(8)}, marks=EXTENDED),
        pytest.param({"aggregation": fm.aggregation.Median()}, marks=EXTENDED),
        pytest.param({"privacy": fm.privacy.Gaussian(clip=0.1, noise_multiplier=0.5, delta=1e-3)}, marks=EXTENDED),
        pytest.param({"selection": fm.PowerOfChoice(m=2, d=4)}, marks=EXTENDED),
        pytest.param({"selection": fm.Oort(m=3)}, marks=EXTENDED),
        pytest.param({"selection": fm.CACS(m=3, warmup=2, clusters=2)}, marks=EXTENDED),
        pytest.param({"selection": fm.OCS(m=2, d=4)}, marks=EXTENDED),
        pytest.param({"buffer": fm.Buffer(size=2, concurrency=4)}, marks=EXTENDED),
        pytest.param({"aggregation": fm.aggregation.Secure(20)}, marks=EXTENDED),
        pytest.param({"privacy": fm.privacy.Local(0.5, 0.1, 1e-3)}, marks=EXTENDED),
        pytest.param({"system": fm.System(deadline=1e9), "local_steps": None, "local_epochs": 2}, marks=EXTENDED),
    ],
    ids=lambda options: ",".join(f"{k}={type(v).__name__}" for k, v in options.items()),
)
def test_composition(options):
    """Loop and vectorised program agree, the state has the size of the parameters, and a resumed run its bits."""
    work = {"local_steps": 3, "batch_size": 4, "rounds": 4, "selection": fm.Uniform(m=3)} | options
    a, b = (train(LOGISTIC, fm.FedCM(lr=LR), engine, personal=["bias"], **work) for engine in ("loop", "batched"))
    close(a.params, b.params, 1e-9)
    assert [r.cohort for r in a.history] == [r.cohort for r in b.history]
    touched = [i for i in range(len(LOGISTIC)) if a.client_state(i)]
    assert touched
    for i in touched:
        for name, v in a.client_state(i).items():
            close(v, b.client_state(i)[name], 1e-9, name)
            if name.startswith("personal"):
                assert v.numel() in (1, 3)
        assert not np.allclose(a.client_state(i)["personal"], LOGISTIC.x0[BIASES_OF])


def test_probed_losses_are_those_of_the_clients_models():
    """PowerOfChoice ranks clients by the loss of x with their own head."""

    class Biased(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.head = nn.Linear(4, 3), nn.Parameter(torch.zeros(3))

        def forward(self, a):
            return 0 * self.body(a) + self.head

    samples = [(torch.zeros(4, 4), torch.full((4,), label)) for label in (0, 0, 1, 2)]
    data = fm.FederatedData.from_arrays(samples)
    cohorts = fm.FixedCohorts([[0], [1], [2]])
    common = {"local_steps": 30, "personal": ["head"], "device": "cpu"}
    first = fm.run(Biased(), data, fm.FedAvg(lr=1.0), cohorts, rounds=3, out=None, **common)
    assert all(float(first.client_state(i)["personal"].max()) > 2 for i in range(3))
    ranked = fm.run(Biased(), data, fm.FedAvg(lr=1.0), fm.PowerOfChoice(m=1, d=4), rounds=4, **common)
    assert sorted(r.cohort[0] for r in ranked.history) == [0, 1, 2, 3]  # the one who has trained least


def test_resume(tmp_path, quick):
    """A run in two parts has the bits of one run."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    given = {"algorithm": fm.Scaffold(lr=0.1), "personal": ["1.weight"], "engine": "batched", "model": model}
    whole = quick(rounds=6, **given)
    quick(rounds=3, out=tmp_path / "run", **given)
    resumed = quick(rounds=6, out=tmp_path / "run", resume=True, **given)
    assert torch.equal(whole.params, resumed.params)
    for i in range(20):
        for name, v in whole.client_state(i).items():
            assert torch.equal(v, resumed.client_state(i)[name])
        for p, q in zip(whole.personal_model(i).parameters(), resumed.personal_model(i).parameters(), strict=True):
            assert torch.equal(p, q)
    with pytest.raises(ValueError, match="'personal'"):
        quick(rounds=7, out=tmp_path / "run", resume=True, **given | {"personal": ["1.bias"]})


@pytest.mark.extended
def test_runs_side_by_side(digits):
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    work = {"rounds": 3, "local_steps": 2, "batch_size": 4, "personal": ["1.bias"], "engine": "batched"}
    alone = [fm.run(model, digits, fm.FedCM(lr=lr), fm.Uniform(m=4), seed=seed, **work) for lr, seed in SIDE]
    many = fm.run_many(
        [{"algorithm": fm.FedCM(lr=lr), "seed": seed, "label": f"{lr}"} for lr, seed in SIDE],
        model=model,
        data=digits,
        selection=fm.Uniform(m=4),
        **work,
    )
    for a, b in zip(alone, many, strict=True):
        close(a.params, b.params, 1e-5)
        for i in range(20):
            for name, v in a.client_state(i).items():
                close(v, b.client_state(i)[name], 1e-5, name)


@pytest.mark.parametrize(("evaluate", "warned"), [(None, True), (1, False)])
def test_local_training_without_metrics_of_own_models_is_warned_of(evaluate, warned, caplog):
    _warn_of_initial_model.cache_clear()
    data = fm.datasets.load("digits").partition(fm.partition.IID(), clients=4, holdout=0.3)
    how = {"rounds": 1, "local_steps": 1, "batch_size": 4, "evaluate_clients": evaluate}
    fm.run(fm.models.logistic(features=64), data, fm.LocalOnly(lr=0.1), fm.Full(), **how)
    assert ("LocalOnly: accuracy and losses are those of the initial model" in caplog.text) == warned
    _warn_of_initial_values.cache_clear()
    fm.run(fm.models.logistic(features=64), data, fm.FedAvg(lr=0.1), fm.Full(), personal=["*.bias"], **how)
    assert ("use evaluate_clients= for personal_accuracy, that of the clients' own" in caplog.text) == warned


def test_clients_that_send_nothing_keep_averaged_state():
    common = {"rounds": 3, "local_steps": 2, "engine": "loop"}
    averaged, kept = (
        train(LOGISTIC, fm.LocalOnly(lr=LR), local=local, **common)
        for local in (fm.local.Adam(average=True), fm.local.Adam(keep=True))
    )
    assert all(record.bytes_up == record.bytes_down == 0 for record in averaged.history)
    assert torch.equal(averaged.client_state(0)["y_i"], kept.client_state(0)["y_i"])


def test_clients_that_do_not_exist(quick):
    result = quick(personal=["*.bias"], rounds=1)
    assert isinstance(result.personal_model(torch.tensor(19)), nn.Module)
    for wrong in (20, -1, "a", True, 1.0, None):
        with pytest.raises(ValueError, match="personal_model: 'i' must be a client from 0 to 19, got"):
            result.personal_model(wrong)


def test_a_saved_result(tmp_path, quick):
    """The global model has the initial values of what clients keep; it is exported and loaded with them."""
    torch.manual_seed(1)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    result = quick(model=model, personal=["1.bias"], rounds=3, algorithm=fm.FedAvg(lr=0.5))
    assert torch.equal(result.model[1].bias, model[1].bias)
    assert not torch.equal(result.model[1].weight, model[1].weight)
    assert result.model[1].bias.requires_grad
    result.save(tmp_path / "run")
    loaded = fm.Result.load(tmp_path / "run", model)
    assert torch.equal(loaded.params, result.params)
    with pytest.raises(ValueError, match=r"does not hold what clients keep; use that of fm\.run"):
        loaded.personal_model(0)
    result.export(tmp_path / "model.safetensors")
    other = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    with pytest.raises(ValueError, match="parameters that stay with clients have other values"):
        fm.Result.load(tmp_path / "run", other)


@pytest.mark.parametrize(
    ("personal", "message"),
    [
        (
            ["head.*"],
            r"must name trainable parameters of the model \(weight, bias\), got 'head.\*', which matches none",
        ),
        (["bias", "heads"], "got 'heads', which matches none"),
        (["*"], r"Cannot keep all parameters \(weight, bias\) with the clients .* fm.LocalOnly"),
        (fm.Personal(["bias"], steps=3), r"Personal: 'steps' must be < local_steps \(3\)"),
        ([], "run: 'personal' must be patterns of names"),
        (3, "run: 'personal' must be patterns of names"),
    ],
)
def test_refused_patterns(personal, message):
    with pytest.raises(ValueError, match=message):
        train(LOGISTIC, fm.FedAvg(lr=LR), "loop", rounds=1, local_steps=3, personal=personal)


@pytest.mark.parametrize(
    ("pattern", "hint"),
    [
        ("head", "'head', which matches none; 'head.*' matches the parameters of the module"),
        ("haed.*", "'haed.*', which matches none (did you mean 'head.*'?)"),
        ("head.wieght", "'head.wieght', which matches none (did you mean 'head.weight'?)"),
        ("tail", "'tail', which matches none"),
    ],
)
def test_patterns_that_match_nothing_get_a_hint(pattern, hint):
    model = nn.Sequential(OrderedDict(body=nn.Linear(4, 3), head=nn.Linear(3, 2)))
    with pytest.raises(ValueError) as error:
        personal_names(model, fm.Personal([pattern]))
    assert str(error.value).endswith(hint)


def test_refused_options():
    with pytest.raises(ValueError, match="with local_epochs because the number of local"):
        train(LOGISTIC, fm.FedAvg(lr=LR), "loop", rounds=1, local_epochs=1, personal=fm.Personal(["bias"], steps=1))
    with pytest.raises(ValueError, match="Cannot measure diagnostics with personal="):
        train(
            LOGISTIC, fm.FedAvg(lr=LR), "loop", rounds=1, local_steps=1, personal=["bias"], callbacks=[fm.Diagnostics()]
        )
    with pytest.raises(ValueError, match="Personal: 'steps' must be an integer ≥ 1"):
        fm.Personal(["bias"], steps=0)
    frozen = LOGISTIC.model()
    frozen.bias.requires_grad_(False)
    with pytest.raises(ValueError, match="got 'bias', which matches none"):
        fm.run(frozen, LOGISTIC.data(), fm.FedAvg(lr=LR), fm.Full(), rounds=1, local_steps=1, personal=["bias"])


@pytest.mark.parametrize("engine", ["batched", pytest.param("loop", marks=EXTENDED)])
def test_own_models_are_evaluated_on_the_clients_test_samples(engine):
    """`personal_accuracy` is that of `personal_model(i)`; fine-tuning begins at the head of the global model."""
    data = fm.datasets.load("digits").partition(fm.partition.ByClass(classes=2), clients=6, seed=0, holdout=0.3)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 10))
    common = {"rounds": 4, "local_steps": 5, "batch_size": 8, "engine": engine, "dtype": torch.float64}
    how = fm.EvaluateClients(every=4, finetune_steps=3)
    result = fm.run(model, data, fm.FedAvg(lr=0.3), fm.Uniform(m=3), personal=["3.*"], evaluate_clients=how, **common)
    tested = [_tests(data, i) for i in range(6)]
    for name, of in (("personal_accuracy", result.personal_model), ("client_accuracy", lambda i: result.model)):
        wanted = [
            float((of(i)(data.inputs(x, torch.float64)).argmax(1) == y).double().mean())
            for i, (x, y) in enumerate(tested)
        ]
        close(result.client_score(name), wanted, 1e-12, name)
    record = result.history[-1]
    assert record.personal_accuracy == pytest.approx(float(result.client_score("personal_accuracy").mean()))
    assert record.personal_accuracy > record.client_accuracy
    assert record.client_metrics["finetuned_accuracy"] > record.client_accuracy


def _tests(data: fm.FederatedData, i: int):
    tests = data.tests
    rows = slice(int(tests.offsets[i]), int(tests.offsets[i + 1]))
    index = torch.arange(rows.start, rows.stop) if tests.index is None else tests.index[rows]
    return tests.x[index], tests.y[index]


@pytest.mark.extended
def test_a_head_of_100_000_clients_on_disk(monkeypatch, tmp_path):
    """The state of each client has the size of its head, and lies in a file where all of it exceeds the memory."""
    N = 100_000
    x, y = torch.randn(2 * N, 4, generator=torch.Generator().manual_seed(0)), torch.arange(2 * N) % 3
    data = fm.FederatedData.from_arrays([(x[2 * i : 2 * i + 2], y[2 * i : 2 * i + 2]) for i in range(N)])
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
    common = {"rounds": 3, "local_steps": 1, "personal": ["2.*"], "engine": "batched", "eval_every": 3}
    parts = [model, data, fm.FedAvg(lr=0.1), fm.Uniform(m=500)]
    memory = fm.run(*parts, **common)
    monkeypatch.setattr("fedmos.engine.client_store._IN_MEMORY", 0)
    disk = fm.run(*parts, out=tmp_path / "run", **common)
    assert torch.equal(memory.params, disk.params)
    touched = [i for record in disk.history for i in record.cohort]
    assert len(set(touched)) > 1000
    for i in touched[:50]:
        assert torch.equal(memory.client_state(i)["personal"], disk.client_state(i)["personal"])
        assert disk.client_state(i)["personal"].shape == (18,)
    assert torch.equal(
        disk.personal_model(touched[0])[2].weight.flatten(), disk.client_state(touched[0])["personal"][:15]
    )


@pytest.mark.extended
@pytest.mark.parametrize(
    ("mode", "personal"), [("local", ["2.*"]), ("local-affine", ["4.*"]), ("local-affine", ["2.*"])], ids=str
)
def test_batch_norm(mode, personal):
    """FedBN by either option, and scales and shifts beside a personal head, which moves their place in the vector."""
    data = fm.datasets.load("digits").partition(fm.partition.ByClass(classes=2), clients=6, seed=0)
    torch.manual_seed(0)
    layers = (nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 10))
    model, common = nn.Sequential(*layers), {"rounds": 3, "local_steps": 3, "batch_size": 8, "dtype": torch.float64}
    a, b = (
        fm.run(
            model,
            data,
            fm.Scaffold(lr=0.1),
            fm.Uniform(m=3),
            batchnorm=mode,
            personal=personal,
            engine=engine,
            **common,
        )
        for engine in ("loop", "batched")
    )
    close(a.params, b.params, 1e-9)
    i = int(a.history[-1].cohort[0])
    for x, y in zip(a.personal_model(i).state_dict().values(), b.personal_model(i).state_dict().values(), strict=True):
        close(x, y, 1e-9)
    scales, initial = a.personal_model(i)[2].weight, model[2].weight
    assert not torch.allclose(scales.double(), initial.double())
    if personal == ["2.*"]:
        assert torch.equal(a.model[2].weight, initial.double())  # nothing of them reaches the server
