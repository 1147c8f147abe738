"""Dropout masks of a GPU are those of a CPU."""

import os

import pytest
import torch

from fedmos import rng

DEVICE = os.environ.get("FEDMOS_TEST_DEVICE", "cpu")

pytestmark = pytest.mark.skipif(
    DEVICE == "cpu" and not os.environ.get("TRITON_INTERPRET"), reason="needs a GPU, or Triton's interpreter"
)


@pytest.mark.parametrize("p", [0.0, 1e-300, 1e-12, 0.1, 0.5, 1 - 1e-12, 1.0])
@pytest.mark.parametrize("count", [0, 1, 5, 1023, 1024, 3000])
def test_masks_are_those_of_a_cpu(count, p):
    from fedmos.kernels import hash_mask

    key = rng.stream(0, 3, torch.arange(6), rng.Purpose.DROPOUT).view(2, 3)
    found = hash_mask.at_least(key.to(DEVICE), count, p)
    assert torch.equal(found.cpu(), rng.at_least(key, count, p))


def test_keys_need_not_be_contiguous():
    from fedmos.kernels import hash_mask

    key = rng.stream(0, 3, torch.arange(6), rng.Purpose.DROPOUT).view(2, 3)
    assert torch.equal(hash_mask.at_least(key.T.to(DEVICE), 9, 0.4).cpu(), rng.at_least(key.T, 9, 0.4))
