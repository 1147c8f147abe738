"""Small federations that many tests share."""

import gc
import os
import tempfile

import pytest
import torch

import fedmos as fm

pytest.register_assert_rewrite("helpers")

os.environ["FEDMOS_CACHE"] = tempfile.mkdtemp(prefix="fedmos-tests-")  # what tests time is theirs
os.environ["HF_HUB_OFFLINE"] = "1"  # no test asks the network
torch.set_num_threads(1)  # the suite runs in two processes


def pytest_collection_finish() -> None:
    """Leave the modules that are loaded by now out of garbage collections, which would look at a million objects."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def digits() -> fm.FederatedData:
    """Twenty clients with digits of two classes each."""
    return fm.datasets.load("digits").partition(fm.partition.ByClass(classes=2, size=(4, 22)), clients=20, seed=0)


@pytest.fixture
def run_arguments(digits) -> dict:
    """Arguments of `fm.run` on the digits that take a moment."""
    return {
        "model": fm.models.logistic(features=64),
        "data": digits,
        "algorithm": fm.FedAvg(lr=0.1),
        "selection": fm.Uniform(m=4),
        "rounds": 3,
        "local_steps": 2,
        "batch_size": 4,
    }


@pytest.fixture
def quick(run_arguments):
    """`fm.run` with these arguments, each of which may be replaced."""

    def run(**changes):
        return fm.run(**run_arguments | changes)

    return run


@pytest.fixture
def home(tmp_path, monkeypatch):
    """An empty $FEDMOS_DATA."""
    folder = tmp_path / "data"
    folder.mkdir()
    monkeypatch.setenv("FEDMOS_DATA", str(folder))
    return folder
