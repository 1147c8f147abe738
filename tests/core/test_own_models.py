"""Users' own networks: which are trained as they are, and which are refused with a sentence."""

import threading
import warnings
from collections import OrderedDict, namedtuple

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import fedmos as fm
from fedmos.core.flat_model import FlatModel

ENGINES = ("loop", "batched")


def alike(quick, model: nn.Module, **changes) -> fm.Result:
    """Train on both engines, compare, and return the loop's result."""
    runs = [quick(model=model, rounds=1, engine=engine, dtype=torch.float64, **changes) for engine in ENGINES]
    assert torch.allclose(runs[0].params, runs[1].params, rtol=0, atol=1e-10)
    return runs[0]


def net(*layers: nn.Module) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), *layers, nn.Linear(8, 10))


# Evaluation mode
def test_submodules_in_evaluation_mode_stay_there(quick):
    half = net(nn.Dropout(0.5), nn.Dropout(0.5))
    both = alike(quick, half).params
    half[2].eval()
    one = alike(quick, half)
    half[3].eval()
    none = alike(quick, half).params
    plain = alike(quick, net()).params
    assert torch.equal(none, plain)
    assert not torch.allclose(one.params, plain, atol=1e-4)
    assert not torch.allclose(one.params, both, atol=1e-4)
    assert half[0].training
    assert not half[2].training


def test_a_model_in_evaluation_mode_as_a_whole_is_trained_with_its_dropout(quick):
    model = net(nn.Dropout(0.5))
    training = quick(model=model, engine="loop").params
    assert torch.equal(quick(model=model.eval(), engine="loop").params, training)
    assert not model[2].training


class Frozen(nn.Module):
    """Keeps its normalisation in evaluation mode by its own `train`, a common idiom."""

    def __init__(self) -> None:
        super().__init__()
        self.net = net(nn.BatchNorm1d(8), nn.Dropout(0.5))

    def train(self, mode: bool = True):
        super().train(mode)
        self.net[2].eval()
        return self

    def forward(self, x):
        return self.net(x)


def test_a_train_method_of_the_user_is_called(quick):
    result = alike(quick, Frozen())
    assert float(result.model.net[2].running_mean.abs().sum()) == 0
    assert torch.equal(result.params, alike(quick, Frozen().train().net).params)


def test_runs_that_differ_in_modes_do_not_share_a_program_or_a_folder(quick, tmp_path):
    model, other = net(nn.Dropout(0.5)), net(nn.Dropout(0.5))
    other[2].eval()
    data = fm.datasets.load("digits").partition(fm.partition.IID(), clients=4, seed=0)
    shared = {"data": data, "algorithm": fm.FedAvg(lr=0.1), "selection": fm.Full(), "rounds": 1, "local_steps": 1}
    shared |= {"batch_size": 4, "engine": "batched"}
    together = fm.run_many([{"model": model}, {"model": other}], **shared)
    for result, given in zip(together, (model, other), strict=True):
        assert torch.allclose(result.params, fm.run(given, **shared).params, atol=1e-6)
    quick(model=model, out=tmp_path / "run")
    with pytest.raises(ValueError, match="its 'model' is"):
        quick(model=other, out=tmp_path / "run", resume=True, rounds=4)


# State between forward passes
class Stateful(nn.Module):
    def __init__(self, how: str) -> None:
        super().__init__()
        self.inner, self.how = nn.Linear(64, 10), how
        self.inner.steps = 0
        self.calls, self.log, self.last, self.config = 0, [], None, {"n": 0}
        self.cache = {}

    def forward(self, x):
        x = x.flatten(1)
        if self.how == "counter":
            self.calls += 1
            x = x * (1 + 0.1 * self.calls)
        if self.how == "list":
            self.log.append(len(x))
        if self.how == "dictionary":
            self.config["n"] += 1
        if self.how in ("memory", "tensor"):
            if self.last is not None and self.how == "memory":
                x = x + self.last.mean()
            self.last = x.detach()
        if self.how == "cache":
            x = x * self.cache.setdefault("scale", torch.ones(64, dtype=x.dtype))
        if self.how == "weights":
            self.inner.weight.data.mul_(0.5)
        return self.inner(x)


@pytest.mark.parametrize(
    ("how", "sentence"),
    [
        ("counter", "changes the attribute 'calls'"),
        ("list", "changes the attribute 'log'"),
        ("dictionary", "changes the attribute 'config'"),
        ("memory", "changes the attribute 'last'"),
        ("weights", "changes its parameters in place"),
    ],
)
@pytest.mark.parametrize("engine", ["loop", "batched", "auto"])
def test_forward_passes_that_keep_state_are_refused(quick, how, sentence, engine):
    with pytest.raises(ValueError, match=f"Cannot train the model because its forward pass {sentence}"):
        quick(model=nn.Sequential(Stateful(how)) if how == "weights" else Stateful(how), engine=engine)
    with pytest.raises(ValueError, match=r"the attribute '0\.calls'"):
        quick(model=nn.Sequential(Stateful("counter")), engine=engine)


def test_tensors_that_do_not_matter_are_mentioned_and_caches_are_fine(quick, caplog):
    alike(quick, Stateful("tensor"))
    assert "sets the attribute 'last' to a tensor" in caplog.text
    caplog.clear()
    alike(quick, Stateful("cache"))
    assert caplog.text == ""


class Running(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(64, 10)
        self.register_buffer("mean", torch.zeros(64))

    def forward(self, x):
        x = x.flatten(1)
        if self.training:
            self.mean.lerp_(x.detach().mean(0), 0.1)
        return self.linear(x - self.mean)


def test_buffers_that_change_are_named_and_may_be_frozen(quick):
    model = nn.Sequential(Running())
    with pytest.raises(ValueError, match=r"it changes its buffers in training \('0\.mean'\)"):
        quick(model=model)
    model[0].eval()
    alike(quick, model)


class Checkpointed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(64, 8), nn.Linear(8, 10)

    def forward(self, x):
        return self.b(checkpoint(lambda v: self.a(v).tanh(), x.flatten(1), use_reentrant=False))


def test_activation_checkpointing_is_refused(quick):
    with pytest.raises(ValueError, match="recomputes activations in the backward pass"):
        quick(model=Checkpointed(), engine="loop")


# Outputs
class Returns(nn.Module):
    def __init__(self, wrap) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear, self.wrap = nn.Linear(64, 10), wrap

    def forward(self, x):
        return self.wrap(self.linear(x.flatten(1)))


Logits = namedtuple("Logits", ["features", "logits"])
ACCEPTED = {
    "tuple": lambda o: (o,),
    "list": lambda o: [o],
    "dictionary": lambda o: {"scores": o},
    "logits of a dictionary": lambda o: {"hidden": o * 2, "logits": o},
    "logits of an object": lambda o: Logits(o * 2, o),
    "nothing else": lambda o: OrderedDict(loss=None, scores=o),
}
REFUSED = {
    "tuple": (lambda o: (o, o), r"returns a tuple of 2 \(Tensor, Tensor\); use outputs="),
    "dictionary": (lambda o: {"a": o, "b": o}, "returns a dict with a, b; use outputs="),
    "text": (lambda o: "nothing", "returns an object of type str, which is no tensor"),
    "nothing": (lambda o: None, "returns an object of type NoneType"),
}


@pytest.mark.parametrize("case", ACCEPTED)
def test_the_only_tensor_or_the_logits_are_taken(quick, case):
    result = alike(quick, Returns(ACCEPTED[case]))
    assert torch.equal(result.params, alike(quick, Returns(lambda o: o)).params)
    assert result.predict(np.zeros((2, 1, 8, 8), np.uint8)).shape == (2, 10)


@pytest.mark.parametrize("case", REFUSED)
def test_other_outputs_are_refused(quick, case):
    wrap, sentence = REFUSED[case]
    with pytest.raises(ValueError, match=sentence):
        quick(model=Returns(wrap))


def second(returned):
    return returned[1]


def test_a_function_takes_the_outputs(quick, tmp_path):
    model = Returns(lambda o: (o * 0, o))
    result = alike(quick, model, outputs=second)
    assert torch.equal(result.params, alike(quick, Returns(lambda o: o)).params)
    with pytest.raises(ValueError, match="run: 'outputs' must return a tensor, got tuple"):
        quick(model=model, outputs=lambda o: o)
    with pytest.raises(ValueError, match="run: 'outputs' must be a function"):
        quick(model=model, outputs="logits")
    saved = quick(model=model, outputs=second, out=tmp_path / "run")
    zeros = np.zeros((2, 1, 8, 8), np.uint8)
    with pytest.raises(ValueError, match=r"outputs=second is not saved.*Result\.load\(path, model, outputs"):
        fm.Result.load(tmp_path / "run", model).predict(zeros)
    loaded = fm.Result.load(tmp_path / "run", model, outputs=second)
    assert torch.equal(loaded.predict(zeros), saved.predict(zeros))
    with pytest.raises(ValueError, match="its 'outputs' is 'second'"):
        quick(model=model, outputs=lambda o: o[0], out=tmp_path / "run", resume=True, rounds=4)


# Kinds of modules
def test_lazy_and_scripted_modules_get_a_sentence(quick):
    with pytest.raises(ValueError, match=r"'1\.weight' of a lazy module has no shape yet; call the model once"):
        quick(model=nn.Sequential(nn.Flatten(), nn.LazyLinear(10)))
    with warnings.catch_warnings(action="ignore"):
        scripted = torch.jit.script(nn.Linear(64, 10))
    with pytest.raises(ValueError, match=r"Cannot train a ScriptModule \('1'\).*use the Python module"):
        quick(model=nn.Sequential(nn.Flatten(), scripted))


def test_compiled_and_parallel_modules_are_trained_without_their_wrapper(quick, tmp_path):
    model = net()
    plain = quick(model=model, engine="loop")
    inside = nn.Sequential(torch.compile(nn.Sequential(torch.compile(model))))
    wrapped = (torch.compile(model), nn.Sequential(torch.compile(model)), inside, nn.DataParallel(model), net())
    for compiled in wrapped:
        compiled.compile()
        result = quick(model=compiled, engine="loop", out=tmp_path / str(id(compiled)))
        assert torch.equal(result.params, plain.params)
        assert not any("_orig_mod" in name or "module" in name for name in result.model.state_dict())
        fm.Result.load(tmp_path / str(id(compiled)), compiled)


# Batch normalisation
def test_batch_norm_in_training_is_refused_with_what_to_do(quick):
    model = net(nn.BatchNorm1d(8))
    for some in (model, net(nn.BatchNorm1d(8).requires_grad_(False))):
        with pytest.raises(ValueError, match=r"BatchNorm \('2'\).*convert_batchnorm.*fold_batchnorm.*\.eval\(\)"):
            quick(model=some)


@pytest.mark.parametrize("whole", [False, True], ids=["the layer", "the model"])
def test_frozen_batch_norm_trains_with_its_statistics(quick, whole):
    model = net(nn.BatchNorm1d(8), nn.ReLU())
    model[2].running_mean.fill_(0.1)
    model[2].running_var.fill_(2.0)
    (model if whole else model[2]).eval()
    result = alike(quick, model)
    assert torch.equal(result.model[2].running_mean, model[2].running_mean.double())
    assert not torch.equal(result.model[2].weight, model[2].weight.double())  # scale and shift are trained
    x = np.ones((3, 1, 8, 8), np.uint8)
    assert result.predict(x).shape == (3, 10)
    folded = fm.models.fold_batchnorm(model.requires_grad_(False))
    assert torch.allclose(folded(torch.ones(3, 64)), model.eval()(torch.ones(3, 64)), atol=1e-5)


def equal_clients(n: int) -> fm.FederatedData:
    rng = np.random.default_rng(0)
    return fm.FederatedData.from_arrays([(rng.normal(size=(n, 64)), rng.integers(10, size=n)) for _ in range(4)])


def test_statistics_of_the_batch_need_batches_that_are_not_padded(quick, caplog):
    model = net(nn.BatchNorm1d(8, track_running_stats=False))
    how = {"data": equal_clients(6), "selection": fm.Full(), "algorithm": fm.FedMoS(lr=0.1)}
    alike(quick, model, **how)
    assert "depend on the other samples of its batch" in caplog.text
    # By hand: one client, one step on its whole data.
    one = quick(model=model, **how | {"algorithm": fm.FedAvg(lr=0.1), "rounds": 1, "local_steps": 1, "batch_size": 6})
    total = torch.zeros(())
    for i in range(4):
        x, y = how["data"].x[6 * i : 6 * i + 6].float(), how["data"].y[6 * i : 6 * i + 6].long()
        total = total + F.cross_entropy(model(x), y) / 4
    gradient = torch.cat([g.flatten() for g in torch.autograd.grad(total, list(model.parameters()))])
    start = torch.cat([p.detach().flatten() for p in model.parameters()])
    assert torch.allclose(one.params, start - 0.1 * gradient, atol=1e-6)
    assert quick(model=model).info["engine"] == "loop"  # clients of unequal size
    epochs = quick(model=model, **how, local_steps=None, local_epochs=1)  # batches of 4 and 2
    assert epochs.info["engine"] == "loop"
    with pytest.raises(ValueError, match=r"influence each other.*would be padded; use engine='loop'"):
        quick(model=model, engine="batched")


class Mixing(nn.Module):
    """Attention over the samples, as with a forgotten `batch_first`."""

    def __init__(self) -> None:
        super().__init__()
        self.attention, self.head = nn.MultiheadAttention(8, 2), nn.Linear(64, 10)

    def forward(self, x):
        x = x.view(-1, 8, 8)
        return self.head(self.attention(x, x, x)[0].flatten(1))


def test_models_that_mix_samples_are_found(quick, caplog):
    assert quick(model=Mixing()).info["engine"] == "loop"
    assert "depend on the other samples" in caplog.text
    with pytest.raises(ValueError, match="would be padded"):
        quick(model=Mixing(), engine="batched")


class BySize(nn.Module):
    """Computes something else for batches of more than `most` samples."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self.layer, self.head, self.most = nn.Linear(64, 64), nn.Linear(64, 10), most

    def forward(self, x):
        x = x.flatten(1)
        return self.head(self.layer(x) if len(x) > self.most else x)


@pytest.mark.parametrize(("most", "sizes"), [(2, (5, 6, 4, 5, 2)), (7, (5, 6, 9, 4))])
def test_models_that_read_the_size_of_the_batch_are_found(quick, most, sizes):
    rng = np.random.default_rng(0)
    data = fm.FederatedData.from_arrays([(rng.normal(size=(n, 64)), rng.integers(10, size=n)) for n in sizes])
    how = {"model": BySize(most), "data": data, "selection": fm.Full(), "rounds": 1, "batch_size": 10}
    with pytest.raises(ValueError, match="influence each other"):
        quick(engine="batched", **how)
    assert quick(**how).info["engine"] == "loop"
    equal = equal_clients(6)  # one size, although it is below that of a batch
    alike(quick, BySize(most), data=equal, selection=fm.Full(), batch_size=10)


class SlightlyMixing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 10)

    def forward(self, x):
        return self.layer(x.flatten(1)) + 1e-5 * x.mean() * torch.arange(10, device=x.device)


def test_small_influences_of_other_samples_are_found_in_float64(quick):
    with pytest.raises(ValueError, match="influence each other"):
        quick(model=SlightlyMixing(), engine="batched", dtype=torch.float64)


class Hooked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(64, 8), nn.Linear(8, 10)
        self.head.register_full_backward_hook(lambda module, inputs, outputs: (inputs[0] / 2,))

    def forward(self, x):
        return self.head(self.body(x.flatten(1)))


def test_backward_hooks_of_modules_are_named(quick):
    with pytest.raises(ValueError, match=r"'head' \(Linear\): it has a backward hook \(use y\.register_hook"):
        quick(model=Hooked(), engine="batched")


class Stored(nn.Module):
    """Keeps what a forward pass computed in a dictionary, until it is trained."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.kept = nn.Linear(64, 10), {}

    def forward(self, x):
        y = self.layer(x.flatten(1))
        if not self.kept:
            self.kept["outputs"] = [y]
        return y


def test_a_model_that_stored_tensors_in_containers_is_copied_without_their_graph(quick):
    model = Stored()
    model(torch.zeros(2, 64))
    alike(quick, model)
    assert not model.kept["outputs"][0].is_leaf


def test_an_attribute_that_cannot_be_copied_is_named(quick):
    model = net()
    model.lock = threading.Lock()
    with pytest.raises(
        ValueError, match=r"Cannot copy the model because copy\.deepcopy fails for its attribute 'lock'"
    ):
        quick(model=model)


class Listed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers, self.head = [nn.Linear(64, 64)], nn.Linear(64, 10)
        self.known = [self.head]

    def forward(self, x):
        return self.head(self.layers[0](x.flatten(1)))


def test_layers_in_a_list_are_named_where_they_have_another_dtype(quick):
    with pytest.raises(ValueError, match=r"its attribute 'layers' holds layers .*use nn\.ModuleList"):
        quick(model=Listed(), dtype=torch.float64)


class NoisyInEvaluation(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 10)

    def forward(self, x):
        y = self.layer(x.flatten(1))
        return y if self.training else y + torch.rand(len(y), 10)


def test_the_function_that_draws_in_evaluation_is_named(quick):
    with pytest.raises(ValueError, match=r"global generator \(torch\.rand in NoisyInEvaluation\)"):
        quick(model=NoisyInEvaluation())


class Unlucky(nn.Module):
    """Draws, although its outputs are the same nearly always."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 10)

    def forward(self, x):
        return self.layer(x.flatten(1)) * (torch.rand(()) < 2)


@pytest.mark.parametrize("engine", ["loop", "batched", "auto"])
def test_draws_that_make_no_difference_are_refused_alike(quick, engine):
    with pytest.raises(ValueError, match=r"global generator \(torch\.rand in Unlucky\)"):
        quick(model=Unlucky(), engine=engine)


@pytest.mark.parametrize("value", [torch.ones(3), np.ones(3), None])
def test_private_attributes_of_any_kind_identify_a_model(value):
    module = nn.Linear(3, 2)
    module._value = value
    model = FlatModel(module, torch.device("cpu"), torch.float32)
    assert model.structure(here=False) == model.structure(here=False)
    other = nn.Linear(3, 2)
    other._value = 0
    unlike = FlatModel(other, torch.device("cpu"), torch.float32)
    assert model.structure(here=False) != unlike.structure(here=False)
