"""Max pooling in another layout returns what PyTorch's returns."""

import pytest
import torch

from fedmos.kernels.cpu_pooling import max_pool


@pytest.mark.parametrize(
    "how", [([2, 2], [2, 2]), ([3, 3], [3, 3]), ([3, 3], [2, 2], [1, 1]), ([2, 2], [2, 2], [0, 0], [1, 1], True)]
)
@pytest.mark.parametrize(
    "shape", [(250, 10, 24, 24), (7, 3, 9, 8), (1, 5, 6, 6), (6, 200, 5, 5), (2, 1, 4, 4)], ids=str
)
def test_pooling_is_pytorch_s(shape, how):
    """Values, indices and layout, with equal values and NaN."""
    images = torch.randint(0, 4, shape, generator=torch.Generator().manual_seed(0)).float()
    images[0, 0, 0, :2] = torch.nan
    for x in (images, images.contiguous(memory_format=torch.channels_last), images.double(), images[..., 1:]):
        expected = torch.ops.aten.max_pool2d_with_indices(x, *how)
        for ours, theirs in zip(max_pool(x, *how), expected, strict=True):
            assert torch.equal(ours.nan_to_num(9), theirs.nan_to_num(9))
            assert ours.stride() == theirs.stride()
