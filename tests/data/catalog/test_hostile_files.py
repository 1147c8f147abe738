"""Files that are broken, lie about themselves, or mean harm: each is refused with a sentence, after little work."""

import gzip
import json
import os
import pickle
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
from helpers.sources import (
    png,
    small,
    table,
    write_cifar,
    write_idx,
    write_npz,
    write_parquet,
)
from helpers.work import counting_calls

pytestmark = pytest.mark.usefixtures("home")

MOST_CALLS = 100_000
"""Function calls within which a bad file must be refused."""


def refused(name: str, root: Path, sentence: str) -> str:
    """Loading fails with the sentence, after little work, and leaves nothing behind."""
    with pytest.raises(ValueError) as error:
        counting_calls(lambda: fm.datasets.load(name, root), MOST_CALLS)
    assert str(error.value).startswith(f"Cannot load {root}")
    assert sentence in str(error.value)
    shelf = Path(os.environ["FEDMOS_DATA"]) / "store"
    assert not shelf.exists() or not list(shelf.iterdir())
    return str(error.value)


class Payload:
    """A pickle that writes a file when it is opened."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


# ── npz ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


def changed(**change):
    return lambda arrays: arrays | {k: v(arrays) if callable(v) else v for k, v in change.items()}


BAD_ARRAYS = {
    "label 255": (changed(y_train=np.full(25, 255, np.uint8)), "labels must be 0 … 9, got 255"),
    "label -1": (changed(y_test=np.full(10, -1)), "labels must be 0 … 9, got -1"),
    "labels of 64 bits": (changed(y_train=np.full(25, 2**63, np.uint64)), "labels must be 0 … 9, got 9223372036854775808"),
    "fractions for labels": (changed(y_train=np.zeros(25)), "targets float64"),
    "one-hot labels": (changed(y_train=np.eye(10, dtype=int)[np.zeros(25, int)]), "do not match targets of shape (25, 10)"),
    "a label short": (changed(y_train=np.zeros(24, int)), "25 samples do not match 24 labels (train)"),
    "nan": (changed(x_train=np.full((25, 28, 28), np.nan)), "images hold NaN or infinity"),
    "infinity": (changed(x_test=np.full((10, 28, 28), np.inf, np.float32)), "images hold NaN or infinity"),
    "normalised": (changed(x_train=np.full((25, 28, 28), -0.4), x_test=np.zeros((10, 28, 28))), "must be in 0 … 1 or 0 … 255"),
    "large pixels": (changed(x_train=np.full((25, 28, 28), 300)), "pixels must be 0 … 255, got 300"),
    "mixed types": (changed(x_test=np.zeros((10, 28, 28), np.float32)), "training samples are uint8"),
    "mixed sizes": (changed(x_test=np.zeros((10, 27, 28), np.uint8)), "test samples uint8 of (1, 27, 28)"),
    "flat": (changed(x_train=np.zeros((25, 784), np.uint8)), "images must be (n, height, width)"),
    "a scalar": (changed(x_train=np.uint8(3)), "x_train has the shape ()"),
    "five dimensions": (changed(x_train=np.zeros((25, 1, 1, 1, 1), np.uint8)), "x_train has the shape"),
    "nothing": (changed(x_train=np.zeros((0, 28, 28), np.uint8), y_train=np.zeros(0, int)), "0 training and 10 test samples"),
    "no pixels": (changed(x_train=np.zeros((25, 0, 28), np.uint8)), "are empty"),
    "texts": (changed(x_train=np.full((25, 28, 28), "x")), "inputs are <U1"),
    "complex": (changed(x_train=np.zeros((25, 28, 28), complex)), "x_train is complex128, not numbers"),
    "structured": (changed(x_train=np.zeros(25, [("a", "u1"), ("b", "O")])), "pickled objects"),
    "no x_test": (lambda a: {k: v for k, v in a.items() if k != "x_test"}, "it has no x_test"),
    "owners short": (changed(owner=np.zeros(24, int)), "do not match 24 owners"),
    "owners of fractions": (changed(owner=np.zeros(25)), "owner must be one number or name"),
    "owners beyond the names": (changed(owner=np.full(25, 3), owners=np.array(["a"])), "owner must be 0 … 0, got 3"),
    "owners alike": (changed(owner=np.arange(25) % 2, owners=np.array(["a", "a"])), "different names"),
    "long names": (changed(owner=np.full(25, "x" * 300)), "owner is <U300, not numbers"),
    "wrong names of classes": (changed(labels=np.array(["a"])), "labels must be 10 names"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD_ARRAYS)
def test_unsound_arrays_are_refused(case, tmp_path):
    change, sentence = BAD_ARRAYS[case]
    refused("mnist", write_npz(tmp_path, "mnist", change(small("mnist"))), sentence)


def test_a_pickle_in_an_npz_is_never_opened(tmp_path):
    mark = tmp_path / "opened"
    objects = np.array([Payload(mark)] * 25, dtype=object)
    for key in ("x_train", "y_train", "owner", "labels"):
        path = write_npz(tmp_path, "mnist", small("mnist") | {key: objects})
        refused("mnist", path, f"{key} holds pickled objects")
    path.write_bytes(pickle.dumps(Payload(mark)))
    refused("mnist", path, "not a zip file")
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x_train.npy", pickle.dumps(Payload(mark)))
        archive.writestr("y_train.npy", b"")
    refused("mnist", path, "magic string")
    assert not mark.exists()


def test_members_with_strange_names_are_left_alone(tmp_path):
    path = write_npz(tmp_path, "mnist", small("mnist"))
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("../../escaped.npy", b"x")
        archive.writestr(str(tmp_path / "absolute.npy"), b"x")
        archive.writestr("__import__('os').npy", b"x")
    assert len(fm.datasets.load("mnist", path).x_train) == 25
    assert not list(tmp_path.parent.rglob("escaped*"))
    assert not list(tmp_path.rglob("absolute*"))


@pytest.mark.parametrize("keep", [0, 1, 100, 0.3, 0.9, 0.999])
def test_cut_archives_are_refused(keep, tmp_path):
    path = write_npz(tmp_path, "mnist", small("mnist"))
    raw = path.read_bytes()
    path.write_bytes(raw[: keep if isinstance(keep, int) else int(keep * len(raw))])
    refused("mnist", path, "not a valid data set")


def test_flipped_bits_are_noticed(tmp_path):
    path = write_npz(tmp_path, "mnist", small("mnist"))
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 3] ^= 0x10
    path.write_bytes(raw)
    refused("mnist", path, "not a valid data set")


def npy(shape: str, payload: bytes = b"", descr: str = "|u1", version: int = 1) -> bytes:
    """An array file with any header."""
    header = f"{{'descr': {descr!r}, 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    return (
        b"\x93NUMPY" + bytes((version, 0)) + struct.pack("<H" if version == 1 else "<I", len(header)) + header + payload
    )


HEADERS = {
    "huge": (npy("(60000, 60000, 60000)"), "x_train would be"),
    "beyond 64 bits": (npy(f"({2**70}, 28, 28)"), "x_train would be"),
    "negative": (npy("(-25, 28, 28)"), "x_train has the shape"),
    "longer than the file": (npy("(25, 28, 28)", bytes(100)), "x_train is not as long as its header says"),
    "shorter than the file": (npy("(25, 28, 28)", bytes(25 * 784 + 1)), "x_train is not as long as its header says"),
    "not a tuple": (npy("25"), "shape is not valid"),
    "code": (npy("__import__('os').mkdir('opened')"), "malformed node"),
    "endless": (npy("(25, 28, 28)" + " " * 20_000), "max_header_size"),
    "deep": (npy("(" * 3000 + ")" * 3000), "not a valid data set"),
    "object": (npy("(25,)", b"cos\nsystem\n", descr="|O"), "pickled objects"),
    "unknown version": (npy("(25, 28, 28)", version=9), "unknown header"),
    "unknown type": (npy("(25, 28, 28)", bytes(25 * 784), descr="|V1"), "not numbers"),
    "nonsense": (b"\x93NUMPY\x01\x00\xff\xff", "not a valid data set"),
}


@pytest.mark.parametrize("case", HEADERS)
def test_headers_that_lie_are_refused(case, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    raw, sentence = HEADERS[case]
    path = write_npz(tmp_path, "mnist", {k: v for k, v in small("mnist").items() if k != "x_train"})
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("x_train.npy", raw)
    refused("mnist", path, sentence)
    assert not (tmp_path / "opened").exists()


@pytest.mark.parametrize("declared", [10, 10**9, 2**32 - 2])
def test_an_entry_whose_size_lies_is_refused(declared, tmp_path):
    path = write_npz(tmp_path, "mnist", small("mnist"))
    raw = bytearray(path.read_bytes())
    where = raw.index(b"x_train.npy", raw.index(b"PK\x01\x02"))
    struct.pack_into("<I", raw, where - 46 + 24, declared)  # the size in the central directory
    path.write_bytes(raw)
    refused("mnist", path, "x_train")


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_compressions_that_cannot_be_bounded_are_refused(method, tmp_path):
    path = tmp_path / "mnist.npz"
    with zipfile.ZipFile(path, "w", method) as archive:
        archive.writestr("x_train.npy", npy("(25, 28, 28)", bytes(25 * 784)))
    refused("mnist", path, "compressed in a way that numpy does not use")


# ── IDX and CIFAR ────────────────────────────────────────────────────────────────────────────────────────────────────

IDX = {
    "cut": (lambda raw: raw[:-1], "it ends 1 bytes early"),
    "longer": (lambda raw: raw + b"!", "the file is longer than its header declares"),
    "no header": (lambda raw: raw[:3], "it ends 1 bytes early"),
    "empty": (lambda raw: b"", "it ends 4 bytes early"),
    "other magic": (lambda raw: b"\x00\x00\x0d\x03" + raw[4:], "does not begin like an IDX file"),
    "labels for images": (lambda raw: b"\x00\x00\x08\x01" + raw[4:], "does not begin like an IDX file"),
    "huge": (lambda raw: raw[:4] + b"\xff" * 12 + raw[16:], "the array would be"),
    "other count": (lambda raw: raw[:4] + struct.pack(">I", 24) + raw[8:], "24 images for the 25 labels"),
    "no pixels": (lambda raw: raw[:8] + struct.pack(">I", 0) + raw[12:], "are empty"),
}


@pytest.mark.parametrize("gz", [False, True])
@pytest.mark.parametrize("case", IDX)
def test_unsound_idx_files_are_refused(case, gz, tmp_path):
    change, sentence = IDX[case]
    write_idx(tmp_path, small("mnist"), gz=gz)
    path = next(tmp_path.glob("train-images*"))
    raw = gzip.decompress(path.read_bytes()) if gz else path.read_bytes()
    path.write_bytes(gzip.compress(change(raw)) if gz else change(raw))
    refused("mnist", tmp_path, sentence)


@pytest.mark.parametrize("keep", [2, 20, -1, -9])
def test_cut_gzip_files_are_refused(keep, tmp_path):
    write_idx(tmp_path, small("mnist"))
    path = next(tmp_path.glob("train-labels*"))
    path.write_bytes(path.read_bytes()[:keep])
    refused("mnist", tmp_path, "Cannot load")
    path.write_bytes(b"not gzip at all")
    refused("mnist", tmp_path, "Not a gzipped file")


def test_unsound_cifar_files_are_refused(tmp_path):
    write_cifar(tmp_path, "cifar10", small("cifar10"))
    path = tmp_path / "data_batch_2.bin"
    raw = path.read_bytes()
    path.write_bytes(raw[:-1])
    refused("cifar10", tmp_path, "are not a number of records of 3073 bytes")
    path.write_bytes(b"\xff" + raw[1:])
    refused("cifar10", tmp_path, "labels must be 0 … 9, got 255")
    path.write_bytes(b"")
    refused("cifar10", tmp_path, "its 0 bytes")


@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
def test_cifar_s_pickles_are_refused_by_name(name, tmp_path):
    mark = tmp_path / "opened"
    folder = tmp_path / {"cifar10": "cifar-10-batches-py", "cifar100": "cifar-100-python"}[name]
    folder.mkdir()
    for file in ("data_batch_1", "test_batch", "train", "test", "meta"):
        (folder / file).write_bytes(pickle.dumps(Payload(mark)))
    with pytest.raises(FileNotFoundError, match="a pickle, which could run code when opened; get the binary version"):
        fm.datasets.load(name, tmp_path)
    with pytest.raises(ValueError, match=r"not one of the supported files of cifar|a pickle"):
        fm.datasets.load(name, folder / "data_batch_1")
    (tmp_path / "mnist.pkl").write_bytes(pickle.dumps(Payload(mark)))
    refused("mnist", tmp_path / "mnist.pkl", "not one of the supported files of mnist")
    assert not mark.exists()


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
