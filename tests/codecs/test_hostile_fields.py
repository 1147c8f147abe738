"""Fields from elsewhere that no encoder returns are refused with a sentence."""

from contextlib import suppress

import pytest
import torch

from fedmos.codecs import Chain, ErrorFeedback, Float16, Quantize, RandomK, Rotate, Sign, TopK
from fedmos.codecs.packing import pack, pack_indices
from helpers.codecs import CODECS, normal

SIZE = 1000


@pytest.mark.parametrize("codec", CODECS, ids=str)
@pytest.mark.parametrize("rows", [(), (3,)], ids=["vector", "cohort"])
def test_every_field_is_checked(codec, rows):
    fields = codec.encode(normal(*rows, SIZE), 4)
    codec.check(fields, SIZE)
    with pytest.raises(ValueError, match="'fields' must be"):
        codec.check(fields | {"more": torch.zeros(1)}, SIZE)
    for name, v in fields.items():
        short = name.partition(".")[2] or name
        with pytest.raises(ValueError, match="'fields' must be"):
            codec.check({key: other for key, other in fields.items() if key != name}, SIZE)
        for wrong in (v.to(torch.int16), None, v.tolist()):
            with pytest.raises(ValueError, match=f"{short}' must be a tensor of torch"):
                codec.check(fields | {name: wrong}, SIZE)
        for wrong in (v[..., :-1], torch.cat([v, v], -1), v[None, None], v[..., 0].reshape(rows)):
            with pytest.raises(ValueError, match=f"{short}' must be of shape"):
                codec.check(fields | {name: wrong}, SIZE)
        if v.is_floating_point():
            for bad in (float("nan"), float("inf")):
                wrong = v.clone()
                wrong[..., -1] = bad
                with pytest.raises(ValueError, match=f"{short}' must be finite, got {bad}"):
                    codec.check(fields | {name: wrong}, SIZE)
                codec.check(fields | {name: wrong}, SIZE, finite=False)
    if rows and len(fields) > 1:
        first = next(iter(fields))
        with pytest.raises(ValueError, match="same number of vectors"):
            codec.check(fields | {first: fields[first][:2]}, SIZE)


@pytest.mark.parametrize("codec", CODECS, ids=str)
@pytest.mark.parametrize("rows", [(), (3,)], ids=["vector", "cohort"])
def test_decoding_makes_nothing_up(codec, rows):
    """Fields that were cut off, or belong to vectors of another size, are not decoded."""
    fields = codec.encode(normal(*rows, SIZE), 4)
    for name, v in fields.items():
        for wrong in (v[..., :-1], torch.cat([v, v], -1)):
            with pytest.raises(ValueError, match="' must be of shape"):
                codec.decode(fields | {name: wrong}, SIZE, 4)
        with pytest.raises(ValueError, match="'fields' must be"):
            codec.decode({key: other for key, other in fields.items() if key != name}, SIZE, 4)
    with pytest.raises(ValueError, match="' must be of shape"):
        codec.decode(fields, 2 * SIZE, 4)


@pytest.mark.parametrize("codec", [Quantize(4), Sign(), ErrorFeedback([TopK(0.5), Quantize(4)])], ids=str)
def test_negative_scales(codec):
    fields = codec.encode(normal(SIZE), 4)
    name = next(name for name in fields if name.endswith("scales"))
    with pytest.raises(ValueError, match=r"'scales' must be ≥ 0, got -1\.0"):
        codec.check(fields | {name: torch.full_like(fields[name], -1)}, SIZE)


def test_codes_beyond_the_last_level():
    codec = Quantize(4, stochastic=False)
    fields = codec.encode(normal(SIZE), 4)
    with pytest.raises(ValueError, match="Quantize: 'codes' must be ≤ 14, got 15"):
        codec.check(fields | {"codes": pack(torch.full((SIZE,), 15, dtype=torch.uint8), 4)}, SIZE)


@pytest.mark.parametrize(
    ("indices", "text"),
    [
        ([3, 1000], "'indices' must be < 1000, got 1000"),
        ([1023, 1023], "'indices' must be < 1000, got 1023"),
        ([7, 7], "'indices' must be increasing, got 7"),
        ([7, 3], "'indices' must be increasing, got 3"),
    ],
)
@pytest.mark.parametrize("chain", [False, True])
def test_indices(indices, text, chain):
    codec = Chain([TopK(0.002), Float16()]) if chain else TopK(0.002)
    fields = codec.encode(normal(2, SIZE), 4)
    wrong = pack_indices(torch.tensor([[1, 2], indices]), 10)
    with pytest.raises(ValueError, match=f"TopK: {text}"):
        codec.check(fields | {("0." if chain else "") + "indices": wrong}, SIZE)


def test_random_bytes_are_refused_or_decoded():
    """Whatever passes the check is decoded to finite numbers."""
    generator = torch.Generator().manual_seed(0)
    passed = 0
    for codec in (Quantize(3), Quantize(2, stochastic=False), Sign(), TopK(0.01), RandomK(0.1), Float16(), Rotate()):
        for _ in range(30):
            fields = {
                name: torch.randint(0, 256, (length * width,), generator=generator, dtype=torch.uint8).view(dtype)
                for name, (kind, length) in codec.declare(50).items()
                for dtype in [torch.float32 if kind == "float" else kind]
                for width in [dtype.itemsize]
            }
            with suppress(ValueError):
                codec.check(fields, 50)
                passed += 1
                # Large finite numbers may overflow when they are added.
                assert not codec.decode(fields, 50, 0).isnan().any() or isinstance(codec, Rotate)
    assert passed
