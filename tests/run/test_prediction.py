"""`Result.predict` does what evaluation did, in the process of the run and after loading."""

import copy
from dataclasses import replace

import numpy as np
import pandas
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fedmos as fm
from fedmos.run.info import RunInfo


def assert_measured(result, data):
    """The predictions for the test set have the loss and accuracy of the last record."""
    x, y = data.test
    outputs, last = result.predict(x), result.history[-1]
    assert outputs.device.type == "cpu"
    assert float(F.cross_entropy(outputs, y.long())) == pytest.approx(last.test_loss, rel=1e-5)
    assert float((outputs.argmax(1) == y).double().mean()) == pytest.approx(last.accuracy)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"model": fm.models.cnn_digits(dropout=True), "engine": "loop"},
        {"model": fm.models.cnn_digits(dropout=True), "engine": "batched"},
        {"dtype": torch.float64},
        {"precision": "bf16"},
    ],
    ids=["default", "loop", "batched", "float64", "bf16"],
)
def test_predictions_are_the_measured_ones(quick, digits, changes):
    result = quick(**changes)
    assert_measured(result, digits)
    assert result.predict(digits.test[0]).dtype == changes.get("dtype", torch.float32)
    assert not any(module.training for module in result.model.modules())


def test_more_samples_than_are_evaluated_at_once(quick, digits):
    x = digits.x[:1100]
    outputs = quick().predict(x)
    assert outputs.shape == (1100, 10)
    torch.testing.assert_close(outputs[-3:], quick().predict(x[-3:]))


def test_the_model_takes_what_the_normalisation_gives(quick, digits):
    result = quick()
    x = digits.test[0]
    torch.testing.assert_close(result.model(digits.inputs(x)), result.predict(x), rtol=1e-4, atol=1e-5)


def test_a_changed_model_does_not_change_predictions(quick, digits):
    result, x = quick(), digits.test[0]
    before = result.predict(x)
    for fresh in (result, quick()):
        fresh.model.train()
        nn.init.zeros_(fresh.model[1].weight)
        assert torch.equal(fresh.predict(x), before)


@pytest.mark.parametrize("normalize", [None, fm.Normalize((0.5,), (2.0,), scale=3.0)])
def test_federations_of_numbers(normalize):
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(60, 1, 4, generator=generator), torch.arange(60) % 3
    data = fm.FederatedData.from_arrays([(x[:20], y[:20]), (x[20:40], y[20:40])], (x[40:], y[40:]))
    data = replace(data, normalize=normalize)
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 3))
    result = fm.run(model, data, fm.FedAvg(lr=0.1), fm.Full(), rounds=2, local_steps=2, batch_size=4)
    assert_measured(result, data)
    whole = torch.arange(8).view(2, 1, 4)
    assert torch.equal(result.predict(whole), result.predict(whole.double().numpy()))


@pytest.mark.parametrize("age", [[31, 42, 53, 64] * 6, [31.5, 42.5, None, 64.5] * 6], ids=["integers", "numbers"])
def test_rows_of_a_table(tmp_path, age):
    frame = pandas.DataFrame({"site": ["a", "b"] * 12, "sex": ["f", "m", "m"] * 8, "age": age, "label": [0, 1] * 12})
    data = fm.FederatedData.from_frame(frame, "site", categorical=["sex"], missing="mean", test=frame)
    model = nn.Linear(3, 2)
    result = fm.run(model, data, fm.FedAvg(lr=0.001), fm.Full(), rounds=2, local_steps=2, batch_size=4)
    assert_measured(result, data)
    result.save(tmp_path / "run")
    loaded = fm.Result.load(tmp_path / "run", model)
    assert torch.equal(loaded.predict(frame[["age", "sex"]]), result.predict(data.test[0]))
    assert torch.equal(loaded.predict(data.encoding.transform(frame).numpy()), result.predict(data.test[0]))
    with pytest.raises(ValueError, match="must have a column 'age'"):
        loaded.predict(frame[["sex"]])


# Inputs that are not like the federation's


def test_an_array_of_another_dtype_is_accepted_if_no_value_changes(quick, digits):
    result, x = quick(), digits.test[0]
    expected = result.predict(x)
    for same in (x.numpy(), x.to(torch.int64), x.numpy().astype(np.uint16), x.double(), x.tolist()):
        assert torch.equal(result.predict(same), expected)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda x: x / 16, "float32 inputs because the run's data are uint8"),
        (lambda x: x.long() - 20, "int64 inputs because the run's data are uint8"),
        (lambda x: x[0], r"shape \(n, 1, 8, 8\), got one sample; use x\[None\]"),
        (lambda x: x.flatten(1), r"shape \(n, 1, 8, 8\) as in training, got \(n, 64\)"),
        (lambda x: x[:0], "at least one sample"),
        (lambda x: "pixels", "must be a tensor or an array of numbers, got 'pixels'"),
        (lambda x: None, "must be a tensor or an array of numbers, got None"),
    ],
)
def test_other_inputs_are_refused(quick, digits, change, sentence):
    with pytest.raises(ValueError, match=sentence):
        quick().predict(change(digits.test[0]))


# Saved results


def test_a_loaded_result_predicts_the_same(quick, digits, tmp_path):
    model = fm.models.cnn_digits()
    result = quick(model=model)
    result.save(tmp_path / "saved")
    loaded = fm.Result.load(tmp_path / "saved", fm.models.cnn_digits(seed=7))
    assert not loaded.model.training
    assert torch.equal(loaded.predict(digits.test[0]), result.predict(digits.test[0]))
    assert loaded.info["inference"]["normalize"] == {"mean": 0.3053, "std": 0.3763, "scale": 16.0}


def of_an_earlier_version(result, folder):
    """Save a result as versions did that recorded no normalisation."""
    info = {key: value for key, value in result.info.to_json().items() if key != "inference"}
    replace(result, info=RunInfo.from_json(info)).save(folder)


def test_a_folder_without_normalisation_needs_it(quick, digits, tmp_path):
    model, x = fm.models.logistic(features=64), digits.test[0]
    result = quick(model=model)
    of_an_earlier_version(result, tmp_path / "old")
    with pytest.raises(ValueError, match=r"use Result\.load\(path, model, normalize=data\.normalize\)"):
        fm.Result.load(tmp_path / "old", model).predict(x)
    loaded = fm.Result.load(tmp_path / "old", model, normalize=digits.normalize)
    assert torch.equal(loaded.predict(x), result.predict(x))
    loaded.save(tmp_path / "new")
    assert torch.equal(fm.Result.load(tmp_path / "new", model).predict(x), result.predict(x))
    plain = fm.Result.load(tmp_path / "old", model, normalize=None).predict(x.float())
    torch.testing.assert_close(plain, result.model(x.float()))


def test_another_normalisation_than_the_recorded_one_is_refused(quick, digits, tmp_path):
    quick(out=tmp_path / "run")
    assert fm.Result.load(tmp_path / "run", normalize=digits.normalize).history
    bytes_ = digits.declare(normalize=fm.Normalize(0.5, 0.2))
    quick(data=bytes_, out=tmp_path / "bytes")
    assert fm.Result.load(tmp_path / "bytes", normalize=fm.Normalize(0.5, 0.2)).history
    with pytest.raises(ValueError, match=r"normalize=None because the run recorded Normalize\(mean=0.3053"):
        fm.Result.load(tmp_path / "run", normalize=None)
    with pytest.raises(ValueError, match=r"'normalize' must be a fedmos\.Normalize or None, got 255"):
        fm.Result.load(tmp_path / "run", normalize=255)


# Another model than the run's


class Net(nn.Module):
    def __init__(self, activation=F.relu, slope: float = 0.1) -> None:
        super().__init__()
        self.activation, self.slope = activation, slope
        self.first, self.second = nn.Linear(64, 8), nn.Linear(8, 10)
        self.register_buffer("shift", torch.zeros(8))

    def forward(self, x):
        return self.second(self.slope * self.activation(self.first(x.flatten(1))) + self.shift)


def shifted() -> Net:
    net = Net()
    net.shift += 1
    return net


def frozen() -> Net:
    net = Net()
    net.first.requires_grad_(False)
    return net


def reversed_layers() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.Tanh(), nn.Linear(8, 10))


@pytest.mark.parametrize(
    ("other", "sentence"),
    [
        (reversed_layers, "this Sequential because its architecture is not the run's"),
        (lambda: Net(F.tanh), "this Net because its architecture"),
        (lambda: Net(slope=0.2), "this Net because its architecture"),
        (frozen, "this Net because its architecture"),
        (shifted, "this Net because its buffers or frozen parameters have other values"),
        (lambda: fm.models.logistic(features=64), "this Sequential because its architecture"),
    ],
    ids=["same number of parameters", "activation", "attribute", "frozen", "buffer", "number of parameters"],
)
def test_another_architecture_is_refused(quick, tmp_path, other, sentence):
    result = quick(model=Net())
    result.save(tmp_path / "run")
    assert torch.equal(fm.Result.load(tmp_path / "run", Net()).model.first.weight, result.model.first.weight)
    with pytest.raises(ValueError, match=sentence):
        fm.Result.load(tmp_path / "run", other())


def test_a_folder_of_an_earlier_version_is_checked_by_its_fingerprint(quick, tmp_path):
    result = quick(model=Net(), out=tmp_path / "run")
    of_an_earlier_version(result, tmp_path / "old")
    assert fm.Result.load(tmp_path / "old", Net()).model is not None
    with pytest.raises(ValueError, match="because its architecture is not the run's"):
        fm.Result.load(tmp_path / "old", reversed_layers())


def test_the_given_model_stays_as_it_is(quick, tmp_path):
    model = Net()
    before = copy.deepcopy(model.state_dict())
    quick(model=model, out=tmp_path / "run")
    fm.Result.load(tmp_path / "run", model)
    assert model.training
    assert all(torch.equal(v, before[name]) for name, v in model.state_dict().items())


# Representations


def test_results_and_histories_are_summarised_in_a_line(quick):
    def interrupt(record):
        raise KeyboardInterrupt

    result = quick(callbacks=[interrupt])
    assert repr(result).startswith("Result(FedAvg(lr=0.1, server_lr=1.0), Uniform(m=4, weights='unbiased'), 1 round")
    assert repr(result).endswith(" MB, interrupted)")
    history = quick(eval_every=2).history
    assert repr(history).startswith("History(3 rounds, train_loss ")
    assert f"accuracy {history[-1].accuracy:.4g}, {650 * 4 * 8 * 3 / 1e6:.4g} MB" in repr(history)
    assert repr(fm.History()) == "History(0 rounds)"
