"""BatchNorm that stays with clients: against PyTorch's modules by hand, and every engine against the loop."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fedmos as fm
from fedmos.core.cohort_functions import normalised
from fedmos.evaluation.metrics import Evaluator
from fedmos.run.build import prepare_task
from fedmos.run.spec import RunSpec
from helpers.batch_norm import HandWritten, arguments, buffers, conv_net, federation, flat, mlp, resnet
from helpers.compiling import scalar_code
from helpers.conformance import DEVICE

MODES = ("local", "local-affine")
STATISTICS, AFFINE = "batchnorm.statistics", "batchnorm.affine"


def assert_same(one: fm.Result, other: fm.Result, tolerance: float = 1e-10) -> None:
    close = {"rtol": 0, "atol": tolerance}
    assert torch.allclose(one.params, other.params, **close)
    for name, v in buffers(other.model).items():
        assert torch.allclose(buffers(one.model)[name], v, **close), name
    assert sorted(one.clients) == sorted(other.clients)
    for i in one.clients:
        for name, v in other.client_state(i).items():
            assert torch.allclose(one.client_state(i)[name], v, **close), (i, name)


def cumulative() -> nn.Module:
    return mlp(momentum=None)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("engine", [pytest.param("loop", marks=pytest.mark.extended), "batched"])
@pytest.mark.parametrize("network", [conv_net, resnet, cumulative])
def test_as_written_by_hand(network, engine, mode):
    """Weights of the server, statistics of every client and their average; a client begins with the model's own."""
    how = {"local_epochs": None, "local_steps": 3, "batch_size": None, "engine": engine, "batchnorm": mode}
    model = network()
    with torch.no_grad():
        for v in model.buffers():
            v.add_(1)
    result = fm.run(**arguments(model=model, **how))
    by_hand = HandWritten(model, federation(), mode, steps=3, lr=0.1)
    for record in result.history:
        by_hand.round(record.cohort, record.weights)
    assert torch.allclose(result.params, flat(by_hand.server), rtol=0, atol=1e-12)
    for name, v in buffers(by_hand.server).items():
        assert torch.allclose(buffers(result.model)[name], v, rtol=0, atol=1e-12), name
    for i, client in enumerate(by_hand.clients):
        if i not in result.clients:
            continue
        own = result.personal_model(i)
        for name, v in buffers(client).items():
            assert torch.allclose(buffers(own)[name], v, rtol=0, atol=1e-12), (i, name)
        for name in by_hand.kept:
            assert torch.allclose(own.get_parameter(name), client.get_parameter(name), rtol=0, atol=1e-12)


ALGORITHMS = (fm.FedAvg(lr=0.1), fm.Scaffold(lr=0.05), fm.FedMoS(lr=0.05), fm.FedCM(lr=0.1))
MORE = (fm.Mime(lr=0.05, beta=0.5), fm.Stem(lr=0.05), fm.FedDyn(lr=0.05), fm.FedSpeed(lr=0.05), fm.FedNova(lr=0.05))


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=lambda a: type(a).__name__)
def test_vectorised_as_the_loop(algorithm):
    """Clients have unequal numbers of steps, and their last batches are padded."""
    given = arguments(algorithm=algorithm, local=fm.local.SAM(rho=0.05), batchnorm="local-affine")
    assert_same(fm.run(**given | {"engine": "batched"}), fm.run(**given))


NETWORKS = ((conv_net, "local"), (resnet, "local-affine"), (mlp, "local-affine"))


def combines(algorithm, network, local) -> bool:
    """Whether a method takes this optimiser, and both engines agree up to rounding."""
    if isinstance(local, fm.local.AdamW):  # some gradients of conv_net are rounding, of which Adam makes steps
        return "step" not in vars(type(algorithm)) and network is not conv_net
    return not (isinstance(local, fm.local.SAM) and isinstance(algorithm, fm.FedSpeed))  # perturbs them itself


COMBINATIONS = [
    pytest.param(algorithm, network, local, mode, id=f"{type(algorithm).__name__}-{network.__name__}-{local}")
    for local in (None, fm.local.SAM(rho=0.05), fm.local.AdamW())
    for network, mode in NETWORKS
    for algorithm in (*ALGORITHMS, *MORE)
    if combines(algorithm, network, local)
]


@pytest.mark.parametrize(("algorithm", "network", "local", "mode"), COMBINATIONS)
@pytest.mark.extended
def test_every_combination_as_the_loop(algorithm, network, local, mode):
    given = arguments(model=network(), algorithm=algorithm, local=local, batchnorm=mode, local_epochs=1, rounds=2)
    given["data"] = federation((8, 13, 9, 10))
    assert_same(fm.run(**given | {"engine": "batched"}), fm.run(**given), 1e-9)


@pytest.mark.parametrize("algorithm", [fm.FedAvg(lr=0.1), fm.Scaffold(lr=0.05)], ids=lambda a: type(a).__name__)
def test_compiled_as_the_loop(monkeypatch, algorithm):
    """FedAvg's compiled step takes the statistics along; SCAFFOLD's gradient returns them."""
    given = arguments(model=mlp(momentum=None), algorithm=algorithm, rounds=2)
    expected = fm.run(**given)
    monkeypatch.setenv("FEDMOS_ENGINE", "compiled")
    with scalar_code():
        compiled = fm.run(**given)
    assert compiled.info["compiled"]
    assert_same(compiled, expected)


@pytest.mark.parametrize("network", [conv_net, resnet])
@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=lambda a: type(a).__name__)
@pytest.mark.extended
def test_networks_compiled_as_the_loop(monkeypatch, algorithm, network):
    given = arguments(model=network(), algorithm=algorithm, rounds=2, local=fm.local.SAM(), batchnorm="local-affine")
    expected = fm.run(**given)
    monkeypatch.setenv("FEDMOS_ENGINE", "compiled")
    with scalar_code():
        assert_same(fm.run(**given), expected)


def statistics_by_hand(model: nn.Module, x, points: list[torch.Tensor]) -> dict[str, torch.Tensor]:
    """The buffers of PyTorch's layers after a pass at each of these parameters."""
    model = model.double().train()
    for y in points:
        nn.utils.vector_to_parameters(y.clone(), model.parameters())
        model(x)
    return buffers(model)


@pytest.mark.parametrize("engine", ["loop", "batched"])
def test_the_first_gradient_of_a_step_updates_statistics(engine):
    """With SAM the one at y, not at the point that it climbs to; FedMoS's first step takes its gradient in `begin`."""
    data, model = federation((9, 9)), mlp()
    x, labels = data.client(0)
    how = {"model": model, "data": data, "selection": fm.Full(), "rounds": 1, "batch_size": None, "engine": engine}
    how |= {"local_epochs": None, "local_steps": 2}
    for given in ({"local": fm.local.SAM(rho=0.5)}, {"algorithm": fm.FedMoS(lr=0.1, a=0.3, mu=0.0)}):
        result = fm.run(**arguments(**how | given))
        y = [flat(mlp().double())]

        def g(at):
            module = mlp().double()
            nn.utils.vector_to_parameters(at.clone(), module.parameters())
            loss = F.cross_entropy(module(x), labels)
            return torch.cat([v.flatten() for v in torch.autograd.grad(loss, list(module.parameters()))])

        first = g(y[0])
        d = g(y[0] + 0.5 * first / first.norm()) if "local" in given else first
        y.append(y[0] - 0.1 * d)
        for name, v in statistics_by_hand(mlp(), x, y).items():
            assert torch.allclose(buffers(result.personal_model(0))[name], v, rtol=0, atol=1e-12), name


@pytest.mark.parametrize("mode", MODES)
def test_padding_has_no_influence(mode):
    """Clients of very different sizes; all but the largest are padded. A sample may have several rows."""

    class Sequence(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.last = nn.BatchNorm1d(4), nn.Linear(4, 3)

        def forward(self, x):
            rows = x.flatten(1, 2).flatten(0, 1)
            return self.last(self.norm(rows).view(len(x), -1, 4).square().mean(1))

    torch.manual_seed(0)
    for model in (Sequence(), resnet(), mlp()):
        given = arguments(model=model, data=federation((2, 30, 5, 9)), batch_size=None, batchnorm=mode, rounds=2)
        assert_same(fm.run(**given | {"engine": "batched"}), fm.run(**given))


def test_rows_that_no_mask_can_leave_out_are_refused_or_trained_client_by_client():
    class Interleaved(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.last = nn.BatchNorm1d(4), nn.Linear(4, 3)

        def forward(self, x):
            rows = x.flatten(1, 2).transpose(0, 1).flatten(0, 1)
            return self.last(self.norm(rows).view(-1, len(x), 4).square().mean(0))

    torch.manual_seed(0)
    given = arguments(model=Interleaved(), rounds=1)
    with pytest.raises(ValueError, match=r"Cannot vectorise.*batches of different sizes would be padded"):
        fm.run(**given | {"engine": "batched"})
    assert fm.run(**given | {"engine": "auto"}).info["engine"] == "loop"
    equal = given | {"data": federation((10, 10, 10, 10))}
    assert_same(fm.run(**equal | {"engine": "batched"}), fm.run(**equal))


@pytest.mark.parametrize(
    ("layer", "shape"), [(nn.BatchNorm1d, (6,)), (nn.BatchNorm2d, (3, 2)), (nn.BatchNorm3d, (3, 2, 1))]
)
@pytest.mark.parametrize("how", [{}, {"affine": False}, {"track_running_stats": False}, {"momentum": None}], ids=str)
def test_layers_of_every_dimension(layer, shape, how):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Unflatten(1, (8, *shape)), layer(8, **how), nn.Flatten(), nn.Linear(48, 3))
    given = arguments(model=model, rounds=2, batch_size=4)
    assert_same(fm.run(**given | {"engine": "batched"}), fm.run(**given))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cells, self.norm, self.last = nn.GRU(12, 6, batch_first=True), nn.BatchNorm1d(6), nn.Linear(6, 3)

    def forward(self, x):
        return self.last(self.norm(self.cells(x.reshape(len(x), 4, 12))[0][:, -1]))


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(12, 2, 16, dropout=0.1, batch_first=True)
        self.norm, self.last = nn.BatchNorm1d(12), nn.Linear(12, 3)

    def forward(self, x):
        return self.last(self.norm(self.layer(x.reshape(len(x), 4, 12)).transpose(1, 2)).mean(2))


class Dropping(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.drop = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Dropout2d(0.3)
        self.last = nn.Linear(16, 3)

    def forward(self, x):
        x = self.drop(self.norm(self.conv(x)).relu()).flatten(1)
        return self.last(F.dropout(x, 0.2, self.training))


@pytest.mark.parametrize("network", [Recurrent, Attention, Dropping])
def test_beside_recurrence_attention_and_dropout(network):
    torch.manual_seed(0)
    given = arguments(model=network(), rounds=2)
    assert_same(fm.run(**given | {"engine": "batched"}), fm.run(**given))


def test_adapters_beside_frozen_scales_and_shifts():
    model = fm.models.lora(resnet(), 2, ["*.conv1"])
    given = arguments(model=model, rounds=2, batchnorm="local-affine")
    batched, loop = (fm.run(**given | {"engine": engine}) for engine in ("batched", "loop"))
    assert_same(batched, loop)
    assert AFFINE not in loop.server_state


def test_a_federation_of_three_samples():
    given = arguments(model=mlp(), data=federation((3,)), selection=fm.Full(), batch_size=None, rounds=1)
    assert_same(fm.run(**given | {"engine": "batched"}), fm.run(**given))


def test_synchronised_layers_normalise_within_a_client():
    model = nn.SyncBatchNorm.convert_sync_batchnorm(resnet())
    assert_same(fm.run(**arguments(model=model, engine="batched")), fm.run(**arguments(model=resnet())))


def test_bf16_and_float32(quick):
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 10))
    for precision in (None, "bf16"):
        runs = [quick(model=model, batchnorm="local", engine=e, precision=precision) for e in ("loop", "batched")]
        assert torch.allclose(runs[0].params, runs[1].params, atol=1e-5 if precision is None else 3e-2)


def test_models_are_evaluated_with_their_own_statistics_side_by_side():
    """As on a GPU, where models of merged runs are evaluated together."""
    task = prepare_task(RunSpec(**arguments(model=resnet())), None)
    x, statistics = task.model.initial(), task.model.statistics.initial()
    models = torch.stack([torch.cat([x + 0.01 * i, statistics + 0.1 * i]) for i in range(3)])
    alone = torch.stack([Evaluator([task])(model[None])[0] for model in models])
    assert torch.allclose(Evaluator([task] * 3, vectorised=True)(models), alone, rtol=0, atol=1e-12)
    assert not torch.allclose(alone[0], alone[1])


def test_given_statistics_in_float32():
    """The images of convolutions are stored channels last, for which a GPU has another program than in float64."""
    how = {"batchnorm": "frozen", "dtype": torch.float32, "device": DEVICE}
    loop, batched = (fm.run(**arguments(model=conv_net(), **how) | {"engine": e}) for e in ("loop", "batched"))
    assert torch.allclose(loop.params, batched.params, rtol=0, atol=1e-5)
    assert batched.info["engine"] == "batched"


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("shape", [(4, 3), (4, 3, 5), (4, 3, 5, 6)])
def test_normalising_with_given_statistics(shape, affine):
    g = torch.Generator().manual_seed(0)
    x, mean = (torch.randn(2, *size, generator=g, dtype=torch.float64) for size in (shape, (3,)))
    var = mean.square() + 0.5
    weight, bias = (mean + 2, mean - 1) if affine else (None, None)
    images = x.transpose(-1, -2).contiguous().transpose(-1, -2)
    found = torch.func.vmap(normalised, (0, 0, 0, 0 if affine else None, 0 if affine else None, None))(
        images, mean, var, weight, bias, 1e-5
    )
    for i in range(2):
        own = (weight[i], bias[i]) if affine else (None, None)
        assert torch.allclose(found[i], F.batch_norm(x[i], mean[i], var[i], *own, eps=1e-5), rtol=1e-12, atol=1e-12)
