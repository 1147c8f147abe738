"""Broken and malicious parquet files and texts, decompression bombs, pipes and links."""

import gzip
import json
import os
import struct
import subprocess
import sys
import zipfile
import zlib
from pathlib import Path

import numpy as np
import pytest

import fedmos as fm
from fedmos.data.catalog import CATALOG
from helpers.hostile import npy, refused
from helpers.sources import (
    png,
    small,
    table,
    write_idx,
    write_npz,
    write_parquet,
)

pytestmark = pytest.mark.usefixtures("home")


# ── parquet ──────────────────────────────────────────────────────────────────────────────────────────────────────────
def parquet(folder: Path, image, label, name: str = "mnist") -> Path:
    """A set whose training images and labels are these columns."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    write_parquet(folder, name, small(name), shards=1)
    columns = CATALOG[name].columns
    made = {columns.input[0]: pa.array(image), columns.target[0]: pa.array(label)}
    pq.write_table(pa.table(made), next(folder.glob("train*")), compression="zstd")
    return folder


def huge_png(width: int, height: int) -> bytes:
    """A picture that is all header."""

    def block(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    pixels = zlib.compress(bytes(10_000))
    return b"\x89PNG\r\n\x1a\n" + block(b"IHDR", header) + block(b"IDAT", pixels) + block(b"IEND", b"")


IMAGE = png(np.zeros((28, 28), np.uint8))

BAD_COLUMNS = {
    "a path": ([{"bytes": None, "path": "/etc/passwd"}], [0], "an image is only named ('/etc/passwd')"),
    "neither": ([{"bytes": None, "path": None}], [0], "holds no image"),
    "a null": ([IMAGE, None], [0, 0], "holds no image"),
    "texts": (["/etc/passwd"], [0], "holds no image"),
    "not an image": ([b"GIF89a nonsense"], [0], "not a valid image"),
    "a cut image": ([IMAGE[:40]], [0], "not a valid image"),
    "60000×60000": ([huge_png(60_000, 60_000)], [0], "not a valid image"),
    "many large ones": ([huge_png(9_000, 7_000)] * 2, [0, 0], "not a valid image"),
    "mixed sizes": ([IMAGE, png(np.zeros((14, 28), np.uint8))], [0, 0], "images must be alike"),
    "label 10": ([IMAGE], [10], "labels must be 0 … 9, got 10"),
    "a label is null": ([IMAGE] * 2, [0, None], "must hold a whole number in every row"),
    "labels are texts": ([IMAGE], ["seven"], "must hold a whole number in every row"),
    "labels are fractions": ([IMAGE], [0.5], "must hold a whole number in every row"),
}


@pytest.mark.parametrize("case", BAD_COLUMNS)
def test_unsound_tables_are_refused(case, tmp_path):
    image, label, sentence = BAD_COLUMNS[case]
    refused("mnist", parquet(tmp_path / "mnist", image, label), sentence)


def test_files_named_by_data_are_never_opened(tmp_path):
    (tmp_path / "real.png").write_bytes(IMAGE)
    cells = [{"bytes": None, "path": str(tmp_path / "real.png")}]
    refused("mnist", parquet(tmp_path / "mnist", cells, [0]), "never opened")


def test_a_table_without_the_columns_says_which_it_has(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    for part in ("train", "test"):
        pq.write_table(pa.table({"a": [1], "b": [2]}), tmp_path / f"{part}.parquet")
    refused("mnist", tmp_path, "it has no column image (its columns: a, b)")
    pq.write_table(table("mnist", small("mnist"), "train"), tmp_path / "train.parquet")
    refused("mnist", tmp_path, "it has no column image")
    (tmp_path / "test.parquet").unlink()
    refused("mnist", tmp_path, "no part for testing")


@pytest.mark.parametrize("damage", ["empty", "nonsense", "cut", "no footer", "bits"])
def test_damaged_parquet_files_are_refused(damage, tmp_path):
    write_parquet(tmp_path, "mnist", small("mnist"), shards=1)
    path = next(tmp_path.glob("train*"))
    raw = bytearray(path.read_bytes())
    match damage:
        case "empty":
            raw = b""
        case "nonsense":
            raw = b"PAR1" + os.urandom(100) + b"PAR1"
        case "cut":
            raw = raw[: len(raw) // 2]
        case "no footer":
            raw = raw[:-8] + struct.pack("<I", 2**31) + b"PAR1"
        case "bits":
            raw[4:200] = bytes(196)
    path.write_bytes(raw)
    refused("mnist", tmp_path, "not a valid data set")


# ── texts ────────────────────────────────────────────────────────────────────────────────────────────────────────────
LEAF = {
    "not json": (b"{", "not a valid data set"),
    "not utf-8": (b"\xff\xfe\xff", "not a valid data set"),
    "a list": (b"[]", "it has no user_data"),
    "no users": (b'{"user_data": {}}', "0 training"),
    "no lists": (b'{"user_data": {"a": {"x": "text", "y": []}}}', "x of user 'a' is not a list of texts"),
    "numbers": (b'{"user_data": {"a": {"x": [1], "y": [2]}}}', "x of user 'a' is not a list of texts"),
    "short": (b'{"user_data": {"a": {"x": ["to be"], "y": ["!"]}}}', "must be 80 characters long, got 5"),
    "uneven": (json.dumps({"user_data": {"a": {"x": ["x" * 80], "y": []}}}).encode(), "1 inputs for 0 targets"),
    "two letters": (json.dumps({"user_data": {"a": {"x": ["x" * 80], "y": ["ab"]}}}).encode(), "1 characters long, got 2"),
    "long name": (json.dumps({"user_data": {"a" * 999: {"x": ["x" * 80], "y": ["a"]}}}).encode(), "at most 256 characters"),
    "deep": (b"[" * 100_000, "not a valid data set"),
}  # fmt: skip


@pytest.mark.parametrize("case", LEAF)
def test_unsound_leaf_files_are_refused(case, tmp_path):
    raw, sentence = LEAF[case]
    (tmp_path / "all.json").write_bytes(raw)
    refused("shakespeare", tmp_path / "all.json", sentence)


def test_texts_without_roles_are_refused(tmp_path):
    path = tmp_path / "play.txt"
    path.write_bytes(b"\xff\xfe\x00 not utf-8")
    refused("shakespeare", path, "not a valid data set")
    path.write_text("Once upon a time\n\nthere was no one who spoke.\n")
    refused("shakespeare", path, "no speaking roles")
    path.write_text("ROMEO:\nAy me!\n")
    refused("shakespeare", path, "0 training")
    with path.open("wb") as file:
        file.truncate(2**30)  # a hole of a gibibyte
    refused("shakespeare", path, "the text would be 1,024 MiB")


def test_sentences_must_be_texts(home):
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = home / "train.parquet"
    for cells, sentence in (([1, 2], "got int"), ([["a"], [None]], "got list"), (["a", None], "got NoneType")):
        pq.write_table(pa.table({"client_id": ["a", "b"], "tokens": pa.array(cells)}), path)
        refused("stackoverflow", path, f"a sentence must be a text or a list of words, {sentence}")
    pq.write_table(pa.table({"client_id": ["a", None], "tokens": ["x", "y"]}), path)
    refused("stackoverflow", path, "must hold the owner of every sample")


# ── bombs ────────────────────────────────────────────────────────────────────────────────────────────────────────────
PROGRAM = """
import gzip, re, sys, zipfile
from pyarrow.parquet import ParquetFile
from PIL import Image
import fedmos as fm

decoded = 0

def counting(read):
    def counted(*arguments):
        global decoded
        piece = read(*arguments)
        decoded += len(piece)
        return piece
    return counted

def counting_batches(iter_batches):
    def counted(*arguments, **options):
        global decoded
        for batch in iter_batches(*arguments, **options):
            decoded += batch.nbytes
            yield batch
    return counted

zipfile.ZipExtFile.read = counting(zipfile.ZipExtFile.read)
gzip.GzipFile.read = counting(gzip.GzipFile.read)
ParquetFile.iter_batches = counting_batches(ParquetFile.iter_batches)

def peak():  # getrusage would begin with the parent's
    return int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1]) / 1024

before = peak()
for root in sys.argv[1:]:
    decoded = 0
    try:
        fm.datasets.load("mnist", root)
        print("loaded", root)
    except ValueError as error:
        print(decoded, error)
print(peak() - before)
"""


def bombs(folder: Path) -> list[Path]:
    """Small files that would be 220 MiB and more: an npz, a gzipped IDX file, and two tables."""
    import pyarrow as pa

    made = []
    path = write_npz(folder, "mnist", {k: v for k, v in small("mnist").items() if k != "x_train"})
    count = 220 * 2**20 // 784
    with (
        zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED, compresslevel=1) as archive,
        archive.open("x_train.npy", "w") as member,
    ):
        member.write(npy(f"({count}, 28, 28)"))
        for rows in np.array_split(np.arange(count), 75):
            member.write(bytes(784 * len(rows)))
    made.append(path)

    (folder / "idx").mkdir()
    write_idx(folder / "idx", small("mnist"))
    images = next((folder / "idx").glob("train-images*"))
    images.write_bytes(images.read_bytes() + gzip.compress(bytes(8 * 2**20), 1) * 50)
    made.append(folder / "idx")

    value = bytes(220 * 2**20)  # one row that is larger than the whole set may be
    made.append(parquet(folder / "row" / "mnist", [value], [0]))
    value = bytes(8 * 2**20)  # one value, stored once, that stands in every row: 8 MiB for 2,000 rows
    repeated = pa.DictionaryArray.from_arrays(pa.array(np.zeros(2000, np.int32)), pa.array([value]))
    made.append(parquet(folder / "repeated" / "mnist", repeated, np.zeros(2000, np.int64)))
    return made


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is measured the Linux way")
@pytest.mark.extended
def test_decompression_bombs_are_refused_before_they_are_decoded(tmp_path):
    made = bombs(tmp_path)
    for path in made:
        size = sum(p.stat().st_size for p in ([path] if path.is_file() else path.rglob("*")) if p.is_file())
        assert size < 4 * 2**20
    done = subprocess.run([sys.executable, "-c", PROGRAM, *map(str, made)], capture_output=True, text=True, timeout=60)
    *lines, grown = done.stdout.splitlines()
    assert len(lines) == len(made), done.stderr
    for line, sentence in zip(
        lines,
        ("x_train would be 220 MiB", "the file is longer", "the table would be 220 MiB", "not a valid image"),
        strict=True,
    ):
        assert sentence in line
        assert int(line.split()[0]) < 80 * 2**20, line
    assert float(grown) < 200, done.stdout


def test_a_set_larger_than_the_published_one_is_stopped_on_the_way(tmp_path, monkeypatch):
    """No single array is too large here, but all of them together are."""
    monkeypatch.setattr(type(CATALOG["mnist"]), "limit", property(lambda self: 30 * 784))
    refused("mnist", write_npz(tmp_path, "mnist", small("mnist", train=25, test=20)), "the decoded set would be")


def test_a_pipe_is_not_waited_for(tmp_path):
    for name in ("mnist.npz", "train-images-idx3-ubyte", "train-0.parquet"):
        os.mkfifo(tmp_path / name)
    for root in (tmp_path, tmp_path / "mnist.npz"):
        with pytest.raises(FileNotFoundError):
            fm.datasets.load("mnist", root)


def test_links_out_of_a_root_are_the_user_s_own(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "root").mkdir()
    path = write_npz(tmp_path / "elsewhere", "mnist", small("mnist"))
    (tmp_path / "root" / "mnist.npz").symlink_to(path)
    assert len(fm.datasets.load("mnist", tmp_path / "root").x_train) == 25
    path.unlink()
    with pytest.raises(FileNotFoundError):
        fm.datasets.load("mnist", tmp_path / "root")
