"""CIFAR-10 without loss in 60 % of its size, in three parts that are small enough to be sent to a GPU machine.

    python benchmarks/device/cifar10.py pack ~/.cache/fedmos/cifar10.npz .carry     # .carry/cifar10-0, -1 and -2
    python benchmarks/device/cifar10.py unpack FOLDER cifar10.npz                   # FOLDER/cifar10.0, .1 and .2

A part holds blocks of images. A block holds the green, red minus green and blue minus green planes, each pixel as its
difference from the prediction by its left, upper and upper left neighbours (the median edge detector of JPEG-LS),
compressed by bz2.
"""

from __future__ import annotations

import bz2
import struct
import sys
from concurrent.futures import ProcessPoolExecutor
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

TRAIN, SIZE, BLOCK, PARTS = 50_000, 32, 2_000, 3
Planes = NDArray[np.int16]


def predict(left: Planes, up: Planes, corner: Planes) -> Planes:
    low, high = np.minimum(left, up), np.maximum(left, up)
    return np.clip(left + up - corner, low, high)


def encode(images: NDArray[np.uint8]) -> bytes:
    red, green, blue = np.moveaxis(images.astype(np.int16), -1, 0)
    planes = np.stack([green, red - green, blue - green])
    padded = np.pad(planes, ((0, 0), (0, 0), (1, 0), (1, 0)))
    residual = planes - predict(padded[..., 1:, :-1], padded[..., :-1, 1:], padded[..., :-1, :-1])
    return bz2.compress((residual & 255).astype(np.uint8).tobytes())


def decode(code: bytes) -> NDArray[np.uint8]:
    residual = np.frombuffer(bz2.decompress(code), np.uint8).reshape(3, -1, SIZE, SIZE).transpose(2, 3, 0, 1)
    planes = np.zeros((SIZE + 1, SIZE + 1, *residual.shape[2:]), np.int16)
    for i in range(SIZE):
        for j in range(SIZE):
            value = residual[i, j] + predict(planes[i + 1, j], planes[i, j + 1], planes[i, j])
            # Residuals are known modulo 256. Green is 0 to 255; differences are made so after all planes are known.
            value[0] &= 255
            value[1:] = _difference(value[1:], value[0])
            planes[i + 1, j + 1] = value
    green, red, blue = np.moveaxis(planes[1:, 1:], 2, 0)
    images = np.stack([red + green, green, blue + green], -1)
    return images.transpose(2, 0, 1, 3).astype(np.uint8)


def _difference(value: Planes, green: Planes) -> Planes:
    """Return the number that equals `value` modulo 256 and is in [−green, 255 − green]."""
    return ((value + green) & 255) - green


def pack(file: Path, folder: Path) -> None:
    with np.load(file) as data:
        images = np.concatenate([data["x_train"], data["x_test"]])
        labels = np.concatenate([data["y_train"], data["y_test"]]).astype(np.uint8)
    with ProcessPoolExecutor() as pool:
        codes = list(pool.map(encode, np.split(images, len(images) // BLOCK)))
    codes.append(bz2.compress(labels.tobytes()))
    ends = [len(codes) * part // PARTS for part in range(PARTS + 1)]
    for part, (start, end) in enumerate(pairwise(ends)):
        target = folder / f"cifar10-{part}"
        target.mkdir(parents=True, exist_ok=True)
        (target / "part").write_bytes(b"".join(struct.pack("<I", len(code)) + code for code in codes[start:end]))


def unpack(folder: Path, file: Path) -> None:
    codes = []
    for part in range(PARTS):
        content = (folder / f"cifar10.{part}").read_bytes()
        while content:
            (length,) = struct.unpack_from("<I", content)
            codes.append(content[4 : 4 + length])
            content = content[4 + length :]
    with ProcessPoolExecutor() as pool:
        images = np.concatenate(list(pool.map(decode, codes[:-1])))
    labels = np.frombuffer(bz2.decompress(codes[-1]), np.uint8)
    np.savez(file, x_train=images[:TRAIN], y_train=labels[:TRAIN], x_test=images[TRAIN:], y_test=labels[TRAIN:])


if __name__ == "__main__":
    {"pack": pack, "unpack": unpack}[sys.argv[1]](Path(sys.argv[2]), Path(sys.argv[3]))
