"""Programs that are recorded and replayed."""

import os

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.func import grad_and_value, vmap

import fedmos as fm
from fedmos.core.flat_model import FlatModel
from fedmos.engine import recorded
from fedmos.engine.recorded import Recorded


class UsedTwice(nn.Module):
    """The output of the convolution is pooled, and used for something else."""

    def __init__(self):
        super().__init__()
        self.conv, self.last = nn.Conv2d(1, 4, 3), nn.Linear(100, 10)

    def forward(self, x):
        y = self.conv(x)
        return self.last(F.max_pool2d(y, 2).flatten(1)) + y.mean((1, 2, 3))[:, None]


NETWORKS = {
    "pooling last": lambda: nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(100, 10)
    ),
    "two channels": lambda: nn.Sequential(
        nn.Conv2d(1, 2, 1), nn.Conv2d(2, 4, 3, 2), nn.MaxPool2d(2, 1), nn.Flatten(), nn.Linear(64, 10)
    ),
    "used twice": UsedTwice,
    "pooling": lambda: nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.MaxPool2d(2), nn.ReLU(), nn.Conv2d(4, 3, 3), nn.Flatten(), nn.Linear(27, 10)
    ),
    "attention": lambda: nn.Sequential(
        nn.Flatten(1, 2), nn.TransformerEncoderLayer(12, 2, 8, dropout=0.0), nn.Flatten(), nn.Linear(144, 10)
    ),
    "norm": lambda: nn.Sequential(nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.Flatten(), nn.Linear(400, 10)),
}


def counted(function):
    """The function, and a list that grows with its calls."""
    calls = []

    def call(*arguments):
        calls.append(1)
        return function(*arguments)

    return call, calls


@pytest.mark.parametrize("name", NETWORKS)
def test_a_replay_has_the_same_bits(name):
    torch.manual_seed(0)
    model = FlatModel(NETWORKS[name](), torch.device("cpu"), torch.float32)

    def loss(y, x, targets):
        return F.cross_entropy(model(y, x), targets)

    gradient = vmap(grad_and_value(loss))
    function, calls = counted(gradient)
    program = Recorded(function)
    for number in range(8):
        y = model.initial() + 0.1 * torch.randn(3, model.size)
        x, targets = torch.randn(3, 5, 1, 12, 12), torch.randint(0, 10, (3, 5))
        expected = gradient(y, x, targets)
        for ours, theirs in zip(program(y, x, targets), expected, strict=True):
            assert torch.equal(ours, theirs)
            assert ours.stride() == theirs.stride()
        assert len(calls) == min(number + 1, recorded.CALLS_BEFORE + 2)  # recorded once, compared once


def test_constants_are_kept_and_arguments_are_not():
    weights = torch.arange(3.0)
    program = Recorded(lambda v: (weights * v.add(1).mul_(2), v))
    for number in range(6):
        v = torch.full((3,), float(number))
        product, same = program(v)
        assert product.tolist() == [0, 2 * (number + 1), 4 * (number + 1)]
        assert same is v
        assert v.tolist() == [number] * 3


def writing_to_fixed(v):
    return (torch.zeros(3).add_(v) * 2,)


def writing_to_a_view(v):
    copied = v.clone()
    copied.view(3, 1).view(3)[0] = 7.0
    return (copied.view(3) + torch.ones_like(copied),)


def reshaping(v):
    return (v.view(3).unsqueeze(0).t().t().squeeze(0).expand(3) * 2,)


@pytest.mark.parametrize("function", [writing_to_fixed, writing_to_a_view, reshaping])
def test_views_and_writes_are_replayed(function):
    counting, calls = counted(function)
    program = Recorded(counting)
    for number in range(8):
        v = torch.arange(3.0) + number
        assert torch.equal(program(v)[0], function(v)[0])
    assert len(calls) == recorded.CALLS_BEFORE + 2


def test_what_every_call_computes_the_same_may_be_written_to():
    program = Recorded(lambda v: (torch.zeros_like(v), v * (torch.ones_like(v) + 1)))
    for number in range(8):
        zeros, twice = program(torch.full((3,), float(number)))
        assert zeros.tolist() == [0] * 3
        assert twice.tolist() == [2 * number] * 3
        zeros += 1
        twice += 1


def test_a_replay_reads_the_present_values_of_constants():
    scale = torch.ones(3)
    function, calls = counted(lambda v: (v * (scale * 2),))
    program = Recorded(function)
    for number in range(8):
        scale.fill_(number)
        assert program(torch.ones(3))[0].tolist() == [2 * number] * 3
    assert len(calls) == recorded.CALLS_BEFORE + 2


@pytest.mark.parametrize("broken", [["_call_directly"], ["_call_directly", "rewrite"]])
def test_another_program_is_replayed_where_the_fastest_one_fails(monkeypatch, broken):
    def fail(graph):
        raise TypeError("no such function")

    for name in broken:
        monkeypatch.setattr(recorded, name, fail)
    function, calls = counted(lambda v: (v.view(1, 3).sum(0) + 1,))
    program = Recorded(function)
    for number in range(8):
        assert program(torch.full((3,), float(number)))[0].tolist() == [number + 1] * 3
    assert len(calls) == recorded.CALLS_BEFORE + 2


def test_a_function_that_depends_on_more_than_its_arguments_is_not_replayed():
    scale = [1.0]

    def function(v):
        scale[0] += 1
        return (v * scale[0],)

    program = Recorded(function)
    assert [float(program(torch.ones(()))[0]) for _ in range(7)] == [2, 3, 4, 5, 6, 7, 8]


def test_shapes_that_come_seldom_are_not_recorded(monkeypatch):
    monkeypatch.setattr(recorded, "_MOST_RECORDINGS", 2)
    function, calls = counted(lambda v: (v + 1,))
    program = Recorded(function)
    for _ in range(6):
        for size in range(4):
            assert program(torch.ones(size))[0].tolist() == [2] * size
    assert len(calls) == 2 * (recorded.CALLS_BEFORE + 2) + 2 * 6
    assert program(torch.ones(1).expand(3))[0].tolist() == [2] * 3  # another stride, another program


def test_values_that_are_not_finite_do_not_verify_a_recording():
    function, calls = counted(lambda v: (v / v,))
    program = Recorded(function)
    for _ in range(5):
        program(torch.zeros(2))
    assert len(calls) == 5
    for _ in range(3):
        assert program(torch.ones(2))[0].tolist() == [1, 1]
    assert len(calls) == 6


def test_a_loss_that_changes_between_rounds_changes_the_run():
    """A user's loss is not recorded."""
    data = fm.datasets.synthetic(clients=6)
    found = {}
    for engine in ("loop", "batched"):
        scale = [1.0]

        def loss(outputs, targets, scale=scale):
            return scale[0] * F.cross_entropy(outputs, targets)

        def halve(record, scale=scale):
            scale[0] /= 2

        given = {"model": fm.models.logistic(features=60), "data": data, "algorithm": fm.FedAvg(lr=0.1)}
        given |= {"selection": fm.Full(), "rounds": 4, "local_steps": 4, "batch_size": 5, "dtype": torch.float64}
        found[engine] = fm.run(**given, loss=loss, engine=engine, callbacks=[halve]).params
    assert torch.allclose(found["loop"], found["batched"], rtol=1e-10, atol=1e-12)


def test_a_function_that_reads_values_is_not_replayed():
    """The values of the first calls lead to one branch, a later one to the other."""
    program = Recorded(lambda v: (2 * v if float(v.sum()) < 5 else -v,))
    assert [program(torch.full((2,), float(n)))[0].tolist()[0] for n in range(8)] == [0, 2, 4, -3, -4, -5, -6, -7]
    program = Recorded(lambda v: (2 * v if float(v.sum()) < 11 else -v,))
    assert [program(torch.full((2,), float(n)))[0].tolist()[0] for n in range(8)] == [0, 2, 4, 6, 8, 10, -6, -7]


def test_values_of_constants_may_be_read():
    mask = torch.ones(2, dtype=torch.bool)
    function, calls = counted(lambda v: (2 * v if bool(mask.all()) else v,))
    program = Recorded(function)
    assert [program(torch.full((2,), float(n)))[0].tolist()[0] for n in range(8)] == [2 * n for n in range(8)]
    assert len(calls) == recorded.CALLS_BEFORE + 2


class Annealed(nn.Linear):
    """Scales its outputs by what a function returns."""

    def __init__(self, scale) -> None:
        super().__init__(60, 10)
        self.scale = scale

    def forward(self, x):
        return self.scale() * super().forward(x)


def annealed(engine: str, scale, change) -> fm.Result:
    torch.manual_seed(0)
    given = {"model": Annealed(scale), "data": fm.datasets.synthetic(clients=6), "algorithm": fm.FedAvg(lr=0.1)}
    given |= {"selection": fm.Full(), "rounds": 5, "local_steps": 8, "batch_size": 5, "dtype": torch.float64}
    return fm.run(**given, engine=engine, callbacks=[lambda record: change(1 / (1 + record.round // 2))])


def test_a_model_that_reads_a_value_which_changes_between_rounds_is_not_replayed():
    found = []
    for engine in ("loop", "batched"):
        box = [1.0]
        change = lambda value, box=box: box.__setitem__(0, value)  # noqa: E731
        found.append(annealed(engine, lambda box=box: box[0], change).params)
    assert torch.allclose(*found, rtol=0, atol=1e-12)


def test_a_model_that_changes_unnoticed_is_refused(monkeypatch):
    """The environment is none of the values that are watched."""
    scale = lambda: float(os.environ["SCALE"])  # noqa: E731
    change = lambda value: monkeypatch.setenv("SCALE", str(value))  # noqa: E731
    change(1.0)
    assert annealed("loop", scale, change).history
    change(1.0)
    with pytest.raises(ValueError, match=r"its gradient for the same parameters and samples has changed"):
        annealed("batched", scale, change)
