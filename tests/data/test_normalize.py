"""The scale of a normalisation follows from the type of the inputs."""

import warnings

import numpy as np
import pytest
import torch

import fedmos as fm


def federation(x, **normalize):
    y = torch.zeros(len(x), dtype=torch.int64)
    return fm.FederatedData.from_arrays([(x, y)]).declare(normalize=fm.Normalize(mean=0.5, std=0.5, **normalize))


def test_bytes_are_divided_by_255():
    data = federation(torch.tensor([[0, 255]], dtype=torch.uint8))
    assert data.normalize == fm.Normalize(0.5, 0.5, scale=255.0)
    assert data.inputs(data.x).tolist() == [[-1, 1]]


def test_tables_are_not_divided():
    data = federation(torch.tensor([[0.5, -1.0]]))
    assert data.normalize.scale == 1
    assert data.inputs(data.x).tolist() == [[0, -3]]
    assert fm.Normalize(0.5, 0.5)(data.x, torch.float32).tolist() == [[0, -3]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64])
def test_numbers_that_could_be_pixels_get_a_warning(dtype):
    pixels = torch.tensor([[0, 128, 255]]).to(dtype)
    with pytest.warns(UserWarning, match=f"'scale' is 1 because the inputs are {str(dtype)[6:]}; use scale=255"):
        assert federation(pixels).normalize.scale == 1
    with pytest.warns(UserWarning, match="use scale=255"):
        fm.Dataset("pixels", pixels.numpy(), np.zeros(1, np.int64), normalize=fm.Normalize(0.5, 0.5))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for scale in (1, 255):
            assert federation(pixels, scale=scale).normalize.scale == scale


def test_the_same_fingerprint_as_with_a_scale():
    x = torch.arange(8, dtype=torch.uint8)[:, None]
    assert federation(x).fingerprint() == federation(x, scale=255.0).fingerprint()


@pytest.mark.parametrize("name", ["normalize", "augment"])
def test_what_is_no_normalisation_or_augmentation(name):
    digits = fm.datasets.load("digits")
    for data in (digits, digits.partition(fm.partition.IID(), clients=2)):
        with pytest.raises(ValueError, match=rf"'{name}' must be a fedmos.{name.capitalize()} or None, got 0.5"):
            data.declare(**{name: 0.5})
