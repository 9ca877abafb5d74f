"""Keys of a device in one round, and everything derived from them.

X25519 (RFC 7748) agrees on keys between two members, HKDF-SHA256 (RFC 5869) with the group's context as salt derives masks and
box keys from them, and ChaCha20-Poly1305 (RFC 8439) seals the boxes. A key that two members agree on serves one group only,
because each derivation contains the context.

`cryptography` does all of it, and is imported where it is used: `is_available` returns whether it is installed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec

from fedpatch.shared.errors import WireError
from fedpatch.shared.masking.secret_sharing import SECRET_BYTES, Random
from fedpatch.shared.wire.masking_messages import SHARE_BYTES, GroupMember, MaskingKeys

_PAIR, _SELF, _BOX = b"fedpatch pair mask 2", b"fedpatch self mask 1", b"fedpatch share box 1"
_NOISE, _CODE = b"fedpatch skellam noise 1", b"fedpatch agreement code 1 "
_TRAINING = b"fedpatch training 1"
_FIXED_PRIVATE_KEY = bytes(range(32))
# Each box has a key of its own, so the nonce may be constant.
_NONCE = bytes(12)


def is_available() -> bool:
    """Return whether `cryptography` is installed; it is not imported."""
    return find_spec("cryptography") is not None


@dataclass(frozen=True)
class SecretKeys:
    """The secrets of a device in one round, 32 bytes each. The text form shows none of them.

    Attributes:
        share: X25519 private key for boxes.
        mask: X25519 private key for pairwise masks; the group rebuilds it if the device is lost.
        self_mask: Secret of the device's own mask, `b` in the paper; the group rebuilds it if the device has reported.

    Example:
        >>> secrets = SecretKeys.new(lambda count: bytes(range(count)))
        >>> secrets, secrets.public().share.hex()[:16]
        (SecretKeys(), '8f40c5adb68f2562')
    """

    share: bytes
    mask: bytes
    self_mask: bytes

    @classmethod
    def new(cls, random: Random) -> SecretKeys:
        """Return new secrets from random bytes."""
        return cls(random(SECRET_BYTES), random(SECRET_BYTES), random(SECRET_BYTES))

    @classmethod
    def erased(cls) -> SecretKeys:
        """Return empty secrets, to replace secrets that are no longer needed."""
        return cls(b"", b"", b"")

    def __repr__(self) -> str:
        return "SecretKeys()"

    def public(self) -> MaskingKeys:
        """Return the public keys."""
        return MaskingKeys(public_key(self.share), public_key(self.mask))


class PrivateKey:
    """An X25519 private key for several agreements, loaded once: loading its 32 bytes takes as long as one agreement."""

    def __init__(self, private: bytes) -> None:
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

        self._key = X25519PrivateKey.from_private_bytes(private)

    def agree(self, peer: bytes) -> bytes:
        """Return the secret in common with the owner of a public key. WireError for a point of small order."""
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey

        try:
            return self._key.exchange(X25519PublicKey.from_public_bytes(peer))
        except ValueError:
            raise WireError("a public key of the roster is not a usable X25519 key") from None


def public_key(private: bytes) -> bytes:
    """Return the X25519 public key of a private key, both 32 bytes."""
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def key_in_any_form(public: bytes) -> bytes:
    """Return 32 bytes that are equal for all forms of a public key with the same secrets.

    X25519 gives the same secret for a key with the highest bit set, for the same number written above the prime, and for the
    key plus a point of small order. So it is the secret in common with one fixed private key.

    Raises:
        WireError: The key is a point of small order.
    """
    return _agree(_FIXED_PRIVATE_KEY, public)


def check_distinct_keys(members: Sequence[GroupMember]) -> None:
    """Check the public keys of a roster.

    Raises:
        WireError: A key is not usable, or two members have the same key in any form; the message names them.
    """
    seen: dict[bytes, str] = {}
    for member in members:
        for key in (member.keys.share, member.keys.mask):
            form = key_in_any_form(key)
            if form in seen:
                raise WireError(f"{seen[form]} and {member.device} have the same key; one of them has copied it")
            seen[form] = member.device


def pair_mask_seed(private: bytes | PrivateKey, peer: bytes, context: bytes, pair: tuple[int, int]) -> bytes:
    """Return the seed of the mask that two members have in common.

    The members are part of the seed: X25519 ignores the highest bit of a public key, and a point of small order added to it
    leaves the secret as it is, so a member can have another one's key in other bytes. Its masks are not the other one's.

    Args:
        private: The X25519 private mask key of one of them.
        peer: The public mask key of the other one.
        context: The group, whose roster has names and keys by index.
        pair: Indices of both in any order.

    Raises:
        WireError: `peer` is a point of small order, which would make the seed public.
    """
    return _derive(_agree(private, peer), context, _PAIR + bytes(sorted(pair)))


def self_mask_seed(self_mask: bytes, context: bytes) -> bytes:
    """Return the seed of the mask that belongs to one member alone."""
    return _derive(self_mask, context, _SELF)


def code_key(private: bytes | PrivateKey, peer: bytes, context: bytes, step: bytes, ends: tuple[int, int]) -> bytes:
    """Return the key of the codes of one member for another one (shared.masking.agreement).

    Each purpose, step and direction has a key of its own; the key of a box is for the box alone.

    Args:
        private: The private share key of one of them.
        peer: The public share key of the other one.
        context: The group.
        step: The step of the protocol.
        ends: Indices of sender and receiver.

    Raises:
        WireError: `peer` is a point of small order.
    """
    return _derive(_agree(private, peer), context, _CODE + step + b" " + bytes(ends))


def noise_seed(share: bytes, context: bytes) -> bytes:
    """Return the seed of the noise of differential privacy.

    The seed is derived from the private key for boxes. This key is new in each round, is on the disk before its public key is
    sent, and is never shared; the group can rebuild the other two secrets. So a restarted device adds the same noise again.

    Args:
        share: The X25519 private share key of the device.
        context: The group.
    """
    return _derive(share, context, _NOISE)


def training_secret(share: bytes, request: bytes) -> bytes:
    """Return the secret of an attempt at a round, from which batch order and rounding follow.

    Like `noise_seed` it is derived from the private key for boxes, which no other party ever has. So a repeated round repeats
    neither, but a restarted device makes the same vector again under the same keys.

    Args:
        share: The X25519 private share key of the device.
        request: Digest of the request.
    """
    return _derive(share, request, _TRAINING)


def commitment_to(self_mask: bytes, context: bytes) -> bytes:
    """Return the SHA-256 of a self-mask secret and the context; a rebuilt secret is checked against it."""
    return hashlib.sha256(self_mask + context).digest()


def seal_box(
    private: bytes | PrivateKey, peer: bytes, context: bytes, ends: tuple[int, int], shares: tuple[bytes, bytes]
) -> bytes:
    """Seal two secret shares for one member.

    Args:
        private: The sender's private share key.
        peer: The receiver's public share key.
        context: The group.
        ends: Indices of sender and receiver.
        shares: Shares of the sender's self-mask secret and of its mask key, 33 bytes each.

    Returns:
        82 bytes.

    Raises:
        WireError: `peer` is a point of small order.
    """
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

    cipher = ChaCha20Poly1305(_derive(_agree(private, peer), context, _BOX + bytes(ends)))
    return cipher.encrypt(_NONCE, b"".join(shares), context)


def open_box(
    private: bytes | PrivateKey, peer: bytes, context: bytes, ends: tuple[int, int], box: bytes
) -> tuple[bytes, bytes]:
    """Open a box.

    Args:
        private: The receiver's private share key.
        peer: The sender's public share key.
        context: The group.
        ends: Indices of sender and receiver.

    Returns:
        The receiver's shares of the sender's self-mask secret and of its mask key.

    Raises:
        WireError: The box was not sealed by this sender for this receiver in this group.
    """
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

    try:
        cipher = ChaCha20Poly1305(_derive(_agree(private, peer), context, _BOX + bytes(ends)))
        shares = cipher.decrypt(_NONCE, box, context)
    except InvalidTag:
        raise WireError(f"the box of member {ends[0]} does not open") from None
    if len(shares) != 2 * SHARE_BYTES:
        raise WireError(f"the box of member {ends[0]} holds {len(shares)} bytes instead of two shares")
    return shares[:SHARE_BYTES], shares[SHARE_BYTES:]


def keystream(seed: bytes, size: int) -> bytes:
    """Return the first `size` bytes of ChaCha20 under `seed` (RFC 8439, block counter and nonce 0)."""
    return bytes(*keystreams([seed], size))


def keystreams(seeds: Iterable[bytes], size: int) -> Iterator[bytearray]:
    """Yield a keystream for each seed, all in the same buffer: new memory for each takes as long as ChaCha20 itself."""
    from cryptography.hazmat.primitives.ciphers import Cipher
    from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20

    zeros, buffer = bytes(size), bytearray(size)
    for seed in seeds:
        Cipher(ChaCha20(seed, bytes(16)), mode=None).encryptor().update_into(zeros, buffer)
        yield buffer


def _agree(private: bytes | PrivateKey, peer: bytes) -> bytes:
    return (private if isinstance(private, PrivateKey) else PrivateKey(private)).agree(peer)


def _derive(secret: bytes, context: bytes, purpose: bytes) -> bytes:
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    return HKDF(SHA256(), length=32, salt=context, info=purpose).derive(secret)
