"""The extended contract: declared shapes, starting points, random numbers, rows, evaluated and personal models."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch

import fedmos as fm
from fedmos import rng
from helpers.conformance import LOGISTIC, train
from helpers.extended import Extended

EPOCHS = {"local_epochs": 1, "batch_size": 4}
D, L = 15, 2


def same(a: fm.Result, b: fm.Result, tolerance: float = 1e-12) -> None:
    torch.testing.assert_close(a.params, b.params, rtol=tolerance, atol=tolerance)
    for name, v in a.server_state.items():
        torch.testing.assert_close(v, b.server_state[name], rtol=tolerance, atol=tolerance)
    for i in range(6):
        for name, v in a.client_state(i).items():
            torch.testing.assert_close(v, b.client_state(i)[name], rtol=tolerance, atol=tolerance)


def test_loop_and_batched_agree_on_every_declared_shape():
    loop, batched = (train(LOGISTIC, Extended(lr=0.1), engine, rounds=5, **EPOCHS) for engine in ("loop", "batched"))
    same(loop, batched)
    state = loop.server_state
    assert {name: tuple(v.shape) for name, v in state.items()} == {"ema": (D,), "n": (), "l": (L,), "history": (2, D)}
    own = loop.client_state(0)
    assert {name: tuple(v.shape) for name, v in own.items()} == {
        "y_i": (D,),
        "count": (),
        "norms_i": (L,),
        "table": (2, 3),
    }
    # Client 0 takes part in rounds 0, 3 and 4 of the script; its counter starts at one.
    assert float(own["count"]) == 4
    assert torch.equal(own["table"], 8 * torch.arange(6.0, dtype=torch.float64).view(2, 3))


def test_bytes_follow_the_declared_shapes():
    result = train(LOGISTIC, Extended(lr=0.1), "batched", rounds=2, **EPOCHS)
    for record in result.history:
        assert record.bytes_down == len(record.cohort) * (D + 1 + L) * 8
        assert record.bytes_up == len(record.cohort) * (D + 1 + L + 2) * 8


def test_a_resumed_run_comes_to_the_same_bits(tmp_path):
    whole = train(LOGISTIC, Extended(lr=0.1), "batched", rounds=6, **EPOCHS)
    train(LOGISTIC, Extended(lr=0.1), "batched", rounds=3, out=tmp_path, **EPOCHS)
    resumed = train(LOGISTIC, Extended(lr=0.1), "batched", rounds=6, out=tmp_path, resume=True, **EPOCHS)
    same(whole, resumed, tolerance=0)
    assert torch.equal(whole.server_model, resumed.server_model)


def test_merged_runs_agree_with_single_ones():
    lrs = (0.05, 0.1)
    shared = {"model": LOGISTIC.model(), "data": LOGISTIC.data(), "selection": fm.Uniform(m=3), "rounds": 4}
    shared |= EPOCHS | {"dtype": torch.float64, "device": "cpu", "engine": "batched"}
    merged = fm.run_many([{"algorithm": Extended(lr=lr), "seed": k} for k, lr in enumerate(lrs)], **shared)
    for k, (lr, result) in enumerate(zip(lrs, merged, strict=True)):
        same(result, fm.run(**shared, algorithm=Extended(lr=lr), seed=k))


def test_the_evaluated_model_is_measured_and_returned(tmp_path):
    result = train(LOGISTIC, Extended(lr=0.1), "batched", rounds=3, out=tmp_path, **EPOCHS)
    assert torch.equal(result.params, result.server_state["ema"])
    assert not torch.equal(result.params, result.server_model)
    assert torch.equal(torch.nn.utils.parameters_to_vector(result.model.parameters()).detach(), result.params)
    x, y = (torch.cat([torch.as_tensor(pair[k]) for pair in LOGISTIC.samples]) for k in (0, 1))
    weights = torch.cat(
        [torch.full((n,), p / n, dtype=torch.float64) for n, p in zip(LOGISTIC.n, LOGISTIC.p, strict=True)]
    )
    losses = torch.nn.functional.cross_entropy(result.model(x), y, reduction="none").detach()
    assert result.history[-1].train_loss == pytest.approx(float(weights @ losses), abs=1e-12)
    assert torch.equal(fm.Result.load(tmp_path, LOGISTIC.model()).params, result.params)


def test_a_personal_model_is_the_clients_own():
    result = train(LOGISTIC, Extended(lr=0.1), "batched", rounds=3, **EPOCHS)
    model = result.personal_model(0)
    assert torch.equal(torch.nn.utils.parameters_to_vector(model.parameters()).detach(), result.client_state(0)["y_i"])
    with pytest.raises(ValueError, match="personal_model: 'i' must be a client from 0 to 6, got 7"):
        result.personal_model(7)
    with pytest.raises(ValueError, match="client_state: 'i' must be a client from 0 to 6, got -1"):
        result.client_state(-1)
    plain = train(LOGISTIC, fm.FedAvg(lr=0.1), "batched", rounds=1, **EPOCHS)
    with pytest.raises(ValueError, match=r"FedAvg\(.*\) has no personal models"):
        plain.personal_model(0)


def test_the_rule_each_hands_over_rows_by_ascending_client(engine):
    seen = []

    class Rows(fm.Algorithm):
        lr = 0.1
        up = ("delta", ("p_i", ()))
        reduce = {"A": ("delta", "w"), "p": ("p_i", "each")}

        def finish(self, y, s, c, grad):
            return {"delta": y - c.x, "p_i": c.p}, {}

        def server(self, x, state, agg, ctx):
            seen.append(agg["p"].tolist())
            return x + agg["A"], {}

    result = train(LOGISTIC, Rows(), engine, rounds=4, **EPOCHS)
    assert seen == [[LOGISTIC.p[i] for i in sorted(record.cohort)] for record in result.history]


def test_random_numbers_are_standard_normal_and_the_clients_own():
    key = rng.stream(0, 0, torch.arange(400), rng.Purpose.ALGORITHM)
    values = rng.normal(key, 500)
    assert values.shape == (400, 500)
    assert torch.equal(rng.normal(key, 20), values[:, :20])
    assert abs(float(values.mean())) < 0.01
    assert abs(float(values.std()) - 1) < 0.01
    assert abs(float((values**4).mean()) - 3) < 0.05
    assert float(torch.corrcoef(values[:2])[0, 1].abs()) < 0.15


def test_layers_split_and_join():
    layers = fm.Layers({"a": (2, 3), "b": (), "c": (4,)})
    v = torch.arange(22.0).view(2, 11)
    parts = layers.split(v)
    assert {name: tuple(part.shape) for name, part in parts.items()} == {"a": (2, 2, 3), "b": (2,), "c": (2, 4)}
    assert torch.equal(layers.join(parts), v)
    assert torch.equal(layers.join(layers.split(v[0])), v[0])
    numbers = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    expected = np.repeat(numbers.numpy(), [6, 1, 4], axis=1)
    np.testing.assert_array_equal(layers.expand(numbers), expected)
    assert layers["c"].slice == slice(7, 11)
    assert len(layers) == 3


def test_contexts_know_the_layers_of_the_model():
    seen = {}

    class Look(fm.Algorithm):
        lr = 0.1

        def server(self, x, state, agg, ctx):
            seen.update({name: layer.shape for name, layer in ctx.layers.items()})
            return x + agg["A"], {}

    train(LOGISTIC, Look(), "loop", rounds=1, **EPOCHS)
    assert seen == {"weight": (3, 4), "bias": (3,)}


@dataclass(frozen=True, kw_only=True)
class Broken(fm.Algorithm):
    """Declarations and methods to be overridden in the tests below."""

    lr: float = 0.1


def refused(match: str, engine: str = "batched", **members) -> None:
    kind = type("Mine", (Broken,), members)
    with pytest.raises((ValueError, AttributeError), match=match):
        train(LOGISTIC, kind(), engine, fm.Full(), rounds=1, **EPOCHS)


def uploads(**values):
    return {"finish": lambda self, y, s, c, grad: ({"delta": y - c.x} | {n: f(y, c) for n, f in values.items()}, {})}


engines = pytest.mark.parametrize("engine", ["loop", "batched"])


@engines
def test_a_number_without_the_axis_of_the_cohort_is_refused(engine):
    shape = r"\(1,\)" if engine == "loop" else r"\(\d, 1\)"
    members = {"up": ("delta", ("sq", ()))} | uploads(sq=lambda y, c: (y - c.x).norm())
    refused(
        rf"Mine: 'finish' must return 'sq' of shape {shape}, got a tensor of shape \(\); use dim=-1", engine, **members
    )
    members |= uploads(sq=lambda y, c: (y - c.x).norm(dim=-1))
    refused(rf"'sq' of shape {shape}, got a tensor of shape \(.*\); use dim=-1, keepdim=True", engine, **members)


@engines
def test_wrong_shapes_are_named(engine):
    members = {"up": ("delta", ("pair", 2))} | uploads(pair=lambda y, c: y[..., :3])
    refused(r"Mine: 'finish' must return 'pair' of shape \((\d, )?2,?\), got a tensor of shape", engine, **members)
    server = lambda self, x, state, agg, ctx: (x, {"h": x[:3]})  # noqa: E731
    refused(r"'server' must return 'h' of shape \(15,\), got", engine, server_state=("h",), server=server)
    refused(r"'server' must return a model of shape \(15,\), got", engine, server=lambda *a: (a[1][:3], {}))
    refused(r"'step' must return a tensor and a dictionary", engine, step=lambda self, y, s, c, grad, k: y)
    refused(r"'direction' must return a tensor and a dictionary", engine, direction=lambda self, y, *_: y)
    refused(r"'finish' must return uploads, a dictionary, and a", engine, finish=lambda *_: {})
    refused(r"'begin' must return a dictionary", engine, begin=lambda self, y, *_: y)
    refused(
        r"'broadcast' must return 'm' of shape \(\), got",
        engine,
        down=("x", ("m", ())),
        broadcast=lambda s, x, *_: {"m": x},
    )
    refused(r"'evaluated' must return a model of shape \(15,\), got", engine, evaluated=lambda s, x, *_: x[:2])


@engines
def test_other_mistakes_are_named(engine):
    refused(
        r"'init' must return declared state \(h\), got hh \(did you mean 'h'",
        engine,
        server_state=("h",),
        init=lambda s, x: {"hh": x},
    )
    refused(r"'down' must name x because", engine, down=())
    refused(r"there is no c.id; a client knows", engine, direction=lambda self, y, s, c, grad, k: (grad(y) * c.id, s))
    refused(r"'up' must hold names and \(name, shape\)", engine, up=("delta", ("n", "layer")))
    refused(r"'up' must hold each name once, got 'delta' twice", engine, up=("delta", ("delta", ())))
    refused(r"'server_state' must be a tuple of names, got \{'v'", engine, server_state={"v": ()})
    refused(r"'down' must name x, the model, without a shape", engine, down=(("x", ()),))
    refused(r"'reduce' must map 'A' to \(upload, rule\)", engine, reduce={"A": "delta"})
    refused(r"'reduce' must map 'A' to \(upload, rule\)", engine, reduce={"A": ("delta", ["w"])})
    refused(
        r"rule of sum 'm' must be a sum",
        engine,
        server_state=("m",),
        prepare_up=("m",),
        prepare_reduce={"m": ("m", "each")},
    )


def test_server_state_of_the_name_x_is_not_the_model():
    @dataclass(frozen=True, kw_only=True)
    class OwnX(fm.Algorithm):
        lr: float = 0.1
        server_state = (("x", 3),)

    result = train(LOGISTIC, OwnX(), "batched", rounds=1, **EPOCHS)
    assert result.server_state["x"].shape == (3, D)
    assert result.history[0].bytes_down == len(result.history[0].cohort) * D * 8


def test_changing_the_model_in_place_is_refused():
    def step(self, y, s, c, grad, k):
        y -= c.lr * grad(y)
        return y, s

    refused(r"Mine: 'step' must not change a tensor in place", step=step)


def test_reports_at_x_need_x():
    @dataclass(frozen=True, kw_only=True)
    class WithoutX(fm.Algorithm):
        lr: float
        down = ("z",)

        def broadcast(self, x, state, ctx):
            return {"z": x}

        def start(self, c):
            return c.msg["z"]

        def finish(self, y, s, c, grad):
            return {"delta": y - c.msg["z"]}, {}

    with pytest.raises(
        ValueError, match="Cannot select with ActiveFL because its clients report losses at x, which Without"
    ):
        train(LOGISTIC, WithoutX(lr=0.1), "loop", fm.ActiveFL(m=2), rounds=1, **EPOCHS)
    # A probe sends x itself, beside z.
    result = train(LOGISTIC, WithoutX(lr=0.1), "loop", fm.PowerOfChoice(m=2, d=3), rounds=1, **EPOCHS)
    assert result.history[0].bytes_down == (3 + 2) * D * 8


@dataclass(frozen=True, kw_only=True)
class OtherDtypes(fm.Algorithm):
    """Returns random numbers, which are float64, and integers as they are."""

    lr: float = 0.1
    server_state = ("v", ("rounds", ()))
    client_state = ("noise", ("rounds", ()))
    down = ("x", "v")
    up = ("delta", ("clients", ()))
    reduce = {"A": ("delta", "w"), "clients": ("clients", "w")}

    def init(self, x):
        return {"rounds": torch.tensor(7)}

    def start(self, c):
        return c.x + 1e-3 * rng.normal(c.key, c.layers.size)

    def direction(self, y, s, c, grad, k):
        return grad(y) + 1e-3 * rng.normal(rng.fold(c.key, k), y.shape[-1]), s

    def finish(self, y, s, c, grad):
        noise = 1e-3 * rng.normal(c.key, c.layers.size)
        upload = {"delta": y - c.x + noise, "clients": torch.ones_like(c.K, dtype=torch.int64)}
        return upload, {"noise": noise, "rounds": (c.own["rounds"] + 1).long()}

    def broadcast(self, x, state, ctx):
        return {"v": state["v"].double()}

    def server(self, x, state, agg, ctx):
        noise = rng.normal(ctx.key, len(x))
        return x + agg["A"] + 1e-3 * noise, {"v": noise, "rounds": (state["rounds"] + agg["clients"]).long()}

    def evaluated(self, x, state, ctx):
        return x + 0.1 * state["v"].double()

    def personal(self, c):
        return c.x + c.own["noise"].double()


def test_what_methods_return_is_converted_to_the_dtype_of_the_run(quick):
    runs = [quick(algorithm=OtherDtypes(), engine=engine) for engine in ("loop", "batched")]
    same(*runs, tolerance=1e-5)
    result = runs[0]
    assert result.params.dtype == result.server_model.dtype == torch.float32
    client = result.history[-1].cohort[0]
    for v in (*result.server_state.values(), *result.client_state(client).values()):
        assert v.dtype == torch.float32
    assert {p.dtype for p in result.personal_model(client).parameters()} == {torch.float32}
