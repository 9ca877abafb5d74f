"""One group of a masked round as a state machine (Bonawitz et al. 2017, Fig. 4, the server's side).

    KEYED -> SHARED -> COLLECTED -> AGREEING -> UNMASKING -> OPEN
      |                    |           |            |
      +--------------------+-----------+------------+----> LOST     (its devices' work does not count)

KEYED: the roster is drawn; members send their shares. SHARED: the masking set is fixed; its members get their inboxes and
upload, with codes over this set. COLLECTED: the set of reported members is fixed. AGREEING: members get these codes, and
answer with codes over both sets. UNMASKING: members get the codes of at least the threshold, and reveal one share of each
member of the masking set. OPEN: every secret is recovered, so the sum can be computed. LOST: fewer members than the threshold
were left.

The owner writes each step to the disk before it sends the messages of the next one: the roster before rosters, the masking set
with its shares before inboxes, the reported set before `unmask`, the codes of a member before they are passed on. So a restart
never requests shares for another set.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from enum import StrEnum

from fedpatch.shared.errors import IllegalTransition, WireError
from fedpatch.shared.masking.agreement import Sets, check_codes, codes_for
from fedpatch.shared.masking.group_context import MaskingGroup, bitmap_of
from fedpatch.shared.masking.unmasking import Mask, Opening, open_group
from fedpatch.shared.wire.masking_messages import (
    Agreed,
    Agreement,
    Codes,
    Inbox,
    Reveal,
    Roster,
    Shares,
    Unmask,
)


class GroupState(StrEnum):
    """The states of a group."""

    KEYED = "keyed"
    SHARED = "shared"
    COLLECTED = "collected"
    AGREEING = "agreeing"
    UNMASKING = "unmasking"
    OPEN = "open"
    LOST = "lost"


@dataclass(frozen=True)
class OpenGroup:
    """The devices of an open group and the masks of its sum.

    Attributes:
        devices: The devices whose masked updates are in the sum, sorted.
        masks: The masks to add to the sum of these updates (shared.masking.unmasking).
    """

    devices: tuple[str, ...]
    masks: tuple[Mask, ...]


class MaskedGroup:
    """One group from its roster to its secrets.

    A message that is damaged or of another group raises WireError; a message at the wrong time changes nothing. A method that
    is called in the wrong state raises IllegalTransition.

    Args:
        request: Digest of the round's work request (shared.masking.group_context.request_digest).
        roster: The group and its members, sorted by name.
        strict: Whether members sign their keys and what they vouch for.

    Attributes:
        state: The state of the group.
        members: Names of all members, sorted.
        shares: The shares of each member that sent them, by name.
        masking: Names of the masking set, once it is fixed.
        reported: Names of the members whose update is in the sum, once they are fixed.
        codes: The codes of each member over the masking set, by name.
        agreements: The codes of each member that agrees over both sets, by name.
        reveals: The reveals by name.
        offenders: Members that revealed wrong shares of most members of the masking set.
        silent: Members that sent no shares, no agreement or no reveal, if the group is LOST for that.
        held_up: Members that sent their shares, if collecting ended while others had not.

    Example:
        >>> group = MaskedGroup(request, roster)  # doctest: +SKIP
        >>> group.add_shares("pi-1", shares)  # doctest: +SKIP
        True
    """

    def __init__(self, request: bytes, roster: Roster, *, strict: bool = False) -> None:
        self.roster = roster
        self.codes: dict[str, Codes] = {}
        self.agreements: dict[str, Codes] = {}
        self._strict = strict
        self.state = GroupState.KEYED
        self.members = tuple(member.device for member in roster.members)
        self.shares: dict[str, Shares] = {}
        self.masking: tuple[str, ...] = ()
        self.reported: tuple[str, ...] = ()
        self.reveals: dict[str, Reveal] = {}
        self.offenders: frozenset[str] = frozenset()
        self.silent: frozenset[str] = frozenset()
        self.held_up: frozenset[str] = frozenset()
        self._group = MaskingGroup.of_roster(request, roster)
        self._index = {device: index for index, device in enumerate(self.members)}
        self._opening: Opening | None = None

    @property
    def context(self) -> bytes:
        """The name of the group in its messages."""
        return self._group.context

    @property
    def over(self) -> bool:
        """True if the group is open or lost."""
        return self.state in (GroupState.OPEN, GroupState.LOST)

    def add_shares(self, device: str, shares: Shares) -> bool:
        """Take the shares of a member; its first ones count.

        Args:
            device: The sender, a member.

        Returns:
            Whether the shares are new. False also once the masking set is fixed.

        Raises:
            WireError: The message is of another group, or not one box for each other member.
        """
        self._check_context(shares.context)
        own = self._index[device]
        sizes = [len(box) for index, box in enumerate(shares.boxes) if index != own]
        if len(shares.boxes) != len(self.members) or shares.boxes[own] or not all(sizes):
            raise WireError(f"{device} sent {len(shares.boxes)} boxes to a group of {len(self.members)}")
        if self.state is not GroupState.KEYED or device in self.shares:
            return False
        self.shares[device] = shares
        return True

    @property
    def all_shared(self) -> bool:
        """True if each member has sent its shares."""
        return len(self.shares) == len(self.members)

    def end_sharing(self) -> None:
        """Fix the masking set: the members that have sent their shares. With fewer than the threshold the group is LOST."""
        self._require(GroupState.KEYED, "end_sharing")
        self.masking = tuple(device for device in self.members if device in self.shares)
        self.state = GroupState.SHARED if len(self.masking) >= self.roster.threshold else GroupState.LOST
        if self.over:
            self.silent = frozenset(self.members).difference(self.masking)

    def inbox(self, device: str) -> Inbox:
        """Return the boxes for a member of the masking set."""
        own = self._index[device]
        boxes = (self.shares[sender].boxes[own] if sender in self.masking else b"" for sender in self.members)
        return Inbox(self.context, tuple(boxes))

    def add_codes(self, device: str, codes: Codes) -> bool:
        """Take the codes of a member of the masking set over this set; its first ones count.

        Returns:
            Whether the codes are new. False also before and after collecting.

        Raises:
            WireError: They are no codes of this member, as far as a coordinator can check.
        """
        if self.state is not GroupState.SHARED or device not in self.masking or device in self.codes:
            return False
        check_codes(self._group, self._index[device], self._sets, codes, strict=self._strict)
        self.codes[device] = codes
        return True

    def end_collecting(self, committed: Collection[str]) -> None:
        """Fix the reported set: the members of the masking set with a committed update and codes.

        With fewer than the threshold the group is LOST. A group in the state KEYED is LOST too.
        """
        if self.over:
            return
        if self.state is GroupState.SHARED:
            vouched = self.codes.keys() & committed
            self.reported = tuple(device for device in self.masking if device in vouched)
        else:
            self.silent = frozenset(self.members).difference(self.shares)
            self.held_up = frozenset(self.shares)
        enough = len(self.reported) >= self.roster.threshold
        self.state = GroupState.COLLECTED if enough else GroupState.LOST

    def begin_agreeing(self) -> None:
        """Begin to ask for agreements. Before a message is sent, the reported set must be on disk."""
        self._require(GroupState.COLLECTED, "begin_agreeing")
        self.state = GroupState.AGREEING

    def request(self, device: str) -> Unmask | Agreed | None:
        """Return the message that a member of the masking set has not answered yet; None if it has answered all."""
        if self.state not in (GroupState.AGREEING, GroupState.UNMASKING) or device not in self.masking:
            return None
        place, size, bitmap = self._index[device], len(self.members), self._bitmap()
        if device not in self.agreements:
            senders = self._indices(self.reported)
            return Unmask(self.context, bitmap, codes_for(self._codes, senders, place, size, strict=self._strict))
        if self.state is GroupState.AGREEING or device in self.reveals:
            return None
        senders = self._indices(self.agreements)
        return Agreed(self.context, bitmap, codes_for(self._agreement, senders, place, size, strict=self._strict))

    def _codes(self, index: int) -> Codes:
        return self.codes[self.members[index]]

    def _agreement(self, index: int) -> Codes:
        return self.agreements[self.members[index]]

    def resume_agreement(self, device: str, codes: Codes) -> None:
        """Take the codes of an agreement that an earlier process has saved."""
        self.add_agreement(device, Agreement(self.context, self._bitmap(), codes))

    def add_agreement(self, device: str, agreement: Agreement) -> bool:
        """Take the agreement of a member of the masking set; its first one counts. With enough of them the group unmasks.

        Args:
            device: The sender, a member.

        Returns:
            Whether the agreement is new. The owner writes a new one to the disk before it sends its codes on.

        Raises:
            WireError: The message is of another group or another reported set, or no agreement of this member.
        """
        self._check_context(agreement.context)
        asked = self.state in (GroupState.AGREEING, GroupState.UNMASKING)
        if device not in self.masking or not asked or device in self.agreements:
            return False
        if self._bitmap() != agreement.reported:
            raise WireError(f"{device} agrees to another set of reported members")
        check_codes(self._group, self._index[device], self._both_sets, agreement.codes, strict=self._strict)
        self.agreements[device] = agreement.codes
        if len(self.agreements) >= self.roster.threshold:
            self.state = GroupState.UNMASKING
        return True

    def add_reveal(self, device: str, reveal: Reveal) -> bool:
        """Take the reveal of a member of the masking set; its first one counts.

        Args:
            device: The sender, a member.

        Returns:
            Whether the reveal is new. False also before and after unmasking. The owner writes a new one to the disk, and then
            calls `open`.

        Raises:
            WireError: The message is of another group, of another reported set, or not one share for each member.
        """
        self._check_context(reveal.context)
        if device not in self.masking or self.state is not GroupState.UNMASKING or device in self.reveals:
            return False
        if self._bitmap() != reveal.reported:
            raise WireError(f"{device} revealed shares for another set of reported members")
        if len(reveal.shares) != len(self.members):
            raise WireError(f"{device} revealed {len(reveal.shares)} shares in a group of {len(self.members)}")
        self.reveals[device] = reveal
        return True

    def open(self, *, last: bool = False) -> None:
        """Recover the secrets, if enough members have revealed theirs; the group is then OPEN.

        A secret counts only if it fits the commitment, or the public key, that its owner sent. If no subset of the shares gives
        such a secret, the group waits for more reveals. A search without success takes half a second, so it is repeated only
        after 1, 2, 4, 8 and so on more reveals.

        Args:
            last: Search in any case: no more reveals will come.
        """
        more = len(self.reveals) - self.roster.threshold
        if self.state is not GroupState.UNMASKING or more < 0:
            return
        if more & (more - 1) and len(self.reveals) < len(self.masking) and not last:
            return
        try:
            self._opening = open_group(
                self._group,
                masking_set=self._indices(self.masking),
                reported=self._indices(self.reported),
                commitments={self._index[device]: self.shares[device].commitment for device in self.masking},
                reveals={self._index[device]: reveal.shares for device, reveal in self.reveals.items()},
            )
        except WireError:
            return
        self.offenders = frozenset(self.members[index] for index in self._opening.wrong)
        self.state = GroupState.OPEN

    def end_unmasking(self) -> None:
        """Open the group with the reveals that have arrived, or set it to LOST."""
        self.open(last=True)
        if not self.over:
            answered = self.agreements if self.state is GroupState.AGREEING else self.reveals
            self.silent = frozenset(self.masking).difference(answered)
            self.state = GroupState.LOST

    def lose(self) -> None:
        """Set the group to LOST, for example because one of its updates is damaged."""
        self.state = GroupState.LOST

    def result(self) -> OpenGroup:
        """Return devices and masks of the sum; raise IllegalTransition unless the group is OPEN."""
        self._require(GroupState.OPEN, "result")
        assert self._opening is not None
        return OpenGroup(self.reported, self._opening.masks)

    def _indices(self, devices: Collection[str]) -> frozenset[int]:
        return frozenset(self._index[device] for device in devices)

    @property
    def _sets(self) -> Sets:
        return Sets(bitmap_of(self._indices(self.masking), len(self.members)))

    @property
    def _both_sets(self) -> Sets:
        return replace(self._sets, reported=self._bitmap())

    def _bitmap(self) -> bytes:
        return bitmap_of(self._indices(self.reported), len(self.members))

    def _check_context(self, context: bytes) -> None:
        if context != self.context:
            raise WireError("the message is of another group or of another work request")

    def _require(self, state: GroupState, what: str) -> None:
        if self.state is not state:
            raise IllegalTransition(f"group {self.roster.group}: {what} in {self.state}, needs {state}")
