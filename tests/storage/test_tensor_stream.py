"""The stream of tensors is a safetensors file with the same content as the library's."""

import pytest
import safetensors.torch
import torch

from fedmos.storage import tensor_stream
from fedmos.storage.tensor_stream import encode_tensors

TENSORS = {
    "a": torch.randn(1000, 7),
    "transposed": torch.randn(5, 3).T,
    "number": torch.tensor(2.5, dtype=torch.float64),
    "none": torch.zeros(0, 4),
    "é": torch.arange(9, dtype=torch.int64),
    "bits": torch.tensor([True, False, True]),
    "half": torch.randn(3).to(torch.bfloat16),
    "bytes": torch.arange(5, dtype=torch.uint8),
}


@pytest.mark.parametrize("piece", [10, 2**24])
def test_the_library_reads_the_stream(tmp_path, monkeypatch, piece):
    monkeypatch.setattr(tensor_stream, "_PIECE", piece)
    path = tmp_path / "x.safetensors"
    path.write_bytes(b"".join(bytes(part) for part in encode_tensors(TENSORS)))
    found = safetensors.torch.load_file(path)
    assert set(found) == set(TENSORS)
    for name, v in TENSORS.items():
        assert (found[name].dtype, found[name].shape) == (v.dtype, v.shape)
        assert torch.equal(found[name], v)


def test_other_dtypes_are_left_to_the_library(tmp_path):
    tensors = {"z": torch.randn(3, dtype=torch.complex64), "a": torch.ones(2)}
    content = b"".join(bytes(part) for part in encode_tensors(tensors))
    found = safetensors.torch.load(content)
    assert all(torch.equal(found[name], v) for name, v in tensors.items())


def test_one_tensor_under_two_names():
    x = torch.randn(4)
    found = safetensors.torch.load(b"".join(bytes(part) for part in encode_tensors({"a": x, "b": x})))
    assert torch.equal(found["a"], x)
    assert torch.equal(found["b"], x)
