"""Max pooling in another layout returns what PyTorch's returns."""

import pytest
import torch

from fedmos.kernels.cpu_layouts import max_pool, max_pool_backward


@pytest.mark.parametrize(
    "how",
    [
        ([2, 2], [2, 2], [0, 0], [1, 1], False),
        ([3, 3], [3, 3], [0, 0], [1, 1], False),
        ([3, 3], [2, 2], [1, 1], [1, 1], False),
        ([2, 2], [2, 2], [0, 0], [1, 1], True),
    ],
)
@pytest.mark.parametrize(
    "shape", [(250, 10, 24, 24), (7, 3, 9, 8), (1, 5, 6, 6), (6, 200, 5, 5), (2, 1, 4, 4)], ids=str
)
def test_pooling_is_pytorch_s(shape, how):
    """Values, indices and layout, with equal values and NaN."""
    images = torch.randint(0, 4, shape, generator=torch.Generator().manual_seed(0)).float()
    images[0, 0, 0, :2] = torch.nan
    for x in (images, images.double()):
        expected = torch.ops.aten.max_pool2d_with_indices(x, *how)
        apart = x[None].transpose(0, 1).contiguous(memory_format=torch.channels_last_3d)
        for given in (x, apart):
            for ours, theirs in zip(max_pool(given, *how), expected, strict=True):
                assert torch.equal(ours.nan_to_num(9), theirs.nan_to_num(9))
                assert ours.stride() == theirs.stride()
        g = torch.randn_like(expected[0])
        backward = torch.ops.aten.max_pool2d_with_indices_backward(g, x, *how, expected[1])
        ours = max_pool_backward(g, x.shape, *how, expected[1])
        assert torch.equal(ours, backward)
        assert ours.stride() == backward.stride()
