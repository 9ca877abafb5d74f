"""The state of a device in one masked round, kept so that a repeated message gets the same answer and never another one."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from typing import Annotated

from msgspec import Meta

from fedpatch.shared.masking.agreement import Sets
from fedpatch.shared.masking.group_context import MaskingGroup
from fedpatch.shared.masking.keys import SecretKeys, commitment_to
from fedpatch.shared.wire.field_types import Count, Word
from fedpatch.shared.wire.masking_messages import (
    MAX_GROUP,
    SHARE_BYTES,
    Agreement,
    Bytes32,
    Codes,
    MaskingKeys,
    MemberBitmap,
    Reveal,
    Roster,
    SecureTerms,
    Shares,
)
from fedpatch.shared.wire.messages import Digest

SharePair = Annotated[bytes, Meta(max_length=2 * SHARE_BYTES)]
"""A member's shares of its self-mask secret and of its mask key, one after the other; empty if there are none."""


class MaskingPhase(StrEnum):
    """Progress of a device: it has keys, has sent its shares, has an inbox, has agreed to a sum, has revealed."""

    KEYED = "keyed"
    SHARED = "shared"
    READY = "ready"
    AGREED = "agreed"
    REVEALED = "revealed"


@dataclass(frozen=True)
class RoundName:
    """A round of a run of a task. The coordinator's epoch is not part of it: the round continues after a restart."""

    task: Word
    run: Word
    round: Count


@dataclass(frozen=True)
class MaskingRound:
    """State of a device in one masked round. It is on disk before any message that depends on it is sent.

    The answer to `unmask` erases the secrets and the shares that are not for its sum: neither a later message nor a reader of
    the disk gets them.

    Attributes:
        name: The round.
        request: `request_digest` of its request.
        terms: Terms of the request.
        secrets: Secrets of the device, new in this round.
        keys: Public keys of the secrets, signed where the terms are strict.
        roster: The group; None: not received yet.
        boxes: The boxes sent to the other members.
        own_shares: The device's own share of its own secrets.
        inbox: Shares of all members, in the order of the roster; empty where there is none. None: not received yet. Once the
            device has agreed to a sum, only the share of each member for that sum is left.
        masking_set: Bitmap of the members that mask (U2).
        update: Digest of the masked update: no other one is sent under these keys. None before there is one.
        codes: The device's codes over the masking set, sent with the offer of `update`.
        reported: Bitmap of the members whose sum the device agreed to (U3), never another one; None: it has agreed to none.
        agreement: The device's codes over both sets.
        expected: Codes over the same sets that the others would have for this device; empty in a strict group.
        revealed: Whether the shares were revealed.
        base: Digest of the model's values that the request names; "" in the state of an earlier version.
    """

    name: RoundName
    request: Bytes32
    terms: SecureTerms
    secrets: SecretKeys
    keys: MaskingKeys
    roster: Roster | None = None
    boxes: Annotated[tuple[bytes, ...], Meta(max_length=MAX_GROUP)] = ()
    own_shares: SharePair = field(default=b"", repr=False)
    inbox: Annotated[tuple[SharePair, ...], Meta(max_length=MAX_GROUP)] | None = field(default=None, repr=False)
    masking_set: MemberBitmap = b""
    update: Digest | None = None
    codes: Codes = ()
    reported: MemberBitmap | None = None
    agreement: Codes = ()
    expected: Codes = ()
    revealed: bool = False
    base: str = ""

    @property
    def phase(self) -> MaskingPhase:
        """Progress of the device."""
        if self.roster is None:
            return MaskingPhase.KEYED
        if self.inbox is None:
            return MaskingPhase.SHARED
        if self.reported is None:
            return MaskingPhase.READY
        return MaskingPhase.REVEALED if self.revealed else MaskingPhase.AGREED

    @property
    def sets(self) -> Sets:
        """The masking set, and the reported set once the device has agreed to one."""
        return Sets(self.masking_set, self.reported or b"")

    @cached_property
    def group(self) -> MaskingGroup:
        """The group. WireError if the roster is not valid; AssertionError without a roster."""
        assert self.roster is not None
        return MaskingGroup.of_roster(self.request, self.roster)

    def shares_message(self) -> Shares:
        """Return the answer to the roster."""
        return Shares(self.group.context, self.boxes, commitment_to(self.secrets.self_mask, self.group.context))

    def agreed(self, reported: bytes, agreement: Codes, expected: Codes) -> MaskingRound:
        """Return the state after `unmask`: of each member of the masking set one share is left, never both, and no secret.

        Args:
            reported: Bitmap of the members whose sum is asked for.
            agreement: The device's codes over both sets.
            expected: The codes of the others for this device.
        """
        assert self.inbox is not None
        bits = int.from_bytes(reported, "little")
        shares = tuple(
            pair[:SHARE_BYTES] if bits >> index & 1 else pair[SHARE_BYTES:] for index, pair in enumerate(self.inbox)
        )
        return replace(
            self,
            secrets=SecretKeys.erased(),
            boxes=(),
            own_shares=b"",
            inbox=shares,
            reported=reported,
            agreement=agreement,
            expected=expected,
        )

    def agreement_message(self) -> Agreement:
        """Return the answer to `unmask`."""
        assert self.reported is not None
        return Agreement(self.group.context, self.reported, self.agreement)

    def reveal_message(self) -> Reveal:
        """Return the answer to `agreed`: the shares that are left."""
        assert self.inbox is not None
        assert self.reported is not None
        return Reveal(self.group.context, self.reported, self.inbox)
