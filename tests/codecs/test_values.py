"""Values at the edges, ties, packing, determinism, and validation of parameters."""

import numpy as np
import pytest
import torch

import fedmos as fm
from fedmos.codecs import Chain, Codec, ErrorFeedback, Float16, Quantize, RandomK, Rotate, Sign, TopK, rotate
from fedmos.codecs.chain import as_codec, is_codec
from fedmos.codecs.codec import part_of
from fedmos.codecs.packing import pack, pack_indices, packed_length, unpack, unpack_indices
from helpers.codecs import CODECS, SIZES, decoded, normal, same


@pytest.mark.parametrize("codec", CODECS, ids=str)
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_non_finite_values_are_not_hidden(codec, bad):
    for size in (1, 9, 300):
        for place in {0, size // 2, size - 1}:
            v = normal(size)
            v[place] = bad
            cohort = torch.stack([normal(size), v, normal(size)])
            finite = decoded(codec, cohort, torch.tensor([1, 2, 3])).isfinite().all(dim=1)
            assert finite.tolist() == [True, False, True]


@pytest.mark.parametrize("codec", CODECS, ids=str)
def test_zeros_and_extreme_values(codec):
    for dtype in (torch.float32, torch.float64):
        assert not decoded(codec, torch.zeros(300, dtype=dtype), 0).any()
        for scale in (1e-44, 1e-38, 1e-20):
            v = normal(300, dtype=dtype) * scale
            arrived = decoded(codec, v, 0)
            assert arrived.isfinite().all()
            assert arrived.abs().max() <= 1000 * v.abs().max()
    if not isinstance(codec, Float16) and "Float16" not in str(codec):
        assert decoded(codec, normal(300) * 1e33, 0).isfinite().all()


def test_values_beyond_half_precision_are_infinite():
    assert decoded(Float16(), torch.tensor([1e5, 1.0]), 0).tolist() == [float("inf"), 1.0]


def test_levels():
    v = torch.tensor([-2.0, -1.0, 0.0, 0.49, 2.0])
    assert decoded(Quantize(2, stochastic=False), v, 0).tolist() == [-2, 0, 0, 0, 2]  # a tie is rounded up
    assert decoded(Quantize(8, stochastic=False), v, 0)[2] == 0
    assert Quantize(4, block=2).encode(v, 0)["scales"].tolist() == [2, pytest.approx(0.49), 2]
    ternary = torch.tensor([-1.5, 0.5, 1.5])
    assert torch.equal(decoded(Quantize(2), ternary, 7), ternary)  # levels are exact


def test_scales_of_float64_are_not_too_small():
    """A scale is rounded up to float32: the largest coordinate is within the levels."""
    v = normal(1000, 1, dtype=torch.float64).exp()
    scales = Quantize(8).encode(v, 0)["scales"]
    assert (scales.double() >= v).all()
    assert torch.allclose(scales.double(), v, rtol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_largest_coordinates_with_ties(dtype):
    generator = torch.Generator().manual_seed(1)
    for size, fraction in ((10, 0.3), (50, 0.1), (200, 0.33), (1000, 0.01)):
        v = torch.randint(-3, 4, (size,), generator=generator).to(dtype)
        k = part_of(fraction, size)
        best = sorted(range(size), key=lambda i: (-abs(v[i].item()), i))[:k]
        expected = torch.zeros_like(v)
        expected[best] = v[best]
        assert torch.equal(decoded(TopK(fraction), v, 0), expected)


def test_number_of_coordinates():
    assert [part_of(0.01, size) for size in (1, 99, 100, 101, 700, 1000)] == [1, 1, 1, 2, 7, 10]
    assert all(part_of(k / size, size) == k for size in range(1, 200) for k in range(1, size + 1))
    assert part_of(1e-9, 5) == 1
    assert part_of(1.0, 12345) == 12345


def test_packing():
    rng = np.random.default_rng(0)
    for width in range(1, 9):
        for count in SIZES:
            codes = rng.integers(0, 2**width, (3, count), dtype=np.uint8)
            packed = pack(torch.from_numpy(codes), width)
            assert packed.shape == (3, packed_length(count, width)) == (3, -(-count * width // 8))
            assert np.array_equal(unpack(packed, width, count).numpy(), codes)
            bits = (codes[..., None] >> np.arange(width)) & 1  # the first bit of an entry first
            assert np.array_equal(packed.numpy(), np.packbits(bits.reshape(3, -1), axis=1, bitorder="little"))


def test_packing_of_indices():
    rng = np.random.default_rng(0)
    for width in range(1, 32):
        for count in (1, 5, 8, 100):
            indices = torch.from_numpy(rng.integers(0, 2**width, (2, count)))
            packed = pack_indices(indices, width)
            assert packed.shape == (2, packed_length(count, width))
            assert torch.equal(unpack_indices(packed, width, count), indices)


@pytest.mark.parametrize("codec", CODECS, ids=str)
def test_deterministic_without_the_global_generator(codec):
    v, state = normal(2, 5000), torch.random.get_rng_state()
    first, again = codec.encode(v, 9), codec.encode(v.clone(), 9)
    assert same(first, again)
    assert torch.equal(codec.decode(first, 5000, 9), codec.decode(again, 5000, 9))
    assert torch.equal(torch.random.get_rng_state(), state)


@pytest.mark.parametrize("codec", [Quantize(4), RandomK(0.1), Rotate(), Chain([TopK(0.1), Quantize(2)])], ids=str)
def test_keys_matter(codec):
    v = normal(1000)
    assert not same(codec.encode(v, 1), codec.encode(v, 2))


@pytest.mark.parametrize("codec", CODECS, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_no_value_is_read_by_the_host(codec, dtype, monkeypatch):
    """Tensors without values raise where a shape or a branch depends on a value, and where devices are mixed."""
    monkeypatch.setattr(rotate, "Butterflies", rotate.Products)  # as on a GPU
    v, key = torch.empty(2, 5000, device="meta", dtype=dtype), torch.zeros(2, 1, dtype=torch.int64, device="meta")
    fields = codec.encode(v, key)
    declared = {name: (2, length) for name, (_, length) in codec.declare(5000).items()}
    assert {name: field.shape for name, field in fields.items()} == declared
    decoded = codec.decode(fields, 5000, key)
    assert (decoded.shape, decoded.device.type) == (v.shape, "meta")


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: Quantize(0), "Quantize: 'bits' must be an integer ≥ 1, got 0"),
        (lambda: Quantize(9), "Quantize: 'bits' must be ≤ 8, got 9"),
        (lambda: Quantize(4, block=0), "Quantize: 'block' must be an integer ≥ 1, got 0"),
        (lambda: Quantize(1, stochastic=False), "Cannot use Quantize with bits=1 and stochastic=False"),
        (lambda: TopK(0), r"TopK: 'fraction' must be in \(0, 1\], got 0"),
        (lambda: RandomK(1.5), r"RandomK: 'fraction' must be in \(0, 1\], got 1.5"),
        (lambda: RandomK(0.5, unbiased=1), "RandomK: 'unbiased' must be true or false, got 1"),
        (lambda: Rotate(12), "Rotate: 'block' must be a power of two, got 12"),
        (lambda: Sign(block=0), "Sign: 'block' must be an integer ≥ 1 or None, got 0"),
        (lambda: Chain([]), "Chain: 'codecs' must be a list of one or more codecs"),
        (lambda: Chain([TopK(0.1), 4]), "Chain: 'codecs' must be a list of one or more codecs"),
        (lambda: Chain([Quantize(4), TopK(0.1)]), "Cannot use TopK after Quantize because Quantize leaves no numbers"),
        (lambda: Chain([TopK(0.1), ErrorFeedback(Sign())]), "Cannot use ErrorFeedback within a chain"),
        (lambda: ErrorFeedback(ErrorFeedback(Sign())), "Cannot use ErrorFeedback in ErrorFeedback"),
        (lambda: ErrorFeedback(4), "ErrorFeedback: 'codec' must be a codec or a list of codecs, got 4"),
        (lambda: Quantize(4).encode(torch.zeros(3, 5), torch.zeros(2, dtype=torch.int64)), "'key' must be an int, or"),
        (
            lambda: Quantize(4).encode(torch.zeros(5), "a"),
            "'key' must be an int, or an int64 tensor of one key, got 'a'",
        ),
    ],
)
def test_refusals(make, text):
    with pytest.raises(ValueError, match=text):
        make()


@pytest.mark.parametrize("codec", CODECS, ids=str)
def test_a_vector_has_at_least_one_number(codec):
    assert codec.nbytes(1) > 0
    for size in (0, -1, 1.5, "3", None, True):
        with pytest.raises(ValueError, match=r"'size' must be an integer ≥ 1, got"):
            codec.nbytes(size)


def test_lists_are_chains():
    assert is_codec([TopK(0.1), Sign()])
    assert is_codec(Sign())
    assert not is_codec([])
    assert not is_codec("Sign")
    assert as_codec([Sign()]) == Sign()
    assert as_codec([Rotate(), Chain([TopK(0.1), Sign()])]) == Chain((Rotate(), TopK(0.1), Sign()))
    assert hash(ErrorFeedback([TopK(0.1), Sign()])) == hash(ErrorFeedback((TopK(0.1), Sign())))


def test_error_feedback_uses_contractions():
    assert ErrorFeedback(Quantize(4, block=8)).used == Quantize(4, block=8, stochastic=False)
    assert ErrorFeedback(Quantize(1, block=8)).used == Sign(block=8)
    assert ErrorFeedback([RandomK(0.1), Float16()]).used == Chain([RandomK(0.1, unbiased=False), Float16()])


def test_a_codec_must_define_its_methods():
    for call in (lambda c: c.declare(3), lambda c: c.encode(torch.zeros(3), 0), lambda c: c.decode({}, 3, 0)):
        with pytest.raises(TypeError, match="Codec must define"):
            call(Codec())


def test_uniform_numbers():
    for dtype, digits in ((torch.float32, 24), (torch.float64, 53)):
        u = fm.codecs.uniform(torch.arange(20)[:, None], torch.zeros(20, 10_000, dtype=dtype))
        assert u.dtype == dtype
        assert 0 <= u.min() < 1e-4
        assert 1 - 1e-4 < u.max() < 1
        assert torch.equal((u.double() * 2**digits) % 1, torch.zeros_like(u, dtype=torch.float64))
        assert abs(u.double().mean() - 0.5) < 5 * (1 / 12 / u.numel()) ** 0.5
