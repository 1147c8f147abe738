"""Tables of every kind with the same rows, and pictures."""

import io
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from fedmos import FederatedData

pa = pytest.importorskip("pyarrow")
pd = pytest.importorskip("pandas")
pl = pytest.importorskip("polars")
Image = pytest.importorskip("PIL.Image")

ROWS = {
    "user": ["b", "a", "b", "c", "a", "b"],
    "height": [0.5, 1.5, 2.5, 3.5, 4.5, 5.5],
    "age": [10, 20, 30, 40, 50, 60],
    "member": [True, False, True, True, False, False],
    "label": ["dog", "cat", "emu", "dog", "dog", "cat"],
}

COLUMNS = {"client_column": "user", "target_column": "label"}


def parquet(rows, folder: Path) -> Path:
    import pyarrow.parquet

    path = folder / f"rows{len(list(folder.iterdir()))}.parquet"
    pyarrow.parquet.write_table(pa.table(rows), path)
    return path


KINDS: dict[str, Callable] = {
    "pandas": lambda rows, folder: pd.DataFrame(rows),
    "polars": lambda rows, folder: pl.DataFrame(rows),
    "lazy polars": lambda rows, folder: pl.DataFrame(rows).lazy(),
    "pyarrow": lambda rows, folder: pa.table(rows),
    "parquet": parquet,
    "parquet by name": lambda rows, folder: str(parquet(rows, folder)),
}

every_kind = pytest.mark.parametrize("kind", KINDS)


def clients(data: FederatedData) -> list[tuple[list, list]]:
    return [tuple(part.tolist() for part in data.client(i)) for i in range(len(data))]


def rows(**changes) -> dict:
    return ROWS | changes


def png(pixels: np.ndarray) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, format="PNG")
    return file.getvalue()


def pictures(n: int, *shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (n, *shape), dtype=np.uint8)


def save(root: Path, name: str, pixels: np.ndarray) -> None:
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(root / name)


N = 120
LABELS = np.random.default_rng(5).integers(0, 3, N)

PARTITIONERS = {
    "Iid": lambda p: p.IidPartitioner(num_partitions=4),
    "Dirichlet": lambda p: p.DirichletPartitioner(
        num_partitions=4, partition_by="label", alpha=0.5, min_partition_size=1, seed=3
    ),
    "Pathological": lambda p: p.PathologicalPartitioner(4, partition_by="label", num_classes_per_partition=2, seed=3),
    "Linear": lambda p: p.LinearPartitioner(num_partitions=4),
    "NaturalId": lambda p: p.NaturalIdPartitioner(partition_by="user"),
}
