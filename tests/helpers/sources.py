"""Small data sets in every format that is read."""

import gzip
import io
import struct
from pathlib import Path

import numpy as np

import fedmos as fm
from fedmos.data.catalog import CATALOG

PARTS = ("train", "test")


def small(name: str, train: int = 25, test: int = 10) -> dict[str, np.ndarray]:
    """Random images of a set's shape, (n, height, width[, 3]), and labels of all its classes but the last."""
    rng = np.random.default_rng(0)
    channels, *size = CATALOG[name].shape
    shape = size if channels == 1 else [*size, 3]
    made = {}
    for part, n in zip(PARTS, (train, test), strict=True):
        made[f"x_{part}"] = rng.integers(0, 256, (n, *shape), dtype=np.uint8)
        made[f"y_{part}"] = rng.integers(0, CATALOG[name].classes - 1, n, dtype=np.uint8)
    return made


def write_npz(folder: Path, name: str, arrays: dict[str, np.ndarray]) -> Path:
    np.savez_compressed(folder / f"{name}.npz", **arrays)
    return folder / f"{name}.npz"


def write_idx(folder: Path, arrays: dict[str, np.ndarray], dot: str = "-", gz: bool = True) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for part, stem in (("train", "train"), ("test", "t10k")):
        for what, array in (("images", arrays[f"x_{part}"]), ("labels", arrays[f"y_{part}"])):
            header = bytes((0, 0, 8, array.ndim)) + struct.pack(f">{array.ndim}I", *array.shape)
            path = folder / f"{stem}-{what}{dot}idx{array.ndim}-ubyte{'.gz' if gz else ''}"
            path.write_bytes((gzip.compress if gz else bytes)(header + array.astype(np.uint8).tobytes()))


def write_cifar(folder: Path, name: str, arrays: dict[str, np.ndarray]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for part in PARTS:
        x, y = np.moveaxis(arrays[f"x_{part}"], -1, 1), arrays[f"y_{part}"].astype(np.uint8)
        labels = [y[:, None]] if name == "cifar10" else [np.full((len(y), 1), 7, np.uint8), y[:, None]]
        records = np.concatenate([*labels, x.reshape(len(x), -1)], 1)
        files = {"cifar10": [f"data_batch_{i}.bin" for i in range(1, 6)], "cifar100": ["train.bin"]}[name]
        if part == "test":
            files = ["test_batch.bin" if name == "cifar10" else "test.bin"]
        for file, few in zip(files, np.array_split(records, len(files)), strict=True):
            (folder / file).write_bytes(few.tobytes())


def png(image: np.ndarray) -> bytes:
    from PIL import Image

    stream = io.BytesIO()
    Image.fromarray(image).save(stream, "PNG")
    return stream.getvalue()


def table(name: str, arrays: dict[str, np.ndarray], part: str):
    import pyarrow as pa

    columns = CATALOG[name].columns
    cells = [{"bytes": png(image), "path": f"{i}.png"} for i, image in enumerate(arrays[f"x_{part}"])]
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    labels = pa.array(arrays[f"y_{part}"].astype(np.int64))
    made = {columns.input[0]: pa.array(cells, kind), columns.target[0]: labels}
    if "owner" in arrays and part == "train":
        made[columns.owner[0]] = pa.array(arrays["owner"])
    return pa.table(made)


def write_parquet(folder: Path, name: str, arrays: dict[str, np.ndarray], shards: int = 2, parts=PARTS) -> None:
    import pyarrow.parquet as pq

    folder.mkdir(parents=True, exist_ok=True)
    for part in parts:
        whole = table(name, arrays, part)
        step = -(-len(whole) // shards)
        for i in range(shards):
            path = folder / f"{part}-{i:05d}-of-{shards:05d}.parquet"
            pq.write_table(whole.slice(i * step, step), path, row_group_size=max(4, step // 10))


def same(a: fm.Dataset, b: fm.Dataset) -> bool:
    names = ("x_train", "y_train", "x_test", "y_test")
    return all(
        np.array_equal(getattr(a, name), getattr(b, name)) and getattr(a, name).dtype == getattr(b, name).dtype
        for name in names
    )


def marked(name: str, label: int) -> dict[str, np.ndarray]:
    """A set that says by its labels which file it was."""
    return {k: np.full_like(v, label) if k[0] == "y" else v for k, v in small(name).items()}


def hub_images(name: str, arrays: dict[str, np.ndarray]):
    """Splits with the hub's own features."""
    import datasets as library

    columns = CATALOG[name].columns
    splits = {}
    for part in PARTS:
        cells = {
            columns.input[0]: [{"bytes": png(image), "path": None} for image in arrays[f"x_{part}"]],
            columns.target[0]: arrays[f"y_{part}"].astype(int).tolist(),
        }
        features = {
            columns.input[0]: library.Image(),
            columns.target[0]: library.ClassLabel(names=list(CATALOG[name].labels)),
        }
        splits[part] = library.Dataset.from_dict(cells, features=library.Features(features))
    return library.DatasetDict(splits)
