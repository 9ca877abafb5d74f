"""Shamir's secret sharing: any threshold of shares rebuilds the secret, fewer give no information about it."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpatch.shared.masking.secret_sharing import PRIME, interpolate, join_shares, split_secret
from tests.support.examples import examples

SECRETS = st.binary(min_size=32, max_size=32) | st.sampled_from([bytes(32), b"\xff" * 32])


@examples(60)
@given(SECRETS, st.integers(1, 64), st.data())
def test_any_threshold_of_shares_rebuilds_the_secret(secret, size, data):
    threshold = data.draw(st.integers(1, size))
    shares = split_secret(secret, size, threshold, random.Random(1).randbytes)
    chosen = data.draw(st.permutations(range(size)))[:threshold]
    assert join_shares({index: shares[index] for index in chosen}) == secret


def test_shares_below_the_threshold_fit_every_secret():
    """For each other secret there is a polynomial through the same shares, so they give no information."""
    shares = split_secret(b"\x07" * 32, 5, 3, random.Random(2).randbytes)
    known = {0: shares[0], 3: shares[3]}
    values = [int.from_bytes(share) for share in known.values()]
    for other in (b"\x00" * 32, b"\x08" * 32):
        # The third share that would make `other` the secret exists: the line through both and (0, other) has a value there.
        third = interpolate([-1, *known], [int.from_bytes(other), *values], at=2)
        assert join_shares(known | {1: third.to_bytes(33)}) == other


def test_shares_of_different_secrets_rebuild_neither():
    one, other = (split_secret(secret, 3, 2, random.Random(3).randbytes) for secret in (b"\x01" * 32, b"\x02" * 32))
    assert join_shares({0: one[0], 1: other[1]}) not in (b"\x01" * 32, b"\x02" * 32)


@pytest.mark.parametrize("number", [2**256, 2**256 + 1, PRIME - 1])
def test_shares_that_lead_to_more_than_32_bytes_are_no_secret(number):
    assert join_shares({0: number.to_bytes(33)}) is None
    assert join_shares({0: (2**256 - 1).to_bytes(33)}) == b"\xff" * 32


def test_prime_is_the_least_above_two_to_the_256():
    """By Fermat's test to several bases; the numbers between are composite."""

    def is_probable_prime(number: int) -> bool:
        return all(pow(base, number - 1, number) == 1 for base in (2, 3, 5, 7, 11, 13))

    assert is_probable_prime(PRIME)
    assert not any(is_probable_prime(number) for number in range(2**256, PRIME))


def test_coefficients_come_from_the_given_random_bytes():
    """By definition: the share of member i is the secret plus the coefficient times i + 1."""
    shares = split_secret(bytes(31) + b"\x05", 3, 2, lambda count: bytes(count - 1) + b"\x03")
    assert [int.from_bytes(share) for share in shares] == [8, 11, 14]


@pytest.mark.parametrize(("length", "size", "threshold"), [(31, 3, 2), (32, 3, 0), (32, 3, 4)])
def test_impossible_split_is_a_value_error(length, size, threshold):
    with pytest.raises(ValueError, match="cannot split"):
        split_secret(bytes(length), size, threshold, random.Random(0).randbytes)
