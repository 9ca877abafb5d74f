"""Agreement of a group's members on the masking set (U2) and on the reported set (U3): the consistency check.

Without it a coordinator may name other sets to other members, and open the sum of a few devices or of one (Bonawitz et al.
2017, Fig. 4, round 3; docs/explanation/agreement.md has the proof). A member vouches for its sets with a code for each other
member, HMAC-SHA256 under a key of this purpose, step and direction; in a strict group with one signature of its certificate
for all, which the coordinator can check too, so that it names a member with a false one and goes on without it.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum

import msgpack

from fedpatch.shared.errors import WireError
from fedpatch.shared.masking.group_context import MaskingGroup, members_of
from fedpatch.shared.masking.keys import PrivateKey, code_key
from fedpatch.shared.masking.signed_keys import is_signed_by
from fedpatch.shared.wire.masking_messages import CODE_BYTES, Codes

_STATEMENT = "fedpatch agreement 1"


class Step(StrEnum):
    """The sets that a member vouches for: the masking set with its update, or both sets with its agreement."""

    MASKING_SET = "masking set"
    BOTH_SETS = "both sets"


@dataclass(frozen=True)
class Sets:
    """The sets of a group as a member knows them.

    Attributes:
        masking_set: Bitmap of the members that mask.
        reported: Bitmap of the members whose sum is asked for; empty before it is.
    """

    masking_set: bytes
    reported: bytes = b""

    @property
    def step(self) -> Step:
        """The step at which a member vouches for these sets."""
        return Step.BOTH_SETS if self.reported else Step.MASKING_SET

    @property
    def packed(self) -> bytes:
        """The sets as bytes, from which they can be read in one way only."""
        packed: bytes = msgpack.packb([self.masking_set, self.reported])
        return packed


def statement(group: MaskingGroup, member: int, sets: Sets) -> bytes:
    """Return the bytes that a member of a strict group signs.

    Args:
        member: Place in the roster.
        sets: The sets that it vouches for.
    """
    packed: bytes = msgpack.packb(
        [_STATEMENT, sets.step, group.context, group.members[member].device, sets.masking_set, sets.reported]
    )
    return packed


def codes_of(group: MaskingGroup, member: int, sets: Sets, private: bytes) -> tuple[bytes, ...]:
    """Return the codes of a member, one for each other member of the masking set; empty for the rest.

    Args:
        sets: The sets that it vouches for.
        private: Its private share key.
    """
    key = PrivateKey(private)
    others = (members_of(sets.masking_set, len(group)) or frozenset()) - {member}
    return tuple(_code(group, key, peer, (member, peer), sets) if peer in others else b"" for peer in range(len(group)))


def expected_codes(group: MaskingGroup, member: int, sets: Sets, private: bytes) -> tuple[bytes, ...]:
    """Return the codes that the other members of the masking set have for a member if they vouch for the same sets.

    Args:
        member: Place in the roster.
        sets: The sets that it vouches for.
        private: Its private share key.
    """
    key = PrivateKey(private)
    others = (members_of(sets.masking_set, len(group)) or frozenset()) - {member}
    return tuple(_code(group, key, peer, (peer, member), sets) if peer in others else b"" for peer in range(len(group)))


def _code(group: MaskingGroup, key: PrivateKey, peer: int, ends: tuple[int, int], sets: Sets) -> bytes:
    secret = code_key(key, group.members[peer].keys.share, group.context, sets.step.encode(), ends)
    return hmac.digest(secret, sets.packed, "sha256")


def matching(expected: Codes, found: Codes) -> frozenset[int]:
    """Return the members whose code is the expected one."""
    pairs = enumerate(zip(expected, found, strict=False))
    return frozenset(member for member, (one, other) in pairs if one and hmac.compare_digest(one, other))


def signed_by(group: MaskingGroup, members: Iterable[int], sets: Sets, found: Codes) -> frozenset[int]:
    """Return the members of a strict group whose signature in `found` is one of these sets.

    Args:
        members: Places in the roster.
        found: Signatures in the order of the roster.
    """
    return frozenset(
        member for member in members if member < len(found) and is_signature(group, member, sets, found[member])
    )


def is_signature(group: MaskingGroup, member: int, sets: Sets, signature: bytes) -> bool:
    """Return whether a signature is one of a member of a strict group over these sets.

    Args:
        member: Place in the roster.
        sets: The sets that it vouches for.
        signature: ECDSA with SHA-256, DER.
    """
    return is_signed_by(group.members[member].keys.certificate, statement(group, member, sets), signature)


def check_codes(group: MaskingGroup, member: int, sets: Sets, codes: Codes, *, strict: bool) -> None:
    """Check the codes of a member as far as a coordinator can.

    Args:
        member: The sender.
        strict: Whether members sign.

    Raises:
        WireError: They are no codes for each other member of the masking set, or a false signature.
    """
    name = group.members[member].device
    if strict:
        if len(codes) != 1 or not is_signature(group, member, sets, codes[0]):
            raise WireError(f"{name} has not signed the {sets.step} of its group")
        return
    others = (members_of(sets.masking_set, len(group)) or frozenset()) - {member}
    lengths = [CODE_BYTES if peer in others else 0 for peer in range(len(group))]
    if [len(code) for code in codes] != lengths:
        raise WireError(f"{name} sent {len(codes)} codes to a group of {len(group)}")


def codes_for(
    codes: Callable[[int], Codes], senders: Iterable[int], receiver: int, size: int, *, strict: bool
) -> Codes:
    """Return the codes of some members for one receiver, in the order of the roster; empty for all others.

    Args:
        codes: Returns the codes of a member, for all receivers.
        size: Members of the group.
        strict: Whether members sign.
    """
    found = [b""] * size
    for sender in senders:
        found[sender] = codes(sender)[0 if strict else receiver]
    return tuple(found)
