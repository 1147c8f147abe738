"""Operations in another layout return what PyTorch's return."""

import pytest
import torch
from torch import fx

from fedmos.engine.recorded import _Recorder
from fedmos.kernels.cpu_layouts import (
    add_channels,
    add_channels_in_place,
    max_pool,
    max_pool_backward,
    rewrite,
    threshold_backward,
)


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


def test_gradients_of_relu_are_pytorch_s():
    x = torch.randn(3, 4, 5, 6, 6, generator=torch.Generator().manual_seed(0)).relu()
    for g in (torch.randn(3, 4, 6, 6, 5).permute(0, 1, 4, 2, 3), torch.randn(3, 4, 5, 6, 6)):
        expected = torch.ops.aten.threshold_backward(g, x, 0)
        assert torch.equal(threshold_backward(g, x, 0), expected)
        assert threshold_backward(g, x, 0).stride() == expected.stride()


def test_biases_are_added_in_place_only_to_what_nothing_else_uses():
    """The result of the convolution is used twice in the second program."""

    def once(x, w, b):
        y = torch.ops.aten.convolution(x, w, None, [1, 1], [0, 0], [1, 1], False, [0, 0], 3)
        return (y.view(4, 3, 2, 6, 6).permute(1, 0, 2, 3, 4) + b[:, 1:].view(3, 1, 2, 1, 1),)

    def twice(x, w, b):
        y = torch.ops.aten.convolution(x, w, None, [1, 1], [0, 0], [1, 1], False, [0, 0], 3)
        return (y.view(4, 3, 2, 6, 6).permute(1, 0, 2, 3, 4) + b[:, 1:].view(3, 1, 2, 1, 1), y * 2)

    given = torch.randn(4, 3, 8, 8), torch.randn(6, 1, 3, 3), torch.randn(3, 3)
    for function, used in ((once, add_channels_in_place), (twice, add_channels)):
        recorder = _Recorder(given)
        with recorder:
            values = function(*given)
        graph = recorder._graph
        graph.output(tuple(map(recorder._node, values)))
        rewrite(graph)
        assert [n.target for n in graph.nodes if n.target in (add_channels, add_channels_in_place)] == [used]
        replayed = fx.GraphModule({}, graph)(*given)
        for ours, theirs in zip(replayed, values, strict=True):
            assert torch.equal(ours, theirs)
            assert ours.stride() == theirs.stride()
