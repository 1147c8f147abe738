"""`fedmos export`: the model of a run of the command line as a file."""

import onnxruntime
import pytest
import torch
from safetensors.torch import load_file
from typer.testing import CliRunner

import fedmos as fm
from fedmos.cli import app
from fedmos.config import schema as config
from fedmos.storage import RunFolder
from helpers.configs import RUN


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("export")
    (folder / "mos.toml").write_text(RUN)
    settings = config.load(config.RunConfig, folder / "mos.toml")
    settings.run(settings.algorithm, settings.selection, settings.seed, out=RunFolder(folder / "run", settings.kept()))
    return folder / "run"


@pytest.fixture(scope="module")
def x():
    return fm.datasets.load("digits").partition(fm.partition.IID(), clients=2).test[0]


def export(*arguments) -> str:
    done = CliRunner().invoke(app, ["export", *map(str, arguments)])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == 0, done.output
    return " ".join(done.output.split())


def test_the_weights(run):
    output = export(run)
    assert "Model after round 2" in output
    assert "Inputs are (x / 16.0 - 0.3053) / 0.3763." in output
    weights = load_file(run / "model.safetensors")
    assert torch.equal(torch.cat([weights["1.weight"].flatten(), weights["1.bias"]]), fm.Result.load(run).params)


def test_programs(run, x, tmp_path):
    expected = fm.Result.load(run).predict(x)
    export(run, "--format", "torch_export", "--out", tmp_path / "net.pt2")
    torch.testing.assert_close(torch.export.load(tmp_path / "net.pt2").module()(x), expected, rtol=1e-4, atol=1e-5)
    export(run, "--format", "onnx")
    (outputs,) = onnxruntime.InferenceSession(run / "model.onnx").run(None, {"x": x.numpy()})
    torch.testing.assert_close(torch.from_numpy(outputs), expected, rtol=1e-4, atol=1e-5)


def test_a_run_from_python(quick, tmp_path):
    quick(out=tmp_path / "run")
    with pytest.raises(
        ValueError, match=r"does not name the model; use fedmos\.Result\.load\('.*run', model\)\.export"
    ):
        export(tmp_path / "run")


def test_mistakes(run, tmp_path):
    with pytest.raises(ValueError, match="'format' must be one of 'state_dict', 'torch_export', 'onnx', got 'pickle'"):
        export(run, "--format", "pickle")
    with pytest.raises(FileNotFoundError, match="because there is none"):
        export(tmp_path)
