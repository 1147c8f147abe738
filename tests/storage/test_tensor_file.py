"""Files of tensors with a hash."""

from __future__ import annotations

import hashlib

import pytest
import torch

from fedmos.storage.tensor_file import read_tensors, write_tensors


def test_what_is_written_is_read(tmp_path):
    x = torch.randn(3, 4)
    tensors = {
        "x": x,
        "same": x,
        "part": x[:, 1],
        "number": torch.tensor(2.0, dtype=torch.float64),
        "bytes": torch.arange(5, dtype=torch.uint8),
        "half": torch.ones(3, dtype=torch.bfloat16),
        "none": torch.empty(0),
    }
    write_tensors(tmp_path / "a", tensors, {"run": "7"})
    read, metadata = read_tensors(tmp_path / "a")
    assert metadata == {"run": "7"}
    assert set(read) == set(tensors)
    assert all(torch.equal(read[name], v) and read[name].dtype == v.dtype for name, v in tensors.items())


def test_the_hash_is_that_of_names_and_bytes(tmp_path):
    """Files of earlier versions are read."""
    import safetensors.torch

    tensors = {"b": torch.arange(4.0), "a": torch.tensor([1, 2])}
    digest = hashlib.sha256()
    for name in ("a", "b"):
        digest.update(name.encode())
        digest.update(tensors[name].numpy().tobytes())
    (tmp_path / "a").write_bytes(safetensors.torch.save(tensors, {"sha256": digest.hexdigest()}))
    assert torch.equal(read_tensors(tmp_path / "a").tensors["b"], tensors["b"])


@pytest.mark.parametrize(
    ("harm", "sentence"),
    [
        (lambda content: content[:-1], "cannot be read"),
        (lambda content: b"", "cannot be read"),
        (lambda content: content[:-1] + bytes([content[-1] ^ 1]), "is damaged"),
        (lambda content: content.replace(b"sha256", b"sha255"), "is damaged"),
    ],
)
def test_damage_is_noticed(tmp_path, harm, sentence):
    write_tensors(tmp_path / "a", {"x": torch.randn(8)}, {})
    (tmp_path / "a").write_bytes(harm((tmp_path / "a").read_bytes()))
    with pytest.raises(ValueError, match=sentence):
        read_tensors(tmp_path / "a")
    with pytest.raises(FileNotFoundError):
        read_tensors(tmp_path / "b")
