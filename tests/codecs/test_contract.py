"""Every codec: bytes as declared, a cohort as row by row, every form of key, inputs unchanged."""

import numpy as np
import pytest
import torch

from helpers.codecs import CODECS, SIZES, decoded, normal, same


@pytest.mark.parametrize("codec", CODECS, ids=str)
def test_bytes_are_those_of_the_buffers(codec):
    for size in SIZES:
        for dtype in (torch.float32, torch.float64):
            fields = codec.encode(normal(size, dtype=dtype), 3)
            assert codec.nbytes(size, dtype) == sum(v.nbytes for v in fields.values())
            assert list(fields) == list(codec.declare(size))
        assert codec.nbytes(size) == codec.nbytes(size, torch.float32)
        codec.check(fields, size)


@pytest.mark.parametrize("codec", CODECS, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_cohort_is_encoded_row_by_row(codec, dtype):
    for size in (1, 9, 1000):
        v, keys = normal(5, size, dtype=dtype), torch.tensor([3, -(2**62), 0, 7, 2**60 + 1])
        before = v.clone()
        cohort = codec.encode(v, keys[:, None])
        rows = codec.decode(cohort, size, keys[:, None])
        assert rows.shape == v.shape
        codec.check(cohort, size)
        for i, key in enumerate(keys):
            alone = codec.encode(v[i], key)
            assert same(alone, {name: field[i] for name, field in cohort.items()})
            assert torch.equal(codec.decode(alone, size, key), rows[i])
        assert torch.equal(v, before)


@pytest.mark.parametrize("codec", CODECS, ids=str)
def test_every_form_of_key(codec):
    v, key = normal(4, 100), 123456789
    one = [codec.encode(row, key) for row in v]
    for form in (
        key,
        np.int64(key),
        torch.tensor(key),
        torch.tensor([key]),
        torch.full((4,), key),
        torch.full((4, 1), key),
    ):
        fields = codec.encode(v, form)
        for i in range(4):
            assert same(one[i], {name: field[i] for name, field in fields.items()})
        assert torch.equal(codec.decode(fields, 100, form), decoded(codec, v, key))


@pytest.mark.parametrize("codec", CODECS, ids=str)
def test_memory_layouts(codec):
    """Vectors may be views of any kind; fields can be sent as they are."""
    keys = torch.arange(4)[:, None]
    for v in (normal(300, 4).T, normal(4, 600)[:, ::2], normal(1, 300).expand(4, -1), normal(4, 301)[:, 1:]):
        fields = codec.encode(v, keys)
        assert same(fields, codec.encode(v.contiguous(), keys))
        assert all(field.is_contiguous() for field in fields.values())
        transposed = {name: field.T.contiguous().T for name, field in fields.items()}
        assert torch.equal(codec.decode(transposed, 300, keys), codec.decode(fields, 300, keys))


@pytest.mark.parametrize("codec", CODECS, ids=str)
def test_parameters_that_are_trained(codec):
    """A vector of which a gradient can be computed has the same code."""
    v = normal(2, 300)
    fields = codec.encode(v.clone().requires_grad_(), 3)
    assert same({name: field.detach() for name, field in fields.items()}, codec.encode(v, 3))
    assert torch.equal(codec.decode(fields, 300, 3).detach(), decoded(codec, v, 3))


@pytest.mark.parametrize("codec", CODECS, ids=str)
def test_no_rows(codec):
    keys = torch.zeros(0, 1, dtype=torch.int64)
    fields = codec.encode(torch.zeros(0, 300), keys)
    assert {name: field.shape for name, field in fields.items()} == {
        name: (0, length) for name, (_, length) in codec.declare(300).items()
    }
    assert codec.decode(fields, 300, keys).shape == (0, 300)
