"""Fixtures for tests of the user's own data."""

from pathlib import Path

import numpy as np
import pytest


@pytest.fixture
def album(tmp_path) -> tuple[Path, np.ndarray]:
    """Clients ann and bob, classes cat and größe 2, two grey images each but one; and the pixels in that order."""
    from helpers.own_data import pictures, save

    pixels = pictures(7, 4, 5)
    names = [f"{c}/{k}/{i}.png" for c in ("ann", "bob") for k in ("cat", "größe 2") for i in range(2)][:7]
    for name, p in reversed(list(zip(names, pixels, strict=True))):
        save(tmp_path / "album", name, p)
    return tmp_path / "album", pixels


@pytest.fixture(scope="module")
def hf():
    datasets = pytest.importorskip("datasets")
    datasets.disable_progress_bars()
    return datasets


@pytest.fixture(scope="module")
def flower(hf):
    pytest.importorskip("flwr_datasets")
    import flwr_datasets.partitioner as partitioner

    return partitioner


@pytest.fixture
def numbered(hf):
    """Rows whose only input is their own number."""
    from helpers.own_data import LABELS, N

    features = hf.Features(
        {
            "number": hf.Value("int64"),
            "label": hf.ClassLabel(names=["zebra", "ant", "mole"]),
            "user": hf.Value("string"),
        }
    )
    users = [f"u{i}" for i in np.random.default_rng(6).integers(0, 7, N)]
    return hf.Dataset.from_dict({"number": list(range(N)), "label": LABELS.tolist(), "user": users}, features=features)
