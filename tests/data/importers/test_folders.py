"""The user's own folders of images."""

import os

import numpy as np
import pytest
import torch

import fedmos as fm
from fedmos import FederatedData
from helpers.own_data import pictures, save

Image = pytest.importorskip("PIL.Image")


def test_folders_of_clients(album):
    root, pixels = album
    for given in (root, str(root)):
        data = FederatedData.from_folder(given)
        assert data.names == ["ann", "bob"]
        assert data.labels == ["cat", "größe 2"]
        assert data.x.dtype == torch.uint8
        assert np.array_equal(data.x, pixels[:, None])
        assert np.array_equal(data.client(1)[0], pixels[4:, None])
        assert data.client(0)[1].tolist() == [0, 0, 1, 1]
        assert data.client(1)[1].tolist() == [0, 0, 1]
        assert data.test is None
    shown = data.inputs(data.x)
    assert shown.numpy() == pytest.approx(pixels[:, None] / 127.5 - 1, abs=1e-5)


def test_folders_of_classes(tmp_path):
    pixels = pictures(6, 3, 3, 3)
    for i, p in enumerate(pixels):
        save(tmp_path, f"{'xy'[i % 2]}/{i}.png", p)
    data = FederatedData.from_folder(tmp_path, fm.partition.Dirichlet(alpha=0), clients=2)
    assert data.names is None
    assert data.labels == ["x", "y"]
    seen = {int(y[0]): x for x, y in (data.client(i) for i in range(2))}
    for label in (0, 1):
        order = np.moveaxis(pixels[label::2], -1, 1)
        assert sorted(x.tolist() for x in seen[label]) == sorted(order.tolist())
    with pytest.raises(ValueError, match="from_folder: 'partition' must be given"):
        FederatedData.from_folder(tmp_path)


def test_folders_for_training_and_testing(tmp_path):
    pixels = pictures(9, 3, 4)
    for i, p in enumerate(pixels[:6]):
        save(tmp_path, f"train/u{i % 2}/{'xyz'[i % 3]}/{i}.png", p)
    for i, p in enumerate(pixels[6:8]):
        save(tmp_path, f"test/{'zy'[i]}/{i}.png", p)
    save(tmp_path, "elsewhere/q/1.png", pixels[8])  # neither
    data = FederatedData.from_folder(tmp_path)
    assert data.names == ["u0", "u1"]
    assert data.labels == ["x", "y", "z"]
    assert data.sizes.tolist() == [3, 3]
    assert data.test[1].tolist() == [1, 2]
    assert np.array_equal(data.test[0], pixels[[7, 6], None])
    save(tmp_path, "test/new/1.png", pixels[8])
    with pytest.raises(ValueError, match="test images have a class that training images lack: new"):
        FederatedData.from_folder(tmp_path)


def test_folders_of_clients_for_training_and_testing(tmp_path):
    pixels = pictures(9, 3, 4)
    places = ("train/u0/x", "train/u0/y", "train/u1/x", "train/u1/y", "test/u0/y", "test/u1/x", "test/u1/y")
    for i, place in enumerate(places):
        save(tmp_path, f"{place}/{i}.png", pixels[i])
    data = FederatedData.from_folder(tmp_path)
    assert data.names == ["u0", "u1"]
    assert data.sizes.tolist() == [2, 2]
    assert np.array_equal(data.test[0], pixels[4:7, None])  # of all clients, as without owners
    assert data.tests.x is data.test[0]
    assert [y.tolist() for _, y in data.tests] == [[1], [0, 1]]
    assert np.array_equal(data.tests["u1"][0], pixels[5:7, None])
    data.validate()
    one = FederatedData.from_folder(tmp_path, clients=1)
    assert one.tests[0][1].tolist() == data.tests[one.names[0]][1].tolist()
    assert FederatedData.from_folder(tmp_path, fm.partition.IID(), clients=2).tests is None
    save(tmp_path, "test/u2/x/7.png", pixels[7])  # no client of the training part
    other = FederatedData.from_folder(tmp_path)
    assert other.tests is None
    assert len(other.test[1]) == 4


def test_a_stray_image_beside_the_test_classes_is_refused(tmp_path):
    for name in ("train/x/1.png", "train/y/1.png", "test/x/1.png", "test/stray.png"):
        save(tmp_path, name, pictures(1, 3, 3)[0])
    with pytest.raises(ValueError, match="Cannot read"):
        FederatedData.from_folder(tmp_path, fm.partition.IID(), clients=2)


def test_grey_images_among_coloured_ones_have_three_equal_channels(tmp_path):
    grey, colour = pictures(1, 4, 4)[0], pictures(1, 4, 4, 3)[0]
    save(tmp_path, "a/x/1.png", grey)
    save(tmp_path, "a/x/2.png", colour)
    data = FederatedData.from_folder(tmp_path)
    assert data.x.shape == (2, 3, 4, 4)
    assert np.array_equal(data.x[0], np.stack([grey] * 3))
    assert np.array_equal(data.x[1], np.moveaxis(colour, -1, 0))


def test_images_of_many_kinds(tmp_path):
    """Truth values, transparency, JPEG, a suffix in capitals: as Pillow reads them."""
    colour = pictures(1, 8, 8, 3)[0]
    mask = Image.fromarray(pictures(1, 8, 8)[0]).convert("1")
    (tmp_path / "a" / "x").mkdir(parents=True)
    mask.save(tmp_path / "a/x/1.png")
    Image.fromarray(np.dstack([colour, np.full((8, 8), 255, np.uint8)])).save(tmp_path / "a/x/2.png")
    Image.fromarray(colour).save(tmp_path / "a/x/3.JPEG")
    Image.fromarray(colour).save(tmp_path / "a/x/4.BMP")
    data = FederatedData.from_folder(tmp_path)
    assert np.array_equal(data.x[0], np.stack([np.asarray(mask.convert("L"))] * 3))
    assert np.array_equal(data.x[1], np.moveaxis(colour, -1, 0))
    with Image.open(tmp_path / "a/x/3.JPEG") as image:
        assert np.array_equal(data.x[2], np.moveaxis(np.asarray(image.convert("RGB")), -1, 0))
    assert np.array_equal(data.x[3], data.x[1])


def test_palettes_with_transparency_are_sound_images(tmp_path):
    colour = np.zeros((4, 4, 4), np.uint8)
    colour[:2] = (200, 10, 30, 255)
    colour[2:] = (0, 90, 60, 128)
    (tmp_path / "a" / "x").mkdir(parents=True)
    image = Image.fromarray(colour).quantize(4)
    image.save(tmp_path / "a/x/1.png")
    data = FederatedData.from_folder(tmp_path)
    assert data.x.shape == (1, 3, 4, 4)
    assert data.x[0, :, 0, 0].tolist() == [200, 10, 30]


def test_deep_grey_images_are_scaled_or_refused(tmp_path):
    """Sixteen bits become eight; they are not cut off at 255."""
    deep = np.array([[0, 255, 256, 1000], [20_000, 40_000, 65_535, 30_000]], np.uint16)
    (tmp_path / "a" / "x").mkdir(parents=True)
    Image.fromarray(deep).save(tmp_path / "a/x/1.png")
    try:
        data = FederatedData.from_folder(tmp_path)
    except ValueError as error:
        assert "1.png" in str(error)  # noqa: PT017
    else:
        assert np.abs(data.x[0, 0].numpy() - deep / 257).max() <= 1


@pytest.mark.parametrize("size", [6, (6, 6), [6, 6], np.int64(6), (np.int64(3), 7)])
def test_images_are_resized(album, size):
    root, pixels = album
    save(root, "ann/cat/9.png", pictures(1, 9, 2)[0])
    height, width = (size, size) if isinstance(size, int | np.integer) else size
    data = FederatedData.from_folder(root, size=size)
    assert data.x.shape == (8, 1, height, width)
    expected = Image.fromarray(pixels[0]).resize((int(width), int(height)), Image.Resampling.BILINEAR)
    assert np.array_equal(data.x[0, 0], np.asarray(expected))


@pytest.mark.parametrize("size", [0, -1, 2.5, "8", (8,), (8, 8, 8), (0, 8), True])
def test_bad_sizes_get_a_sentence(album, size):
    with pytest.raises(ValueError, match=r"from_folder: 'size' must be an integer ≥ 1 or \(height, width\)"):
        FederatedData.from_folder(album[0], size=size)


def test_images_of_unequal_size_are_refused_by_name(album):
    save(album[0], "bob/cat/9.png", pictures(1, 4, 6)[0])
    with pytest.raises(ValueError, match=r"0\.png is 4×5, .*bob.cat.9\.png 4×6\); give 'size'"):
        FederatedData.from_folder(album[0])


def test_hidden_files_and_other_files_are_passed_over(album):
    root, pixels = album
    (root / "ann" / "cat" / ".0.png").write_bytes(b"no image")
    (root / "ann" / "cat" / "notes.txt").write_text("no image")
    (root / "ann" / "cat" / "Thumbs.db").write_bytes(b"no image")
    (root / "README.md").write_text("no image")
    (root / ".git" / "x").mkdir(parents=True)
    (root / ".git" / "x" / "1.png").write_bytes(b"no image")
    (root / "ann" / ".cache").mkdir()
    (root / "ann" / ".cache" / "1.png").write_bytes(b"no image")
    (root / "carl" / "cat").mkdir(parents=True)  # a client without images is none
    data = FederatedData.from_folder(root)
    assert np.array_equal(data.x, pixels[:, None])
    assert data.names == ["ann", "bob"]


@pytest.mark.parametrize(
    "harm", [lambda b: b"no", lambda b: b"", lambda b: b[:-40], lambda b: b[:40] + b"\0" * 30 + b[70:]]
)
def test_corrupt_images_are_refused_by_name(album, harm):
    path = album[0] / "bob" / "cat" / "1.png"
    path.write_bytes(harm(path.read_bytes()))
    with pytest.raises(ValueError, match=r"Cannot read .*bob.cat.1\.png because it is not a valid image"):
        FederatedData.from_folder(album[0])


def test_links_must_stay_inside(album, tmp_path):
    root, pixels = album
    save(tmp_path, "outside/cat/1.png", pictures(1, 4, 5, seed=1)[0])
    inside = root / "ann" / "cat" / "5.png"
    inside.symlink_to(root / "bob" / "cat" / "0.png")
    assert np.array_equal(FederatedData.from_folder(root).x[2], pixels[4, None])
    inside.unlink()
    inside.symlink_to(tmp_path / "outside" / "cat" / "1.png")
    with pytest.raises(ValueError, match=r"ann.cat.5\.png because it is a link that leads out of"):
        FederatedData.from_folder(root)
    inside.unlink()
    inside.symlink_to(os.path.join("..", "..", "..", "outside", "cat", "1.png"))
    with pytest.raises(ValueError, match=r"ann.cat.5\.png because it is a link that leads out of"):
        FederatedData.from_folder(root)


@pytest.mark.parametrize("where", ["carl", "ann/dog", "train"])
def test_folders_that_are_links_must_stay_inside(album, tmp_path, where):
    """Neither read nor left out in silence: somebody who links to a folder expects it to count."""
    root, _ = album
    save(tmp_path, "outside/cat/1.png", pictures(1, 4, 5, seed=1)[0])
    save(tmp_path, "outside/1.png", pictures(1, 4, 5, seed=1)[0])
    (root / where).symlink_to(tmp_path / "outside")
    with pytest.raises(ValueError, match="because it is a link that leads out of"):
        FederatedData.from_folder(root)


def test_invalid_folders_are_refused(album, tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere because it is not a folder"):
        FederatedData.from_folder(tmp_path / "nowhere")
    with pytest.raises(FileNotFoundError, match=r"0\.png because it is not a folder"):
        FederatedData.from_folder(album[0] / "ann" / "cat" / "0.png")
    (tmp_path / "empty" / "x").mkdir(parents=True)
    with pytest.raises(ValueError, match="CLASS/image or in CLIENT/CLASS/image; there are none"):
        FederatedData.from_folder(tmp_path / "empty")
    save(album[0], "loose.png", pictures(1, 4, 5)[0])
    with pytest.raises(ValueError, match=r"CLASS/image or in CLIENT/CLASS/image; folders are \[0, 2\] deep"):
        FederatedData.from_folder(album[0])
