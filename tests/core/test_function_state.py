"""Which values a function reads beside its arguments, and what becomes of programs when they change."""

import functools

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx

import fedmos as fm
from fedmos.core.function_state import FunctionWatch, function_state
from fedmos.engine import execution_plan, program

SCALE, NESTED = 1.0, {"weights": [1.0, 2.0]}


def of_a_global(v):
    return SCALE * v


def of_a_nested_function(v):
    return of_a_global(v) + sum(NESTED["weights"])


class Loss:
    def __init__(self) -> None:
        self.temperature = 1.0

    def __call__(self, outputs, targets):
        return F.cross_entropy(outputs / self.temperature, targets)

    def method(self, outputs, targets):
        return self(outputs, targets)


class Counter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("n", torch.zeros(2))

    def forward(self, x):
        return x * self.n


def test_changes_of_what_a_function_reads_are_noticed(monkeypatch):
    box, tensor, array, loss, module = [1.0], torch.ones(2), np.ones(3), Loss(), Counter()
    functions = {
        "global": (of_a_global, lambda: monkeypatch.setitem(globals(), "SCALE", 2.0)),
        "nested": (of_a_nested_function, lambda: NESTED["weights"].append(3.0)),
        "closure": (lambda v: box[0] * v, lambda: box.append(2.0)),
        "tensor": (lambda v: tensor * v, lambda: tensor.mul_(2)),
        "array": (lambda v: array * v, lambda: array.__setitem__(0, 2)),
        "object": (loss, lambda: setattr(loss, "temperature", 2.0)),
        "method": (loss.method, lambda: setattr(loss, "temperature", 3.0)),
        "partial": (functools.partial(lambda v, scale: v, scale=box), lambda: box.append(3.0)),
        "module": (module, lambda: module.n.add_(1)),
    }
    for name, (function, change) in functions.items():
        watch = FunctionWatch([function])
        assert not watch.look(), name
        change()
        assert watch.look(), name
    assert function_state(loss) == function_state(loss)


def test_what_a_function_reads_is_looked_into_to_a_bound():
    """Large containers, libraries and objects that refer to themselves cost no time."""
    large, itself = list(range(10**6)), Loss()
    itself.me = [itself, {"again": itself}]
    wide = [[[0] * 200 for _ in range(200)] for _ in range(200)]
    watch = FunctionWatch([lambda v: (large, itself, wide, torch, np, v), F.cross_entropy, "mse", nn.Linear.forward])
    assert not watch.look()
    itself.temperature = 2.0
    assert watch.look()


@pytest.fixture
def traced(monkeypatch):
    """Compiled programs are traced and not compiled, which takes no time; the list has an entry for each."""
    programs = []

    def trace(self, *arguments):
        programs.append(make_fx(lambda *given: self._function(*given))(*arguments))
        return programs[-1]

    monkeypatch.setattr(program.Compiled, "_compile", trace)
    monkeypatch.setattr(execution_plan, "can_compile", lambda device: True)
    return programs


def annealed_loss(scale):
    return nn.Linear(60, 10), lambda outputs, targets: scale[0] * F.cross_entropy(outputs, targets)


def annealed_model(scale):
    class Annealed(nn.Linear):
        def forward(self, x):
            return scale[0] * super().forward(x)

    return Annealed(60, 10), "cross_entropy"


@pytest.mark.parametrize("make", [annealed_loss, annealed_model])
def test_a_compiled_program_does_not_go_on_with_old_values(make, traced, monkeypatch, caplog):
    found = {}
    for engine in ("loop", "compiled"):
        monkeypatch.setenv("FEDMOS_ENGINE", engine)
        scale = [1.0]
        torch.manual_seed(0)
        model, loss = make(scale)
        given = {"data": fm.datasets.synthetic(clients=4), "algorithm": fm.FedAvg(lr=0.1), "selection": fm.Full()}
        given |= {"rounds": 4, "local_steps": 3, "batch_size": 5, "dtype": torch.float64}
        changes = [lambda record, scale=scale: scale.__setitem__(0, 1 / (1 + record.round))]
        found[engine] = fm.run(model, loss=loss, callbacks=changes, **given).params
    assert traced
    assert torch.allclose(found["loop"], found["compiled"], rtol=0, atol=1e-12)
    assert caplog.text.count("Not compiling any more because a value that the model or the loss reads") == 1
    monkeypatch.setenv("FEDMOS_ENGINE", "compiled")
    caplog.clear()
    assert fm.run(model, loss=loss, **given).info["compiled"]
    assert "Not compiling any more" not in caplog.text
