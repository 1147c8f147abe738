"""Decoding of images (PNG, JPEG, …) to arrays, with a limit on the decoded size. Needs Pillow."""

from __future__ import annotations

import io
import os
import warnings
from typing import Any

import numpy as np

from ..core.validation import needs

_GREY = ("1", "L", "I", "I;16")
_MAX_PIXELS = 64_000_000
"""Larger images are rejected before they are decoded."""


def measure(source: str | os.PathLike[str]) -> tuple[bool, tuple[int, int]]:
    """Return whether the image has colours, and (height, width), without decoding it."""
    image_module = needs("PIL.Image", "Pillow", "read images")
    try:
        with image_module.open(source) as image:
            return image.mode not in _GREY, (image.height, image.width)
    except Exception as error:
        raise ValueError(f"not a valid image: {error}") from None


def _plain(image_module: Any, image: Any, gray: bool) -> Any:
    """Convert the image to 8 bits per pixel of grey, or of red, green and blue."""
    if image.mode.startswith("I"):  # 16 bits, of which Pillow would keep the lower ones
        image = image_module.fromarray((np.asarray(image).clip(0, 65535) >> 8).astype(np.uint8))
    if image.mode in ("P", "PA") and "transparency" in image.info:
        image = image.convert("RGBA")
    return image.convert("L" if gray or image.mode in _GREY else "RGB")


def decode(source: bytes | str | os.PathLike[str], size: tuple[int, int] | None = None, gray: bool = False) -> Any:
    """Decode an image to (channels, height, width), uint8.

    Args:
        source: The encoded image or the path of a file.
        size: (height, width) to which the image is resized.
        gray: Return one channel; otherwise, colour images have three.

    Raises:
        ValueError: If it is not a valid image.
    """
    image_module = needs("PIL.Image", "Pillow", "read images")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # Pillow warns of decompression bombs and inconsistent files
            with image_module.open(io.BytesIO(source) if isinstance(source, bytes) else source) as image:
                if image.width * image.height > _MAX_PIXELS:
                    raise ValueError(f"it has {image.width}×{image.height} pixels, more than {_MAX_PIXELS}")
                image = _plain(image_module, image, gray)
                if size is not None and (image.height, image.width) != size:
                    image = image.resize((size[1], size[0]), image_module.Resampling.BILINEAR)
                pixels = np.asarray(image)
    except Exception as error:  # Pillow's decoders raise exceptions of many types for broken files
        raise ValueError(f"not a valid image: {error}") from None
    return np.ascontiguousarray(pixels[None] if pixels.ndim == 2 else np.moveaxis(pixels, -1, 0))
