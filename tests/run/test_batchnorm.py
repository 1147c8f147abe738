"""The option `batchnorm`: its values, what a result holds, and what is refused."""

import logging
import tomllib
from dataclasses import dataclass

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import fedmos as fm
from fedmos import config
from helpers.batch_norm import arguments, buffers, conv_net, federation, flat, mlp, resnet
from helpers.configs import RUN

STATISTICS, AFFINE = "batchnorm.statistics", "batchnorm.affine"
MODES = ("local", "local-affine")


def same(one: fm.Result, other: fm.Result) -> bool:
    state = all(torch.equal(one.server_state[name], v) for name, v in other.server_state.items())
    clients = all(
        torch.equal(one.client_state(i)[name], v) for i in other.clients for name, v in other.client_state(i).items()
    )
    return torch.equal(one.params, other.params) and state and clients and sorted(one.clients) == sorted(other.clients)


def test_without_the_option_the_refusal_names_it():
    with pytest.raises(
        ValueError, match=r"BatchNorm \('norm1'\).*batchnorm='group'.*'local'.*'local-affine'.*'frozen'"
    ):
        fm.run(**arguments(batchnorm=None))
    with pytest.raises(
        ValueError, match="'batchnorm' must be one of 'group', 'local', 'local-affine', 'frozen' or None"
    ):
        fm.run(**arguments(batchnorm="silo"))


# Group
def test_group_converts_and_says_so(caplog, tmp_path):
    model = conv_net()
    with caplog.at_level(logging.WARNING, "fedmos"):
        result = fm.run(**arguments(model=model, batchnorm="group", out=tmp_path))
    (note,) = [r.getMessage() for r in caplog.records if "GroupNorm" in r.getMessage()]
    assert note.startswith("batchnorm='group': 3 BatchNorm layers are trained as GroupNorm with at most two groups")
    assert "'norm1', 'norm2', 'norm3'" in note
    converted = fm.run(**arguments(model=fm.models.convert_batchnorm(model), batchnorm=None))
    assert torch.equal(result.params, converted.params)
    assert isinstance(model.norm1, nn.BatchNorm2d)
    assert isinstance(result.model.norm1, nn.GroupNorm)
    loaded = fm.Result.load(tmp_path, model)
    x = federation().test[0]
    assert torch.equal(loaded.predict(x), result.predict(x))


def test_group_trains_the_dropout_of_a_model_given_in_evaluation_mode():
    model = nn.Sequential(nn.Flatten(), nn.Linear(48, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 3))
    training, evaluation = (fm.run(**arguments(model=m, batchnorm="group")) for m in (model, model.eval()))
    assert torch.equal(training.params, evaluation.params)


def test_group_refuses_layers_of_single_numbers():
    model = nn.Sequential(nn.Flatten(), nn.Linear(48, 2), nn.BatchNorm1d(2), nn.Linear(2, 3))
    with pytest.raises(ValueError, match=r"Cannot convert BatchNorm \('2'\) with num_features=2 to GroupNorm"):
        fm.run(**arguments(model=model, batchnorm="group"))


# Frozen
@pytest.mark.parametrize("engine", ["loop", "batched"])
def test_frozen_keeps_the_statistics_that_the_model_has(engine):
    model = resnet()
    for _ in range(3):
        model(federation().test[0].float())
    result = fm.run(**arguments(model=model, batchnorm="frozen", engine=engine))
    assert model.training
    for name, v in buffers(model).items():
        assert torch.equal(buffers(result.model)[name], v)
    for layer in model.modules():
        if isinstance(layer, nn.BatchNorm2d):
            layer.eval()
    expected = fm.run(**arguments(model=model, batchnorm=None, engine=engine))
    assert torch.equal(result.params, expected.params)


def test_frozen_needs_statistics():
    with pytest.raises(ValueError, match=r"Cannot freeze BatchNorm \('2'\) because it has no running statistics"):
        fm.run(**arguments(model=mlp(track_running_stats=False), batchnorm="frozen"))


# Local
@pytest.mark.parametrize("mode", MODES)
def test_the_model_of_a_result_has_the_average_statistics(mode, tmp_path):
    given = arguments(model=resnet(), batchnorm=mode, engine="batched", keep_best="accuracy", out=tmp_path / "run")
    result = fm.run(**given)
    data, n = federation(), sum(2 * m.num_features + 1 for m in resnet().modules() if isinstance(m, nn.BatchNorm2d))
    assert result.params.shape == flat(resnet()).shape
    assert result.server_state[STATISTICS].shape == (n,)
    assert not torch.equal(buffers(result.model)["1.running_mean"], torch.zeros(4))
    x, y = data.test
    with torch.no_grad():
        outputs = result.model(x)
    assert torch.allclose(result.predict(x), outputs, atol=1e-12)
    accuracy = float((outputs.argmax(1) == y).double().mean())
    assert accuracy == pytest.approx(result.history[-1].accuracy)
    assert nn.functional.cross_entropy(outputs, y) == pytest.approx(result.history[-1].test_loss)
    last = result.history[-1]
    rows = torch.stack([result.client_state(i)[STATISTICS] for i in last.cohort])
    w = torch.tensor(last.weights, dtype=torch.float64)
    assert torch.allclose((w / w.sum()) @ rows, result.server_state[STATISTICS], atol=1e-12)
    for model in (resnet(), result.model):
        assert torch.equal(fm.Result.load(tmp_path / "run", model).predict(x), result.predict(x))
    best = result.at_best()
    accuracies = [record.accuracy for record in result.history]
    assert float((best.predict(x).argmax(1) == y).double().mean()) == pytest.approx(max(accuracies))
    result.export(tmp_path / "m.safetensors")
    assert torch.equal(load_file(tmp_path / "m.safetensors")["1.running_var"], result.model[1].running_var)
    result.export(tmp_path / "m.pt2", format="torch_export")
    program = torch.export.load(tmp_path / "m.pt2").module()
    assert torch.allclose(program(x), result.predict(x), atol=1e-10)


def test_bytes_are_those_of_the_model_and_what_clients_upload():
    D, model = flat(conv_net()).numel(), conv_net()
    n = sum(2 * m.num_features + 1 for m in model.modules() if isinstance(m, nn.BatchNorm1d | nn.BatchNorm2d))
    affine = 2 * (4 + 4)
    for mode, up in (("local", D + n), ("local-affine", D + n + affine)):
        record = fm.run(**arguments(batchnorm=mode, rounds=1)).history[0]
        assert (record.bytes_down, record.bytes_up) == (3 * 8 * D, 3 * 8 * up)


@pytest.mark.parametrize("engine", ["loop", "batched"])
@pytest.mark.parametrize("mode", MODES)
def test_a_resumed_run_comes_to_the_same_bits(tmp_path, mode, engine):
    given = arguments(algorithm=fm.Scaffold(lr=0.05), batchnorm=mode, rounds=4, engine=engine)
    whole = fm.run(**given)
    fm.run(**given | {"rounds": 2, "out": tmp_path})
    assert same(fm.run(**given | {"out": tmp_path, "resume": True}), whole)
    with pytest.raises(ValueError, match="its 'batchnorm' is"):
        fm.run(**given | {"out": tmp_path, "resume": True, "rounds": 5, "batchnorm": "group"})


def test_merged_runs_are_as_alone():
    runs = [{"seed": 0, "algorithm": fm.FedAvg(lr=0.1)}, {"seed": 1, "algorithm": fm.FedAvg(lr=0.05)}]
    shared = {k: v for k, v in arguments(batchnorm="local-affine", engine="batched").items() if k != "algorithm"}
    for together, given in zip(fm.run_many(runs, **shared), runs, strict=True):
        alone = fm.run(**shared | given)
        assert torch.allclose(together.params, alone.params, rtol=0, atol=1e-12)
        assert torch.allclose(together.server_state[STATISTICS], alone.server_state[STATISTICS], rtol=0, atol=1e-12)
        assert [r.accuracy for r in together.history] == [r.accuracy for r in alone.history]


def test_a_light_run_keeps_the_statistics(tmp_path):
    from fedmos.storage import RunFolder

    result = fm.run(**arguments(out=RunFolder(tmp_path, light=True)))
    loaded = fm.Result.load(tmp_path, conv_net())
    assert set(loaded.server_state) == {STATISTICS}
    assert torch.equal(loaded.predict(federation().test[0]), result.predict(federation().test[0]))


def test_clients_report_losses_with_their_own_statistics():
    """A probe is what the client's own model gives in evaluation mode."""
    seen = []

    class Asking(fm.Uniform):
        def select(self, view):
            seen.append(view.probe(torch.arange(view.N)))
            return super().select(view)

    for mode in MODES:
        seen.clear()
        given = arguments(batchnorm=mode, rounds=2)
        first = fm.run(**given | {"rounds": 1})
        fm.run(**given | {"selection": Asking(m=3)})
        for i in range(4):
            x, y = federation().client(i)
            own = first.personal_model(i)
            expected = nn.functional.cross_entropy(own(x), y)
            assert torch.allclose(seen[1][i].double(), expected, rtol=1e-6)


def test_a_model_given_in_evaluation_mode_trains_its_statistics():
    training = fm.run(**arguments(model=conv_net()))
    model = conv_net().eval()
    assert same(fm.run(**arguments(model=model)), training)
    assert not model.training


def test_layers_that_the_user_froze_stay_frozen():
    model = conv_net()
    model.norm2.eval()
    for engine in ("loop", "batched"):
        result = fm.run(**arguments(model=model, engine=engine))
        assert torch.equal(result.model.norm2.running_mean, torch.zeros(4))
        assert not torch.equal(result.model.norm1.running_mean, torch.zeros(4))


def test_a_model_without_batchnorm_trains_as_without_the_option():
    model = nn.Sequential(nn.Flatten(), nn.Linear(48, 3))
    plain = fm.run(**arguments(model=model, batchnorm=None))
    for mode in ("group", "frozen", *MODES):
        assert torch.equal(fm.run(**arguments(model=model, batchnorm=mode)).params, plain.params)


def test_the_norm_of_an_update_is_that_of_the_model():
    @dataclass(frozen=True, kw_only=True)
    class Renamed(fm.Algorithm):
        lr: float
        up = ("change",)
        reduce = {"A": ("change", "w")}

        def finish(self, y, s, c, grad):
            return {"change": y - c.x}, {}

    plain, renamed = (
        fm.run(**arguments(algorithm=a, update_norms=True, rounds=1)) for a in (fm.FedAvg(lr=0.1), Renamed(lr=0.1))
    )
    assert plain.history[0].update_norms == renamed.history[0].update_norms


@pytest.mark.parametrize("mode", MODES)
def test_codecs_leave_statistics_as_they_are(mode):
    """They code vectors of the model's size."""
    given = arguments(batchnorm=mode, rounds=2, uplink=fm.codecs.ErrorFeedback(fm.codecs.TopK(0.5)))
    if mode == "local":
        given["downlink"] = fm.codecs.TopK(0.5)
    loop, batched = (fm.run(**given | {"engine": engine}) for engine in ("loop", "batched"))
    assert torch.allclose(loop.params, batched.params, rtol=0, atol=1e-10)
    for i in loop.clients:
        assert torch.allclose(loop.client_state(i)[STATISTICS], batched.client_state(i)[STATISTICS], atol=1e-10)
    coded, plain = (r.history[0].bytes_up for r in (loop, fm.run(**arguments(batchnorm=mode, rounds=1))))
    D = flat(conv_net()).numel()
    assert plain - coded == 3 * (8 * D - fm.codecs.TopK(0.5).nbytes(D, torch.float64))


# Refusals
class OwnForward(nn.BatchNorm1d):
    def forward(self, x):
        return 2 * super().forward(x)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"data": federation((6, 11, 8)), "model": mlp()}, r"batch of one sample \(client 0\)"),
        ({"data": federation((1, 9, 8)), "model": mlp(), "batch_size": None}, r"batch of one sample \(client 0\)"),
        ({"model": mlp(), "algorithm": fm.FedMoS(lr=0.1, first_batch=1)}, "gradient of FedMoS on one sample"),
        ({"algorithm": fm.FedACG(lr=0.1), "batchnorm": "local-affine"}, "do not receive the model x"),
        (
            {"downlink": fm.codecs.TopK(0.5), "batchnorm": "local-affine"},
            "Cannot use 'downlink' with batchnorm='local-a",
        ),
        (
            {"privacy": fm.privacy.Gaussian(clip=1.0, noise_multiplier=1.0, delta=1e-5)},
            "Cannot use privacy= with batchn",
        ),
        ({"callbacks": [fm.Diagnostics()]}, "Cannot measure diagnostics with batchnorm='local'"),
        (
            {"model": nn.Sequential(nn.Flatten(), nn.Linear(48, 8), OwnForward(8), nn.Linear(8, 3))},
            r"Cannot keep the statistics of '2' with the client because OwnForward defines its own forward pass",
        ),
        (
            {"model": nn.Sequential(nn.InstanceNorm2d(3, track_running_stats=True), nn.Flatten(), nn.Linear(48, 3))},
            r"changes its buffers in training \('0\.running_mean'\).*in place of InstanceNorm2d \('0'\)",
        ),
    ],
)
def test_refusals(changes, why):
    with pytest.raises(ValueError, match=why):
        fm.run(**arguments(**changes))


def test_one_sample_is_enough_where_channels_have_many_numbers():
    given = arguments(model=resnet(), data=federation((6, 11, 1)), rounds=1, selection=fm.Full())
    runs = [fm.run(**given | {"engine": engine}) for engine in ("loop", "batched")]
    assert torch.allclose(runs[0].params, runs[1].params, rtol=0, atol=1e-10)
    assert torch.allclose(runs[0].server_state[STATISTICS], runs[1].server_state[STATISTICS], rtol=0, atol=1e-10)


def test_configuration_files_have_the_option(tmp_path, monkeypatch):
    (tmp_path / "net.py").write_text(
        "from torch import nn\n"
        "def net():\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8), nn.Linear(8, 10))\n"
    )
    monkeypatch.chdir(tmp_path)
    text = RUN.replace('name = "logistic"\nfeatures = 64', 'name = "net.py:net"')
    with pytest.raises(ValueError, match="use batchnorm='group'"):
        config.parse(config.RunConfig, tomllib.loads(text)).check()
    settings = config.parse(config.RunConfig, tomllib.loads("batchnorm = 'local-affine'\n" + text))
    settings.check()
    result = settings.run(settings.algorithm, settings.selection, 0, out=tmp_path / "out")
    assert result.info["batchnorm"] == "local-affine"
    assert set(result.server_state) == {"v", STATISTICS, AFFINE}
