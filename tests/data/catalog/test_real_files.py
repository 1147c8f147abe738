"""With little installed, and with the real files."""

from pathlib import Path

import numpy as np
import pytest

from fedmos.data import datasets
from fedmos.data.catalog import CATALOG
from fedmos.data.catalog.errors import UnreachableError
from helpers import fresh
from helpers.sources import small, write_idx, write_npz, write_parquet

pytestmark = pytest.mark.usefixtures("home")


def test_an_npz_needs_nothing_but_numpy_and_torch(home):
    write_npz(home, "cifar10", small("cifar10"))
    program = """
import sys
for name in ("pandas", "pyarrow", "PIL", "datasets", "sklearn", "typer", "rich", "pydantic"):
    sys.modules[name] = None
import fedmos as fm
print(fm.datasets.load("cifar10").x_train.shape)
"""
    done = fresh.run(program)
    assert done.stdout.strip() == "(25, 3, 32, 32)", done.stderr


REAL = Path.home() / ".cache" / "fedmos"

FACTS = {
    "mnist": ((0.1307,), (0.3081,), [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]),
    "fmnist": ((0.2860,), (0.3530,), [6000] * 10),
    "cifar10": ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616), [5000] * 10),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", FACTS)
def test_the_real_files_are_the_published_ones(name):
    path = REAL / f"{name}.npz"
    if not path.exists():
        pytest.skip(f"{path} is not there")
    found = datasets.find(name, path)
    data, source = found.dataset, CATALOG[name]
    mean, std, counts = FACTS[name]
    assert found.status == "as published"
    assert data.x_train.shape == (source.train, *source.shape)
    assert data.x_test.shape == (source.test, *source.shape)
    assert np.bincount(data.y_train).tolist() == counts
    pixels = data.x_train / np.float32(255)
    assert pixels.mean((0, 2, 3)) == pytest.approx(mean, abs=1e-4)
    assert pixels.std((0, 2, 3)) == pytest.approx(std, abs=1e-4)


@pytest.mark.slow
def test_the_real_mnist_is_the_same_in_every_format(tmp_path):
    if not (REAL / "mnist.npz").exists():
        pytest.skip("mnist.npz is not there")
    with np.load(REAL / "mnist.npz") as file:
        arrays = {name: file[name] for name in file.files}
    write_idx(tmp_path / "idx", arrays)
    write_parquet(tmp_path / "parquet", "mnist", arrays, shards=1)
    for root in ("idx", "parquet"):
        assert datasets.find("mnist", tmp_path / root).status == "as published"


def test_unreachable_is_not_a_value_error():
    """Or the search would take a hub out of reach for a broken file."""
    assert not issubclass(UnreachableError, ValueError | OSError)
