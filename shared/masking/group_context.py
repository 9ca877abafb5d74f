"""The context of a group: a digest of run, round, request and roster that every key derivation of the group contains.

Devices with another model, other terms or another roster derive other masks, which do not cancel. So a coordinator that sends
different models to different devices gets noise instead of a sum (Pasquini et al. 2022, Eluding Secure Aggregation). A model is
its values, not the bytes on the way: a device may get it whole, by differences, or hold it from an earlier round. The version
of masking is in the digest too, so a group has one version.
"""

from __future__ import annotations

import hashlib
import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import msgpack
from msgspec import UnsetType

from fedpatch.shared.errors import WireError
from fedpatch.shared.wire.features import MASKING_VERSION
from fedpatch.shared.wire.masking_messages import (
    MASKED_ENCODINGS,
    MAX_GROUP,
    GroupMember,
    Roster,
    SecureTerms,
    ThresholdRule,
)
from fedpatch.shared.wire.messages import WorkRequest

_REQUEST, _GROUP = "fedpatch masked request", "fedpatch masked group 2"
MODEL_VALUES = ("digest", "schema")
"""Fields of the model's manifest in the digest of a request. The others are of the bytes on their way: however they come,
a device trains only on values with the digest `content`."""
HARMLESS: Mapping[str, str] = {
    "chunk_bytes": "cuts the update into messages",
    "deadline_s": "ends the work or not; a masked request measures nothing beside the work",
    "deltas": "ways to the model, whose values have the digest `content`",
    "features": "answers that the sender understands",
    "counted": "of plans with control variates, which a device declines under masks",
    "leader_epoch": "a device ignores a request with a lower one",
}
"""Fields of a work request that may differ between the members of a group, each with the reason why this is harmless."""
_EXACT_WHOLE = 2**53


@dataclass(frozen=True)
class MaskingGroup:
    """A group: its context, the members in order of their names, and the number of them that must reveal.

    Attributes:
        context: SHA-256 over run, round, request and roster, 32 bytes.
        threshold: Members that must reveal.
        members: The members, sorted by name.

    Example:
        >>> from fedpatch.shared.wire.masking_messages import MaskingKeys
        >>> members = tuple(GroupMember(name, MaskingKeys(bytes(32), bytes(32))) for name in ("pi-1", "pi-2", "pi-3"))
        >>> group = MaskingGroup.of_roster(bytes(32), Roster(0, 2, members))
        >>> len(group), group.index("pi-2"), group.context.hex()[:8]
        (3, 1, '44271335')
    """

    context: bytes
    threshold: int
    members: tuple[GroupMember, ...]

    @classmethod
    def of_roster(cls, request: bytes, roster: Roster) -> MaskingGroup:
        """Return the group of a roster.

        Args:
            request: `request_digest` of the round's request.
            roster: The roster; a coordinator makes it, a device receives it.

        Raises:
            WireError: The members are not sorted by name, or one appears twice.
        """
        names = [member.device for member in roster.members]
        if names != sorted(set(names)):
            raise WireError("the roster's members are not distinct and sorted by name")
        keys = [[member.device, member.keys.share, member.keys.mask] for member in roster.members]
        return cls(_digest([_GROUP, request, roster.group, roster.threshold, keys]), roster.threshold, roster.members)

    def __len__(self) -> int:
        """Number of members."""
        return len(self.members)

    @cached_property
    def _index_of(self) -> dict[str, int]:
        return {member.device: index for index, member in enumerate(self.members)}

    def index(self, device: str) -> int | None:
        """Return the place of a device in the roster; None if it is no member."""
        return self._index_of.get(device)


def highest_code(bits: int, group_max: int) -> int:
    """Return the greatest integer of one value, so that the sum of `group_max` values has `bits` bits with its sign.

    Example:
        >>> highest_code(8, 10), highest_code(8, 42), highest_code(16, 64)
        (12, 3, 511)
    """
    return int((2 ** (bits - 1) - 1) // group_max)


def check_terms(terms: SecureTerms, encoding: str) -> None:
    """Check terms that came over the network.

    Raises:
        WireError: The terms contradict each other or the encoding; the message names the field.
    """
    if encoding not in MASKED_ENCODINGS or encoding != f"masked-u{terms.bits}":
        raise WireError(f"encoding {encoding!r} does not belong to {terms.bits} bits of a masked value")
    if terms.keep != 1:
        raise WireError(f"keep is {terms.keep}; it must be 1, since no value waits for a later round")
    if terms.strict and terms.threshold is not ThresholdRule.TWO_THIRDS:
        raise WireError("signed keys belong to a threshold of two_thirds, and the terms have another one")
    if terms.group_min > terms.group_max:
        raise WireError(f"group_min {terms.group_min} is above group_max {terms.group_max}")
    if highest_code(terms.bits, terms.group_max) < 1:
        raise WireError(f"{terms.bits} bits are too few for a group of {terms.group_max}")
    read_grid(terms.grid)


def read_grid(grid: bytes) -> tuple[float, ...]:
    """Return the ranges in `SecureTerms.grid`. Raises WireError unless each is positive and finite."""
    if len(grid) % 4:
        raise WireError(f"a grid of {len(grid)} bytes is not a list of float32")
    ranges = struct.unpack(f"<{len(grid) // 4}f", grid)
    if not all(math.isfinite(one) and one > 0 for one in ranges):
        raise WireError("the grid has a range that is not a positive number")
    return ranges


def write_grid(ranges: tuple[float, ...]) -> bytes:
    """Return `SecureTerms.grid` for ranges of tensors, in the order of their names."""
    return struct.pack(f"<{len(ranges)}f", *ranges)


def request_digest(task: str, run: str, round_number: int, request: WorkRequest) -> bytes:
    """Return the SHA-256 of MASKING_VERSION and a request: of each field but those in HARMLESS, of the model MODEL_VALUES.

    Args:
        request: The request; `secure` is set.

    Returns:
        32 bytes.
    """
    assert request.secure is not None
    covered = {one.name: getattr(request, one.name) for one in fields(request) if one.name not in HARMLESS}
    covered["model"] = {name: getattr(request.model, name) for name in MODEL_VALUES}
    covered["evaluate"] = request.evaluates
    return _digest([f"{_REQUEST} {MASKING_VERSION}", task, run, round_number, _canonical(covered)])


def _canonical(value: Any) -> Any:
    """Return a value as lists, texts, bytes and numbers that are packed in one way only.

    A number may be whole on one side and a float on the other, such as 1 and 1.0: it becomes its shortest decimal text.
    """
    match value:
        case None | UnsetType():
            return []
        case bool() | bytes():
            return value
        case str():
            return str(value)
        case int() | float():
            return [repr(float(value)) if abs(value) < _EXACT_WHOLE else repr(value)]
        case list() | tuple():
            return ["list", *map(_canonical, value)]
        case Mapping():
            return ["map", *([name, _canonical(one)] for name, one in sorted(value.items()))]
    return _canonical({one.name: getattr(value, one.name) for one in fields(value)})


def _digest(value: list[Any]) -> bytes:
    return hashlib.sha256(msgpack.packb(value)).digest()


def members_of(bitmap: bytes, size: int) -> frozenset[int] | None:
    """Return the members in a bitmap of `size` members; None for a bitmap of another length or with bits beyond."""
    value = int.from_bytes(bitmap, "little")
    if len(bitmap) != (size + 7) // 8 or value >> size or size > MAX_GROUP:
        return None
    return frozenset(index for index in range(size) if value >> index & 1)


def bitmap_of(members: frozenset[int], size: int) -> bytes:
    r"""Return the bitmap of a set of members: member i is bit i % 8 of byte i // 8.

    Example:
        >>> bitmap_of(frozenset({0, 9}), 10), sorted(members_of(bytes([1, 2]), 10) or ())
        (b'\x01\x02', [0, 9])
    """
    return sum(1 << index for index in members).to_bytes((size + 7) // 8, "little")
