"""Messages of secure aggregation in groups (Bonawitz et al. 2017, Practical Secure Aggregation, Fig. 4).

    accept.keys up, roster dn, shares up, inbox dn, offer.codes and the masked update up, unmask dn, agreement up, agreed dn,
    reveal up

`context` names a group in every message after the roster. It is the SHA-256 over the run, the round, the request and the roster
(shared.masking.group_context), so a device with another request or another roster has another context. Lists over the members
of a group are in the order of the roster. Every message may be repeated and then has the same bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

from msgspec import UNSET, Meta, UnsetType

from fedpatch.shared.wire.field_types import Count, Positive, Word

# An update of masked values; the number of bits is `SecureTerms.bits`.
MASKED_ENCODINGS = ("masked-u8", "masked-u16")
# The update of a relay in a masked round: the sum of its site (shared.masking.site_sum).
SUM_ENCODING = "masked-sum"
MAX_GROUP = 64
MIN_GROUP = 2
MAX_GRID_TENSORS = 1024
MAX_BOX_BYTES = 120
MAX_CERTIFICATE_BYTES = 750
"""Bytes of a device's certificate in DER: with 64 of them a roster fits into a message. Those of fedpatch have at most 700."""
MAX_REVOCATIONS_BYTES = 8192
"""Bytes of a list of revoked certificates in DER, about 200 entries of fedpatch's CA; the codec takes no longer bytes."""
SHARE_BYTES = 33
"""Bytes of one Shamir share, an integer below 2^256 + 297 (shared.masking.secret_sharing)."""

CODE_BYTES = 32
"""Bytes of a code between two members, HMAC-SHA256. In a strict group a signature takes its place, which has at most 72."""

RevocationsDer = Annotated[bytes, Meta(max_length=MAX_REVOCATIONS_BYTES)]
GroupSize = Annotated[int, Meta(ge=MIN_GROUP, le=MAX_GROUP)]
Bytes16 = Annotated[bytes, Meta(min_length=16, max_length=16)]
Bytes32 = Annotated[bytes, Meta(min_length=32, max_length=32)]
Box = Annotated[bytes, Meta(max_length=MAX_BOX_BYTES)]
SecretShare = Annotated[bytes, Meta(max_length=SHARE_BYTES)]
Codes = Annotated[tuple[Annotated[bytes, Meta(max_length=80)], ...], Meta(max_length=MAX_GROUP)]
MemberBitmap = Annotated[bytes, Meta(max_length=MAX_GROUP // 8)]


class ThresholdRule(StrEnum):
    """Return the members of a group of g that must reveal: half is floor(g / 2) + 1, two_thirds is floor(2 g / 3) + 1."""

    HALF = "half"
    TWO_THIRDS = "two_thirds"


@dataclass(frozen=True)
class SecureTerms:
    """Terms of a masked round, in `work_request.secure`; the same for all devices of the round.

    Attributes:
        threshold: Rule for the number of members that must reveal.
        group_min: Smallest group that the coordinator forms.
        group_max: Largest group that it forms. Values are integers up to floor(127 / group_max), so that no sum overflows.
        bits: Bits of a masked value, 8 or 16.
        keep: 1: each value travels. A value that waited for a later round would be in that round's sum.
        seed: Public random bytes of the round.
        clip: Longest L2 norm of a device's step; a longer one is shortened on the device.
        weight_cap: Most examples that count as a weight.
        grid: Range of a value of each travelling tensor, as float32, least significant byte first, in the order of names.
        strict: Whether keys must be signed by device certificates (shared.masking.signed_keys); only with two_thirds.
        colluders: Members of a group whose noise of differential privacy does not count, since they may tell it to the
            coordinator: each device's share of the noise is 1 / (threshold - colluders). Left out for none.
    """

    threshold: ThresholdRule
    group_min: GroupSize
    group_max: GroupSize
    bits: Annotated[int, Meta(ge=8, le=16)]
    keep: Annotated[int, Meta(ge=1, le=8)]
    seed: Bytes16
    clip: Annotated[float, Meta(gt=0.0, le=1e9)]
    weight_cap: Positive
    grid: Annotated[bytes, Meta(max_length=4 * MAX_GRID_TENSORS)]
    strict: bool = False
    colluders: Annotated[int, Meta(ge=0, le=MAX_GROUP)] | UnsetType = UNSET


@dataclass(frozen=True)
class MaskingKeys:
    """Public X25519 keys of a device, new in each round (RFC 7748).

    Attributes:
        share: Key for the boxes of secret shares.
        mask: Key for the masks that two devices have in common.
        certificate: Certificate of the device in DER, where the terms are strict; else empty.
        signature: ECDSA signature over request, device and both keys, where the terms are strict; else empty.
    """

    share: Bytes32
    mask: Bytes32
    certificate: Annotated[bytes, Meta(max_length=MAX_CERTIFICATE_BYTES)] = b""
    signature: Annotated[bytes, Meta(max_length=80)] = b""


@dataclass(frozen=True)
class GroupMember:
    """A device of a group and its keys."""

    device: Word
    keys: MaskingKeys


@dataclass(frozen=True)
class Roster:
    """The group of the device. A device answers with `Shares`, and never joins a second group with the same keys.

    Attributes:
        group: Number of the group in the round.
        threshold: Members that must reveal, by the rule of the terms.
        members: All members, sorted by name, this device among them.
    """

    group: Count
    threshold: GroupSize
    members: Annotated[tuple[GroupMember, ...], Meta(max_length=MAX_GROUP)]


@dataclass(frozen=True)
class Shares:
    """Secret shares of the device, one sealed box for each other member.

    Attributes:
        context: The group.
        boxes: For each member a box that only this member opens; empty for the device itself.
        commitment: SHA-256 of the device's self-mask secret and the context.
    """

    context: Bytes32
    boxes: Annotated[tuple[Box, ...], Meta(max_length=MAX_GROUP)]
    commitment: Bytes32


@dataclass(frozen=True)
class Inbox:
    """The boxes of the other members for this device.

    A member whose box is not empty is in the masking set, and so is the device itself. The coordinator sends an inbox to the
    members of the set only.

    Attributes:
        context: The group.
        boxes: For each member the box for this device; empty: the member is not in the masking set, or is the device itself.
    """

    context: Bytes32
    boxes: Annotated[tuple[Box, ...], Meta(max_length=MAX_GROUP)]


@dataclass(frozen=True)
class Unmask:
    """The coordinator wants the sum of the members in `reported`; it sends the same set to all members, and never another one.

    Attributes:
        context: The group.
        reported: Members whose update is committed; member i is bit i % 8 of byte i // 8.
        codes: For each member of `reported` its code over the masking set, for the receiver; empty for all others. With them
            the receiver knows that all of these members have its own masking set.
    """

    context: Bytes32
    reported: MemberBitmap
    codes: Codes = ()


@dataclass(frozen=True)
class Agreement:
    """The device agrees to the sum of `reported`, and never to another one under the same keys.

    Attributes:
        context: The group.
        reported: As in the `Unmask` that this message answers.
        codes: For each other member of the masking set the device's code over both sets; in a strict group one signature.
    """

    context: Bytes32
    reported: MemberBitmap
    codes: Codes


@dataclass(frozen=True)
class Agreed:
    """Enough members agree to one sum: the device may reveal.

    Attributes:
        context: The group.
        reported: As in `Unmask`.
        codes: For each member that agrees its code over both sets, for the receiver; empty for all others.
    """

    context: Bytes32
    reported: MemberBitmap
    codes: Codes


@dataclass(frozen=True)
class Reveal:
    """One secret share of each member of the masking set: of its self-mask if it reported, of its mask key if it did not.

    Attributes:
        context: The group.
        reported: As in the `Unmask` that this message answers.
        shares: For each member a share; empty outside the masking set, and where the member's box did not open.
    """

    context: Bytes32
    reported: MemberBitmap
    shares: Annotated[tuple[SecretShare, ...], Meta(max_length=MAX_GROUP)]
