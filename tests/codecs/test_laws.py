"""What the codecs promise of errors: means, contraction, the sum of error feedback, orthogonality."""

import math

import pytest
import torch

from fedmos.codecs import Chain, ErrorFeedback, Quantize, RandomK, Rotate, Sign, TopK
from fedmos.codecs.rotate import Butterflies, Products
from helpers.codecs import decoded, normal

DRAWS = 200_000


def mean_error(codec, v):
    """Return |mean of decoded − v| and its standard error, over keys."""
    rows = decoded(codec, v.expand(DRAWS, -1), torch.arange(DRAWS)).double()
    return (rows.mean(0) - v).abs(), rows.std(0) / math.sqrt(DRAWS)


@pytest.mark.parametrize(
    "codec",
    [
        Quantize(1, block=4),
        Quantize(2),
        Quantize(3, block=2),
        Quantize(4),
        Quantize(8),
        RandomK(0.3),
        RandomK(0.8),
        Chain([Rotate(), Quantize(2)]),
        Chain([RandomK(0.5), Quantize(1)]),
        Chain([Rotate(4), RandomK(0.5), Rotate(2), Quantize(4, block=3)]),
    ],
    ids=str,
)
def test_mean_is_the_vector(codec):
    assert codec.unbiased
    v = torch.tensor([0.3, -1.7, 0.0, 0.011, 2.9, -0.4, 1.1])
    error, sigma = mean_error(codec, v)
    # Random numbers of 16 bits: a mean is exact to 2⁻¹⁵ of a step, which is at most twice the largest coordinate.
    assert (error <= 5 * sigma + 2**-14 * v.norm()).all()


@pytest.mark.parametrize(
    "codec", [Quantize(2, stochastic=False), Sign(), TopK(0.5), RandomK(0.5, unbiased=False)], ids=str
)
def test_biased_codecs_say_so(codec):
    assert not codec.unbiased
    error, sigma = mean_error(codec, torch.tensor([0.3, -1.7, 0.0, 0.011, 2.9, -0.4, 1.1]))
    assert (error > 5 * sigma + 0.1).any()


def test_variance_of_stochastic_rounding():
    """A coordinate at the share f of an interval Δ has the variance f (1 − f) Δ²."""
    v = torch.tensor([1.0, 0.5, 0.2, -0.1, -0.77])
    for bits in (1, 2, 4):
        step = 2 / (2**bits - 1)
        share = ((v.double() + 1) / step) % 1
        rows = decoded(Quantize(bits), v.expand(DRAWS, -1), torch.arange(DRAWS))
        assert torch.allclose(rows.double().var(0), share * (1 - share) * step**2, atol=0.01 * step**2)
        assert ((rows - v).abs() <= step + 1e-6).all()


def test_random_coordinates_are_sent_equally_often():
    for size, fraction in ((7, 0.3), (10, 0.5), (11, 0.95), (5, 0.01)):
        codec = RandomK(fraction, unbiased=False)
        k = codec.declare(size)["values"][1]
        sent = decoded(codec, torch.ones(DRAWS, size), torch.arange(DRAWS))
        assert (sent.sum(1) == k).all()  # k different coordinates
        p = k / size
        assert ((sent.mean(0) - p).abs() <= 5 * math.sqrt(p * (1 - p) / DRAWS)).all()


def vectors(size):
    """Vectors that are hard for one codec or another."""
    spike = torch.zeros(size)
    spike[size // 2] = -3.0
    worst = torch.full((size,), 1 / 14)  # halfway between two levels of 4 bits
    worst[0] = 1.0
    return {
        "normal": normal(size),
        "heavy tails": normal(size) ** 5,
        "spike": spike,
        "constant": torch.full((size,), -0.3),
        "half levels": worst,
        "small": normal(size) * 1e-30,
        "large": normal(size) * 1e12,
    }


def contraction(codec, size):
    """Return the δ that the documentation states."""
    if isinstance(codec, TopK):
        return codec.declare(size)["values"][1] / size
    block = min(size, codec.block or size)
    return 1 / block if isinstance(codec, Sign) else 1 / (1 + (block - 1) / (2**codec.bits - 2) ** 2)


BIASED = [TopK(0.01), TopK(0.3), Sign(), Sign(block=16), *(Quantize(b, stochastic=False) for b in (2, 4, 8))]


@pytest.mark.parametrize("codec", BIASED, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_contraction(codec, dtype):
    for size in (1, 5, 100, 1000):
        for name, v in vectors(size).items():
            v = v.to(dtype)
            lost = (decoded(codec, v, 0).double() - v).norm() ** 2
            assert lost <= (1 - contraction(codec, size) + 1e-5) * v.double().norm() ** 2, (name, size)


def test_contraction_of_sign_is_an_equality():
    v = normal(1000, dtype=torch.float64)
    delta = v.abs().sum() ** 2 / (1000 * v.norm() ** 2)
    assert (decoded(Sign(), v, 0) - v).norm() ** 2 == pytest.approx(float((1 - delta) * v.norm() ** 2), rel=1e-6)


def test_contraction_of_random_coordinates_in_the_mean():
    v = normal(10)
    lost = (decoded(RandomK(0.3, unbiased=False), v.expand(DRAWS, -1), torch.arange(DRAWS)) - v).norm(dim=1) ** 2
    assert abs(lost.mean() - 0.7 * v.norm() ** 2) <= 5 * lost.std() / math.sqrt(DRAWS)
    scaled = (decoded(RandomK(0.3), v.expand(DRAWS, -1), torch.arange(DRAWS)) - v).norm(dim=1) ** 2
    assert abs(scaled.mean() - (10 / 3 - 1) * v.norm() ** 2) <= 5 * scaled.std() / math.sqrt(DRAWS)


FEEDBACK = [
    TopK(0.05),
    RandomK(0.1),
    Sign(),
    Quantize(1),
    Quantize(4),
    [Rotate(), Quantize(4)],
    [TopK(0.1), Quantize(4)],
    [Rotate(), Quantize(1, block=64)],
]


@pytest.mark.parametrize("codec", FEEDBACK, ids=str)
def test_error_feedback_loses_nothing(codec):
    """Σ decoded + residual = Σ v, and the residual stays bounded."""
    feedback = ErrorFeedback(codec)
    size, rounds = 501, 60
    residual, total, arrived = (torch.zeros(3, size, dtype=torch.float64) for _ in range(3))
    for t in range(rounds):
        v = normal(3, size, seed=t, dtype=torch.float64)
        key = torch.tensor([[3 * t], [3 * t + 1], [3 * t + 2]])
        fields, sent, residual = feedback.apply(v, residual, key)
        assert torch.equal(sent, feedback.decode(fields, size, key).double())
        total, arrived = total + v, arrived + sent
    assert (arrived + residual - total).abs().max() <= 1e-12 * total.abs().max()
    assert residual.norm() < 60 * math.sqrt(3 * size)
    assert residual.norm() > 0


def test_without_contraction_the_residual_would_grow():
    """Why `ErrorFeedback` changes its codec: the unbiased form of RandomK diverges."""
    codec, residual = RandomK(0.1), torch.zeros(500, dtype=torch.float64)
    for t in range(60):
        wanted = normal(500, seed=t, dtype=torch.float64) + residual
        residual = wanted - decoded(codec, wanted, t)
    assert residual.norm() > 1e6


@pytest.mark.parametrize("size", [1, 2, 3, 4, 7, 64, 100, 129])
@pytest.mark.parametrize("block", [2, 8, 4096])
def test_rotation_is_orthogonal(size, block):
    identity = torch.eye(size, dtype=torch.float64)
    rotation = Rotate(block).encode(identity, 5)["values"]
    assert (rotation @ rotation.T - identity).abs().max() < 1e-12
    assert (Rotate(block).decode({"values": rotation}, size, 5) - identity).abs().max() < 1e-12
    if size == min(block, size) and size & (size - 1) == 0:
        assert torch.allclose(rotation.abs(), torch.full_like(rotation, 1 / math.sqrt(size)))


def test_rotation_of_many_blocks():
    for size in (100_000, 3 * 4096, 40_961):
        v = normal(2, size, dtype=torch.float64)
        rotated = Rotate().encode(v, 1)["values"]
        assert rotated.shape == v.shape
        assert torch.allclose(rotated.norm(dim=1), v.norm(dim=1), rtol=1e-12)
        assert torch.allclose(Rotate().decode({"values": rotated}, size, 1), v, atol=1e-12)


def test_rotation_makes_quantisation_precise():
    v = normal(8192) ** 5  # heavy tails
    plain, rotated = Quantize(4, block=4096), Chain([Rotate(), Quantize(4, block=4096)])
    assert (decoded(rotated, v, 0) - v).norm() < 0.5 * (decoded(plain, v, 0) - v).norm()


@pytest.mark.parametrize("inverse", [False, True])
@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (1, 2), (4, 8), (64, 64)])
def test_products_and_butterflies_agree(rows, columns, inverse):
    """The transform of a GPU, in float64 products, is that of a CPU."""
    for dtype, tolerance in ((torch.float32, 1e-5), (torch.float64, 1e-13)):
        v = normal(3, 2, rows * columns, dtype=dtype)
        factor = normal(3, 2, rows * columns, seed=1, dtype=dtype).sign() / math.sqrt(rows * columns)
        by_products, by_sums = v.clone(), v.clone()
        Products(6, rows, columns, v).apply_(by_products, factor, inverse)
        Butterflies(6, rows, columns, v).apply_(by_sums, factor, inverse)
        assert torch.allclose(by_products, by_sums, rtol=0, atol=tolerance)
