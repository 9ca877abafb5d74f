"""Shamir's secret sharing over the prime 2^256 + 297 (Shamir 1979, How to Share a Secret).

The secret is the value of a random polynomial at 0; member i of a group has its value at i + 1. With `threshold` of these
values the polynomial is known; with fewer, every secret is equally likely. The secrets are 32 bytes, so the field is the least
prime above 2^256.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from fedpatch.shared.wire.masking_messages import SHARE_BYTES

PRIME = 2**256 + 297
SECRET_BYTES = 32
# Random bytes of a coefficient: reduced modulo the prime, they are uniform except for a part of 2^-127.
_COEFFICIENT_BYTES = 48

Random = Callable[[int], bytes]
"""Returns so many random bytes: `os.urandom`, or a seeded generator in a test."""


def split_secret(secret: bytes, size: int, threshold: int, random: Random) -> list[bytes]:
    """Split a secret into one share for each member of a group.

    Args:
        secret: 32 bytes.
        size: Members of the group.
        threshold: Shares that rebuild the secret, 1 to `size`.

    Returns:
        One share of 33 bytes for each member.

    Raises:
        ValueError: The secret has another length, or the threshold is not 1 to `size`.
    """
    if len(secret) != SECRET_BYTES or not 1 <= threshold <= size:
        raise ValueError(f"cannot split {len(secret)} bytes into {size} shares of which {threshold} rebuild them")
    coefficients = [int.from_bytes(random(_COEFFICIENT_BYTES)) % PRIME for _ in range(threshold - 1)]
    coefficients.append(int.from_bytes(secret))  # the constant term: Horner's rule begins with the highest power
    return [_value_at(coefficients, index + 1).to_bytes(SHARE_BYTES) for index in range(size)]


def join_shares(shares: Mapping[int, bytes]) -> bytes | None:
    """Rebuild a secret from as many shares as its threshold.

    Args:
        shares: Shares by the index of their member.

    Returns:
        The secret, 32 bytes; None where the shares are not of one secret and lead to a number of more bytes.
    """
    indices = sorted(shares)
    value = interpolate(indices, [int.from_bytes(shares[index]) for index in indices], at=0)
    return value.to_bytes(SECRET_BYTES) if value < 2**256 else None


def interpolate(indices: Sequence[int], values: Sequence[int], at: int) -> int:
    """Return the value at `at` of the polynomial of least degree through the shares (Lagrange).

    Args:
        indices: Distinct members.
        values: Their shares as integers.
        at: 0 for the secret, i + 1 for the share of member i.
    """
    total = 0
    for index, value in zip(indices, values, strict=True):
        above = below = 1
        for other in indices:
            if other != index:
                above = above * (at - other - 1) % PRIME
                below = below * (index - other) % PRIME
        total += value * above * pow(below, -1, PRIME)
    return total % PRIME


def _value_at(coefficients: Sequence[int], x: int) -> int:
    value = 0
    for coefficient in coefficients:
        value = (value * x + coefficient) % PRIME
    return value
