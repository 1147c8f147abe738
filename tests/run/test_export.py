"""Exported models give the outputs of `Result.predict`."""

import json
import sys
import zipfile
from dataclasses import replace

import numpy as np
import onnxruntime
import pytest
import safetensors
import torch
from safetensors.torch import load_file
from torch import nn

import fedmos as fm
from fedmos.run.info import RunInfo


class Tied(nn.Module):
    """A network on tokens with a tied parameter, a frozen one and a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.scores = nn.Embedding(20, 6), nn.Linear(6, 20)
        self.scores.weight = self.embedding.weight
        self.gain = nn.Parameter(torch.full((6,), 1.5), requires_grad=False)
        self.register_buffer("shift", torch.ones(6))

    def forward(self, x):
        return self.scores(self.gain * self.embedding(x).mean(1) + self.shift)


@pytest.fixture(scope="module")
def pictures():
    """Images of two channels, each with its own normalisation."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(0, 256, (60, 2, 6, 6), generator=generator, dtype=torch.uint8)
    y = torch.arange(60) % 3
    data = fm.FederatedData.from_arrays([(x[:20], y[:20]), (x[20:40], y[20:40])], (x[40:], y[40:]))
    return data.declare(normalize=fm.Normalize((0.5, 0.4), (0.2, 0.3)))


@pytest.fixture(scope="module")
def trained(pictures):
    model = nn.Sequential(nn.Conv2d(2, 4, 3), nn.ReLU(), nn.Dropout(0.5), nn.Flatten(), nn.Linear(64, 3))
    return fm.run(model, pictures, fm.FedAvg(lr=0.1), fm.Full(), rounds=2, local_steps=2, batch_size=4)


@pytest.fixture(scope="module")
def of_tokens():
    x = torch.arange(300).view(30, 10) % 20
    data = fm.FederatedData.from_arrays([(x[:15], x[:15, 0]), (x[15:], x[15:, 0])], (x[:7], x[:7, 0]))
    return fm.run(Tied(), data, fm.FedAvg(lr=0.1), fm.Full(), rounds=2, local_steps=2, batch_size=4), data


def onnx_outputs(path, x):
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    (given,) = session.get_inputs()
    return torch.from_numpy(session.run(None, {given.name: x.numpy()})[0])


def torch_outputs(path, x):
    with torch.no_grad():
        return torch.export.load(path).module()(x)


PROGRAMS = {"torch_export": torch_outputs, "onnx": onnx_outputs}


@pytest.mark.parametrize("format", PROGRAMS)
def test_a_program_of_raw_inputs(trained, pictures, tmp_path, format):
    trained.export(tmp_path / "model", format)
    for x in (pictures.test[0], pictures.test[0][:1]):
        outputs = PROGRAMS[format](tmp_path / "model", x)
        torch.testing.assert_close(outputs, trained.predict(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("format", PROGRAMS)
def test_a_program_of_tokens(of_tokens, tmp_path, format):
    result, data = of_tokens
    result.export(tmp_path / "model", format)
    outputs = PROGRAMS[format](tmp_path / "model", data.test[0])
    torch.testing.assert_close(outputs, result.predict(data.test[0]), rtol=1e-4, atol=1e-5)


def test_a_program_in_double_precision_and_in_bfloat16(quick, digits, tmp_path):
    x = digits.test[0]
    for options, tolerance in (({"dtype": torch.float64}, 1e-12), ({"precision": "bf16"}, 1e-6)):
        result = quick(**options)
        result.export(tmp_path / "model.pt2", "torch_export")
        expected = result.predict(x)
        torch.testing.assert_close(torch_outputs(tmp_path / "model.pt2", x), expected, rtol=0, atol=tolerance)


class TokensAndTable(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.scores = nn.Embedding(5, 4), nn.Linear(7, 2)

    def forward(self, tokens, mask, table):
        words = (self.embedding(tokens) * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
        return self.scores(torch.cat([words, table], 1))


def test_a_model_of_several_inputs(tmp_path):
    generator = torch.Generator().manual_seed(0)
    tokens, table = torch.randint(0, 5, (20, 6), generator=generator), torch.randn(20, 3, generator=generator)
    x = {"tokens": tokens, "mask": torch.arange(6) < torch.arange(20)[:, None] % 6 + 1, "table": table}
    data = fm.FederatedData.from_arrays([(x, table[:, 0] > 0)], (x, table[:, 0] > 0))
    result = fm.run(TokensAndTable(), data, fm.FedAvg(lr=0.1), fm.Full(), rounds=2, local_steps=2, batch_size=4)
    expected = result.predict(x)
    assert torch.equal(result.predict(data.test[0]), expected)
    result.export(tmp_path / "model.pt2", "torch_export")
    torch.testing.assert_close(torch_outputs(tmp_path / "model.pt2", x), expected, rtol=1e-4, atol=1e-5)
    result.export(tmp_path / "model.onnx", "onnx")
    (outputs,) = onnxruntime.InferenceSession(tmp_path / "model.onnx").run(None, {k: v.numpy() for k, v in x.items()})
    torch.testing.assert_close(torch.from_numpy(outputs), expected, rtol=1e-4, atol=1e-5)


class Pair(nn.Module):
    """Returns features besides the scores."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(64, 10)

    def forward(self, x):
        return x.flatten(1), self.linear(x.flatten(1))


@pytest.mark.parametrize("format", PROGRAMS)
def test_a_model_that_returns_more_than_its_outputs(quick, digits, tmp_path, format):
    result = quick(model=Pair(), outputs=lambda returned: returned[1])
    result.export(tmp_path / "model", format)
    outputs = PROGRAMS[format](tmp_path / "model", digits.test[0])
    torch.testing.assert_close(outputs, result.predict(digits.test[0]), rtol=1e-4, atol=1e-5)


def test_onnx_of_a_run_in_bfloat16_is_in_float32_and_says_so(quick, digits, tmp_path, caplog):
    result = quick(precision="bf16")
    result.export(tmp_path / "model.onnx", "onnx")
    assert "computes in float32" in caplog.text
    torch.testing.assert_close(
        onnx_outputs(tmp_path / "model.onnx", digits.test[0]), result.predict(digits.test[0]), rtol=0.05, atol=0.05
    )


def test_an_exported_program_holds_no_pickle(trained, tmp_path):
    trained.export(tmp_path / "model.pt2", "torch_export")
    with zipfile.ZipFile(tmp_path / "model.pt2") as archive:
        assert not [name for name in archive.namelist() if archive.read(name)[:1] == b"\x80" or name.endswith(".pkl")]
        assert not [name for name in archive.namelist() if archive.read(name)[:2] == b"PK"]


def test_the_weights_and_the_normalisation(trained, pictures, tmp_path):
    trained.export(tmp_path / "model.safetensors")
    model = nn.Sequential(nn.Conv2d(2, 4, 3), nn.ReLU(), nn.Dropout(0.5), nn.Flatten(), nn.Linear(64, 3)).eval()
    model.load_state_dict(load_file(tmp_path / "model.safetensors"))
    with safetensors.safe_open(tmp_path / "model.safetensors", "pt") as file:
        record = json.loads(file.metadata()["fedmos"])
    normalize, x = fm.Normalize(**record["normalize"]), pictures.test[0]
    assert normalize == pictures.normalize
    assert record["shape"] == [2, 6, 6]
    torch.testing.assert_close(model(normalize(x, torch.float32)), trained.predict(x), rtol=1e-4, atol=1e-5)


def test_weights_hold_tied_and_frozen_parameters_and_buffers(of_tokens, tmp_path):
    result, _ = of_tokens
    result.export(tmp_path / "model.safetensors")
    model = Tied()
    model.gain.data.zero_()
    model.shift.zero_()
    model.load_state_dict(load_file(tmp_path / "model.safetensors"))
    assert all(torch.equal(v, result.model.state_dict()[name]) for name, v in model.state_dict().items())


def test_what_was_done_with_the_model_since_is_not_exported(quick, digits, tmp_path):
    result = quick()
    nn.init.zeros_(result.model.train()[1].weight)
    result.export(tmp_path / "model.pt2", "torch_export")
    outputs = torch_outputs(tmp_path / "model.pt2", digits.test[0])
    torch.testing.assert_close(outputs, quick().predict(digits.test[0]), rtol=1e-4, atol=1e-5)
    assert result.model.training


# What cannot be exported


class Conditional(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(64, 10)

    def forward(self, x):
        outputs = self.linear(x.flatten(1))
        return outputs if float(outputs.detach().sum()) > 1e9 else 2 * outputs


class Constant(nn.Module):
    """Traced with a number that differs in every call."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(64, 10)

    def forward(self, x):
        if torch.compiler.is_exporting():
            return self.linear(x.flatten(1)) + 1
        return self.linear(x.flatten(1))


@pytest.mark.parametrize("format", PROGRAMS)
def test_a_model_that_cannot_be_traced(quick, tmp_path, format):
    result = quick(model=Conditional(), engine="loop")
    with pytest.raises(ValueError, match=f"as {format} because PyTorch cannot trace it .*; use the format state_dict"):
        result.export(tmp_path / "model", format)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("format", PROGRAMS)
def test_a_program_with_other_outputs_is_refused(quick, tmp_path, format):
    result = quick(model=Constant(), engine="loop")
    with pytest.raises(ValueError, match=f"as {format} because the exported program gives other outputs"):
        result.export(tmp_path / "model", format)
    assert not list(tmp_path.iterdir())


def test_without_the_extra(trained, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(ImportError, match=r"onnxscript is missing; use pip install 'fedmos\[onnx\]'"):
        trained.export(tmp_path / "model.onnx", "onnx")


def test_an_unknown_format_and_a_folder_that_does_not_exist(trained, tmp_path):
    with pytest.raises(ValueError, match="'format' must be one of 'state_dict', 'torch_export', 'onnx', got 'pickle'"):
        trained.export(tmp_path / "model", "pickle")
    with pytest.raises(OSError, match=r"Cannot write .*; use another name"):
        trained.export(tmp_path / "missing" / "model")


def test_the_result_of_an_earlier_version(quick, digits, tmp_path):
    info = {key: value for key, value in quick().info.to_json().items() if key != "inference"}
    replace(quick(), info=RunInfo.from_json(info)).save(tmp_path / "old")
    model = fm.models.logistic(features=64)
    fm.Result.load(tmp_path / "old", model).export(tmp_path / "weights.safetensors")
    np.testing.assert_array_equal(
        load_file(tmp_path / "weights.safetensors")["1.weight"], quick().model[1].weight.detach()
    )
    with pytest.raises(ValueError, match="did not record the normalisation"):
        fm.Result.load(tmp_path / "old", model).export(tmp_path / "model.pt2", "torch_export")
    given = fm.Result.load(tmp_path / "old", model, normalize=digits.normalize)
    with pytest.raises(ValueError, match="did not record the shape"):
        given.export(tmp_path / "model.pt2", "torch_export")
