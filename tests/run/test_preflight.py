"""Bad input gets one clear sentence, before anything runs or is written."""

import dataclasses

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import fedmos as fm
from fedmos.run import preflight


def classified(labels, classes=10) -> dict:
    data = fm.FederatedData.from_arrays([(np.zeros((len(labels), 64), np.float32), labels)])
    return {"data": data, "selection": fm.Full(), "model": nn.Linear(64, classes)}


def broken(model: nn.Module) -> nn.Module:
    nn.init.constant_(next(model.parameters()), float("nan"))
    return model


BAD_RUNS = {
    "no rounds": ({"rounds": 0}, "run: 'rounds' must be an integer ≥ 1, got 0"),
    "rounds of a half": ({"rounds": 1.5}, "run: 'rounds' must be an integer ≥ 1, got 1.5"),
    "both kinds of local work": (
        {"local_epochs": 1},
        "exactly one of 'local_steps' and 'local_epochs' must be given, got both",
    ),
    "no local work": (
        {"local_steps": None},
        "exactly one of 'local_steps' and 'local_epochs' must be given, got neither",
    ),
    "batch of nothing": ({"batch_size": 0}, "run: 'batch_size' must be an integer ≥ 1 or None, got 0"),
    "cohort too large": ({"selection": fm.Uniform(m=21)}, "Uniform: 'm' must be ≤ the number of clients (20), got 21"),
    "unknown client": (
        {"selection": fm.FixedCohorts([[20]])},
        "FixedCohorts: 'cohorts' must hold client numbers < 20, got 20",
    ),
    "unknown target": ({"target": {"acuracy": 0.9}}, "got 'acuracy' (did you mean 'accuracy'?)"),
    "target of NaN": ({"target": {"accuracy": float("nan")}}, "run: 'target['accuracy']' must be in [0, 1], got nan"),
    "negative decay": ({"lr_decay": -1}, "run: 'lr_decay' must be > 0, or factors > 0 by round, got -1"),
    "infinite weight decay": ({"weight_decay": float("inf")}, "run: 'weight_decay' must be ≥ 0, got inf"),
    "unknown engine": ({"engine": "warp"}, "run: 'engine' must be one of 'auto', 'loop', 'batched', got 'warp'"),
    "unknown loss": ({"loss": "cross_entrpy"}, "(did you mean 'cross_entropy'?)"),
    "unknown device": ({"device": "abacus"}, "run: 'device' must be 'auto' or a device of this machine, got 'abacus'"),
    "half precision": ({"dtype": torch.float16}, "run: 'dtype' must be one of torch.float32, torch.float64"),
    "class for an instance": (
        {"algorithm": fm.FedAvg},
        "run: 'algorithm' must be a fedmos.Algorithm, got the class FedAvg",
    ),
    "no model": ({"model": "cnn"}, "run: 'model' must be a torch.nn.Module, got str"),
    "a function for a model": (
        {"model": fm.models.cnn_digits},
        "run: 'model' must be a torch.nn.Module, got the function cnn_digits itself; use cnn_digits(…)",
    ),
    "no federation": (
        {"data": [([1.0], [0])]},
        "got list; use dataset.partition(...) or fm.FederatedData.from_arrays(...)",
    ),
    "nothing to train": ({"model": nn.Flatten()}, "it has no trainable parameters"),
    "wrong input": ({"model": nn.Linear(3, 10)}, "Cannot run the model on samples of shape (1, 8, 8)"),
    "too few outputs": (
        {"model": fm.models.logistic(features=64, classes=5)},
        "it has 5 outputs and training labels go up to 9",
    ),
    "no classes": (
        {"model": nn.Sequential(nn.Flatten(), nn.Linear(64, 1), nn.Flatten(0))},
        "need one more axis, of classes",
    ),
    "negative label": (classified([0, -1]), "training labels must be ≥ 0, got -1"),
    "real labels": (classified([0.5, 1.0]), "the targets are not class numbers; use loss='mse'"),
    "class numbers as reals": (classified([0.0, 1.0]), "use loss='mse', or y.long() where they number classes"),
    "one-hot labels": (
        classified([[1, 0], [0, 1]], classes=2),
        "need one more axis, of classes; use y.argmax(-1) in place of one-hot targets",
    ),
    "labels in a column": (classified([[0], [1]]), "of classes; use y.squeeze(-1)"),
    "shapes for mse": (classified([0.5, 1.0]) | {"loss": "mse"}, "for 'mse' they must agree"),
    "a sum for a loss": (
        {"loss": lambda o, t: nn.functional.cross_entropy(o, t, reduction="sum")},
        "'loss' must be a mean",
    ),
    "too many rounds": ({"rounds": 10**10}, "run: 'rounds' must be ≤ 1,000,000,000, got 10000000000"),
    "too many steps": ({"local_steps": 10**7}, "run: 'local_steps' must be ≤ 1,000,000, got 10000000"),
    "digits without end": (
        {"weight_decay": 10**5000},
        "run: 'weight_decay' must be ≥ 0, got an integer of about 5001 digits",
    ),
    "seed of 65 bits": ({"seed": 2**64}, "run: 'seed' must be an integer of 64 bits"),
    "a long text": ({"engine": "x" * 10**7}, "got 'xxxxxxxxxx"),
    "accuracy in percent": ({"target": {"accuracy": 95}}, "run: 'target['accuracy']' must be in [0, 1], got 95"),
    "step size of doubles": (
        {"algorithm": fm.FedAvg(lr=1e39)},
        "FedAvg: 'lr' must stay finite in float32 over 3 rounds, got 1e+39",
    ),
    "growing step size": (
        {"rounds": 10**6, "lr_decay": 1.5},
        "FedAvg: 'lr' must stay finite in float32 over 1000000 rounds",
    ),
    "device without memory": (
        {"device": "meta"},
        "run: 'device' must be 'auto' or a device of this machine, got 'meta'",
    ),
    "weights of NaN": ({"model": broken(nn.Linear(64, 10))}, "its initial weights are not finite"),
    "samples of doubles": (
        classified([0, 1]) | {"data": fm.FederatedData.from_arrays([(np.full((2, 64), 1e300), [0, 1])])},
        "Cannot train on the training samples because they hold 1e+300, which is no number of float32",
    ),
    "NaN in a data set": (
        {
            "data": fm.Dataset("mine", np.full((8, 64), np.nan, np.float32), np.zeros(8, int)).partition(
                fm.partition.IID(), 4
            )
        },
        "Cannot train on the training samples because they hold nan",
    ),
    "words beyond the vocabulary": (
        {
            "data": fm.FederatedData.from_arrays([([[0, 1]] * 50 + [[2**40, 0]] + [[0, 1]] * 50, [0] * 101)]),
            "model": nn.Sequential(nn.Embedding(5, 2), nn.Flatten(), nn.Linear(4, 2)),
            "selection": fm.Full(),
        },
        "because it fails there: index out of range",
    ),
    "bce of classes": (
        {
            "data": fm.FederatedData.from_arrays([(np.zeros((2, 3), np.float32), [0.0, 2.0])]),
            "model": nn.Sequential(nn.Linear(3, 1), nn.Flatten(0)),
            "selection": fm.Full(),
            "loss": "bce",
        },
        "Cannot use bce because some targets are not in [0, 1]",
    ),
    "a class of losses": ({"loss": nn.CrossEntropyLoss}, "got the class CrossEntropyLoss; use CrossEntropyLoss()"),
    "a loss per sample": (
        {"loss": lambda o, t: F.cross_entropy(o, t, reduction="none")},
        "run: 'loss' must return one number for a batch, got a tensor of shape (",
    ),
    "a loss as a float": (
        {"loss": lambda o, t: F.cross_entropy(o, t).item()},
        "; leave .item() or float() out",
    ),
    "a loss without a gradient": (
        {"loss": lambda o, t: (o.argmax(1) != t).float().mean()},
        "run: 'loss' must have a gradient, but what it returns is no differentiable function of the outputs",
    ),
    "outputs in a column": (
        {
            "data": fm.FederatedData.from_arrays([(np.zeros((2, 3), np.float32), np.zeros(2, np.float32))]),
            "model": nn.Linear(3, 1),
            "selection": fm.Full(),
            "loss": "mse",
        },
        "for 'mse' they must agree; squeeze the model's output, outputs.squeeze(-1), or use targets of shape (n, 1)",
    ),
    "a class of optimisers": ({"local": fm.local.Adam}, "got the class Adam itself; use Adam(…)"),
    "a class of torch": ({"local": torch.optim.Adam}, "got <class 'torch.optim.adam.Adam'>"),
    "metrics as a text": ({"metrics": "f1"}, "'metrics' must be a mapping of names to functions, or a list of fm.met"),
    "a class of callbacks": (
        {"callbacks": [fm.EarlyStopping]},
        "run: 'callbacks' must be Callback objects or functions, got the class EarlyStopping itself; use EarlyStopping(…)",
    ),
    "callbacks of numbers": ({"callbacks": [5]}, "run: 'callbacks' must be Callback objects or functions, got 5"),
    "resume without a folder": ({"resume": True}, "run: 'out' must be a folder"),
}


@pytest.mark.parametrize("case", BAD_RUNS)
def test_bad_runs(quick, case, tmp_path):
    changes, sentence = BAD_RUNS[case]
    more = {} if case.startswith("resume") else {"out": tmp_path / "run"}
    with pytest.raises(ValueError) as error:
        quick(**more | changes)
    assert sentence in str(error.value)
    assert "\n" not in str(error.value) or "fails there" in str(error.value)
    assert not list(tmp_path.iterdir())


def test_an_occupied_folder_is_refused_before_training(quick, tmp_path):
    never = [lambda record: pytest.fail("it trained")]
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(FileExistsError, match="holds something else"):
        quick(out=tmp_path, callbacks=never)
    with pytest.raises(OSError, match=r"notes\.txt"):
        quick(out=tmp_path / "notes.txt" / "run", callbacks=never)
    quick(out=tmp_path / "run")
    with pytest.raises(FileExistsError, match="use resume=True or a new folder"):
        quick(out=tmp_path / "run", callbacks=never)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: fm.FedAvg(lr=-0.1), "FedAvg: 'lr' must be > 0, got -0.1"),
        (lambda: fm.FedAvg(lr="0.1"), "FedAvg: 'lr' must be > 0, got '0.1'"),
        (lambda: fm.FedAvg(lr=float("nan")), "FedAvg: 'lr' must be > 0, got nan"),
        (lambda: fm.FedProx(lr=0.1, mu=-1), "FedProx: 'mu' must be ≥ 0, got -1"),
        (lambda: fm.FedMoS(lr=0.1, a=2), "FedMoS: 'a' must be in [0, 1], got 2"),
        (lambda: fm.FedMoS(lr=0.1, beta=1), "FedMoS: 'beta' must be in [0, 1), got 1"),
        (
            lambda: fm.FedMoS(lr=0.1, first_batch=0),
            "FedMoS: 'first_batch' must be one of 'full' or an integer ≥ 1, got 0",
        ),
        (lambda: fm.FedMoS(lr=0.1, variant="new"), "FedMoS: 'variant' must be one of 'paper', 'released', got 'new'"),
        (lambda: fm.GHBM(lr=0.1, tau=10**6), "GHBM: 'tau' must be ≤ 10,000, got 1000000"),
        (lambda: fm.FedAdam(lr=0.1, tau=1e200), "FedAdam: 'tau' must be ≤ 1,000,000,000.0, got 1e+200"),
        (lambda: fm.Trace(5), "Trace: 'rows' must be a list of rows or a file, got 5"),
        (lambda: fm.PerClient(5), "PerClient: 'numbers' must be a list of numbers or a file, got 5"),
        (lambda: fm.LogNormal(median=1.0, sigma=100), "LogNormal: 'sigma' must be ≤ 20, got 100"),
        (lambda: fm.Normalize(mean=0.0, std=0.0), "Normalize: 'std' must be > 0, got 0.0"),
        (lambda: fm.models.logistic(features=2.0), "logistic: 'features' must be an integer ≥ 1, got 2.0"),
        (lambda: fm.models.resnet18(width=10**5), "resnet18: a model must have at most 2,000,000,000 parameters"),
        (
            lambda: fm.FederatedData.from_arrays([(np.ma.MaskedArray([1.0, 2.0], [True, False]), [0, 1])]),
            "x of client 0 must be an array of numbers: some of it is masked",
        ),
        (
            lambda: fm.FederatedData.from_arrays([([1.0], np.array([2**63], np.uint64))]),
            "y of client 0 must be integers of 64 bits with a sign, got 9223372036854775808",
        ),
        (lambda: fm.FederatedData.from_arrays([(np.zeros((2, 0)), [0, 1])]), "must have numbers in each sample"),
        (lambda: fm.FederatedData.from_arrays(5), "'clients' must be a list of pairs (x, y), got 5"),
        (lambda: fm.FederatedData.from_arrays([([1.0], [0])], importance=["1"]), "'importance' must be a number ≥ 0"),
        (lambda: fm.Uniform(m=0), "Uniform: 'm' must be an integer ≥ 1, got 0"),
        (lambda: fm.Uniform(m=True), "Uniform: 'm' must be an integer ≥ 1, got True"),
        (lambda: fm.Uniform(m=3, weights="even"), "Uniform: 'weights' must be one of"),
        (lambda: fm.FixedCohorts([0, 1]), "FixedCohorts: 'cohorts' must be a list of cohorts, each a list of clients"),
        (lambda: fm.FixedCohorts([]), "FixedCohorts: 'cohorts' must be a list of cohorts"),
        (lambda: fm.FixedCohorts([[0], []]), "each with at least one client"),
        (lambda: fm.FixedCohorts([[-1]]), "FixedCohorts: 'cohorts' must hold client numbers ≥ 0, got -1"),
        (lambda: fm.FixedCohorts([[0, 1]], weights=[[1.0]]), "FixedCohorts: 'weights' must hold one number for each"),
        (lambda: fm.FixedCohorts([[0]], weights=[[-1.0]]), "FixedCohorts: 'weights' must be ≥ 0, got -1.0"),
    ],
)
def test_bad_fields(make, sentence):
    with pytest.raises(ValueError) as error:
        make()
    assert sentence in str(error.value)


def test_a_federation_built_by_hand_is_validated(quick, digits):
    wrong = torch.full_like(digits.index, 10**6)
    for part, value in {
        "index": wrong,
        "offsets": digits.offsets.flip(0),
        "importance": digits.importance * torch.nan,
        "y": digits.y[:5],
        "normalize": fm.Normalize(mean=(0.1, 0.2, 0.3), std=1.0),
    }.items():
        with pytest.raises(ValueError, match=f"FederatedData: '{part}' must fit the other parts"):
            quick(data=dataclasses.replace(digits, **{part: value}))


def test_bernoulli_with_a_tiny_rate_selects_one_client(quick):
    assert all(len(record.cohort) == 1 for record in quick(selection=fm.Bernoulli(rate=1e-300)).history)


def test_every_algorithm_refuses_a_negative_step_size():
    for name, kind in fm.algorithms().items():
        required = {f.name: 0.1 for f in dataclasses.fields(kind) if f.default is dataclasses.MISSING}
        with pytest.raises(ValueError, match=f"{name}: 'lr' must be > 0, got -1"):
            kind(**required | {"lr": -1})


@dataclasses.dataclass(frozen=True, kw_only=True)
class Wrong(fm.Algorithm):
    lr: float = 0.1
    how: str = ""

    server_state = ("v",)

    @property
    def reduce(self):
        return {"A": ("delta", "total" if self.how == "rule" else "w")} | (
            {"B": ("d", "w")} if self.how == "upload" else {}
        )

    @property
    def down(self):
        return ("x", "w") if self.how == "down" else ("x",)

    @property
    def client_state(self):
        return "r_i" if self.how == "names" else ()

    def finish(self, y, s, c, grad):
        return {"delta": y - c.x} | ({"extra": y} if self.how == "extra" else {}), {"r": y} if self.how == "own" else {}

    def server(self, x, state, agg, ctx):
        return x + agg["A"], {"u": x} if self.how == "state" else {}


@pytest.mark.parametrize(
    ("how", "sentence"),
    [
        ("rule", "Wrong: the rule of sum 'A' must be one of w, avg, avg/K, p, sum, each, got 'total'"),
        ("upload", "Wrong: the sum 'B' must be of one of delta, got 'd'"),
        ("extra", "Wrong: 'finish' must return delta, got delta, extra"),
        ("own", "Wrong: 'finish' must return some of nothing, got r"),
        ("state", "Wrong: 'server' must return some of v, got u"),
        ("down", "Wrong: 'down' must name server state unless 'broadcast' makes it, got w"),
        ("names", "Wrong: 'client_state' must be a tuple of names, got 'r_i'"),
    ],
)
def test_an_algorithm_is_held_to_its_declaration(quick, how, sentence):
    with pytest.raises(ValueError) as error:
        quick(algorithm=Wrong(how=how))
    assert sentence in str(error.value)


@pytest.mark.parametrize(
    ("ids", "weights", "sentence"),
    [
        ([20], [1.0], "client numbers from 0 to 19, got [20]"),
        ([-1], [1.0], "client numbers from 0 to 19, got [-1]"),
        ([0.5], [1.0], "client numbers from 0 to 19"),
        ([0, 1], [1.0], "a weight ≥ 0 for each client, got [1.0]"),
        ([0], [float("nan")], "a weight ≥ 0 for each client"),
        ([], [], "at least one client, got none"),
        ([[0, 1]], [[0.5, 0.5]], "client numbers from 0 to 19, got [[0, 1]]"),
        ([True, False], [0.5, 0.5], "client numbers from 0 to 19, got [True, False]"),
        (3, 1.0, "client numbers from 0 to 19, got 3"),
        (None, [1.0], "client numbers from 0 to 19, got None"),
        ([[0], [1, 2]], [0.5, 0.5], "client numbers from 0 to 19"),
        (["a"], [1.0], "client numbers from 0 to 19, got ['a']"),
        ([2**70], [1.0], "client numbers from 0 to 19"),
        ([0], [1j], "a weight ≥ 0 for each client, got [1j]"),
        ([0], None, "a weight ≥ 0 for each client, got None"),
        ([*range(20)] * 200 + [20], [1.0] * 4001, "client numbers from 0 to 19, got [0, 1, 2, 3, 4, 5, ...]"),
    ],
)
def test_a_selector_is_held_to_its_contract(quick, ids, weights, sentence):
    class Scripted(fm.Selector):
        def select(self, view):
            return ids, weights

    class Asking(fm.Selector):
        def select(self, view):
            view.probe(ids)
            return [0], [1.0]

    with pytest.raises(ValueError) as error:
        quick(selection=Scripted())
    assert sentence in str(error.value)
    if "client numbers" in sentence:
        with pytest.raises(ValueError, match="Asking: 'select' must ask client numbers from 0 to 19"):
            quick(selection=Asking())


@pytest.mark.parametrize("given", [None, [0], ([0], [1.0], 2)], ids=repr)
def test_a_selector_returns_numbers_and_weights(quick, given):
    class Scripted(fm.Selector):
        def select(self, view):
            return given

    with pytest.raises(ValueError, match="Scripted: 'select' must return client numbers and their weights"):
        quick(selection=Scripted())


@pytest.mark.parametrize("there", [[3, 4], [True] * 19, [[True]] * 20, [1] * 20, None], ids=repr)
def test_an_availability_is_held_to_its_contract(quick, there):
    class Mine(fm.Availability):
        def available(self, seed, round, N):
            return there

    with pytest.raises(ValueError, match="Mine: 'available' must return true or false for each of the 20 clients"):
        quick(availability=Mine())


@pytest.mark.parametrize("kind", [list, np.array, torch.tensor])
def test_an_availability_may_be_a_list_or_an_array(quick, kind):
    class Mine(fm.Availability):
        def available(self, seed, round, N):
            return kind([i in (3, 7) for i in range(N)])

    assert quick(availability=Mine(), selection=fm.Full()).history[0].cohort == [3, 7]


def test_a_partition_is_held_to_its_contract():
    class Odd:
        def __init__(self, parts):
            self.parts = parts

        def split(self, labels, clients, seed):
            return self.parts

    digits = fm.datasets.load("digits")
    for parts, sentence in (([[0]], "2 parts, got 1"), ([[0], []], "none for client 1"), ([[0], [9999]], "got 9999")):
        with pytest.raises(ValueError, match=sentence):
            digits.partition(Odd(parts), clients=2)
    with pytest.raises(ValueError, match="'scheme' must be a partition"):
        digits.partition(fm.partition.IID, clients=2)


def test_misspelt_methods_are_named(quick, caplog):
    class Misspelt(fm.Algorithm):
        lr = 0.1

        def direction(self, y, s, c, grad, k):
            return grad(y), s

        def finsh(self, y, s, c, grad):
            return {"delta": c.x - y}, {}

        def directions(self):
            """Beside `direction`, a name of the user's."""

    quick(algorithm=Misspelt())
    quick(algorithm=Misspelt())
    (text,) = [record.getMessage() for record in caplog.records if "no meaning" in record.getMessage()]
    assert text.startswith("Misspelt: 'finsh' has no meaning to fedmos and is ignored (did you mean 'finish'?)")


def test_a_misspelt_method_of_a_callback_is_named(quick, caplog):
    class Silent(fm.Callback):
        def on_rounds(self, record):
            raise AssertionError("is never called")

    quick(callbacks=[Silent(), lambda record: None])
    (text,) = [record.getMessage() for record in caplog.records if "no meaning" in record.getMessage()]
    assert text.startswith("Silent: 'on_rounds' has no meaning to fedmos and is ignored (did you mean 'on_round'?)")


def test_a_model_in_float64_is_trained_in_the_dtype_of_the_run(quick, caplog):
    preflight._warn_once.cache_clear()  # a sentence is logged once in a process
    quick(model=fm.models.logistic(features=64).double(), dtype=torch.float64)
    assert "float64" not in caplog.text
    result = quick(model=fm.models.logistic(features=64).double())
    assert result.params.dtype == torch.float32
    assert "The parameters of the model are float64, and the run trains in float32; use dtype=torch" in caplog.text
