"""Shamir's secret sharing."""

from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedmos.secure.shamir import PRIME, at_zero, combine, split
from fedmos.secure.sizes import SHARE

secrets = st.binary(min_size=32, max_size=32)


@given(secrets, secrets, st.integers(1, 12), st.integers(0, 8), st.randoms())
def test_any_threshold_of_shares_gives_the_secret(secret, seed, threshold, more, random):
    shares = split(secret, threshold, threshold + more, seed)
    assert all(len(share) == SHARE for share in shares)
    places = random.sample(range(1, len(shares) + 1), threshold)
    assert combine({x: shares[x - 1] for x in places}, threshold) == secret
    assert combine(dict(enumerate(shares, start=1)), threshold) == secret


@given(secrets, secrets, st.integers(2, 8), st.integers(0, 2**256 - 1))
def test_fewer_shares_fit_every_secret(secret, seed, threshold, other):
    """For any other secret there is a polynomial with the same threshold − 1 shares, so these say nothing."""
    shares = split(secret, threshold, threshold, seed)
    known = {x: int.from_bytes(shares[x - 1], "big") for x in range(1, threshold)}
    factors = at_zero([*known, threshold])
    rest = (other - sum(f * v for f, v in zip(factors, known.values(), strict=False))) * pow(factors[-1], -1, PRIME)
    forged = {x: v.to_bytes(SHARE, "big") for x, v in (known | {threshold: rest % PRIME}).items()}
    assert combine(forged, threshold) == other.to_bytes(32, "big")


def test_shares_of_extreme_secrets():
    for secret in (bytes(32), b"\xff" * 32):
        shares = split(secret, 3, 5, os.urandom(32))
        assert combine({2: shares[1], 4: shares[3], 5: shares[4]}, 3) == secret
        assert secret not in [share[1:] for share in shares]


def test_too_few_or_wrong_shares_are_refused():
    shares = dict(enumerate(split(os.urandom(32), 3, 4, os.urandom(32)), start=1))
    with pytest.raises(ValueError, match="Cannot combine 2 shares because 3 are needed"):
        combine({1: shares[1], 2: shares[2]}, 3)
    with pytest.raises(ValueError, match="Cannot split 31 bytes"):
        split(bytes(31), 2, 3, bytes(32))
    with pytest.raises(ValueError, match="Cannot split"):
        split(bytes(32), 4, 3, bytes(32))
    wrong = {1: (2**256 + 5).to_bytes(SHARE, "big")}
    with pytest.raises(ValueError, match="not those of one secret"):
        combine(wrong, 1)
