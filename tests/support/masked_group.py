"""A masked group in one process: devices with a disk, a coordinator that follows the protocol, and the transcript of both."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from fedpatch.device_agent.masking.masking_round import MaskingPhase, MaskingRound, RoundName
from fedpatch.device_agent.masking.masking_state_machine import MaskingAnswer, MaskingBody, MaskingRounds
from fedpatch.shared.masking.group_context import MaskingGroup, bitmap_of, members_of, request_digest
from fedpatch.shared.masking.group_threshold import threshold_of
from fedpatch.shared.masking.keys import SecretKeys, open_box
from fedpatch.shared.masking.masked_blob import add_masks
from fedpatch.shared.masking.unmasking import Opening, open_group
from fedpatch.shared.tensors.arrays import Array
from fedpatch.shared.wire.codec import from_bytes, to_bytes
from fedpatch.shared.wire.masking_messages import (
    Agreed,
    Agreement,
    GroupMember,
    Inbox,
    MaskingKeys,
    Reveal,
    Roster,
    SecureTerms,
    Shares,
    ThresholdRule,
    Unmask,
)
from fedpatch.shared.wire.messages import Manifest, TrainPlan, WorkRequest

NAME = RoundName("digits", "run-1", 1)
GRID = np.float32(1.0).tobytes()


def terms_of(size: int, **changes: object) -> SecureTerms:
    """Terms that allow groups of `size` devices."""
    terms = SecureTerms(ThresholdRule.HALF, 2, size, 8, 1, bytes(16), 1.0, 600, GRID)
    return replace(terms, **changes)  # type: ignore[arg-type]


def request_of(terms: SecureTerms, model: str = "ab" * 32) -> WorkRequest:
    """A request of a masked round."""
    return WorkRequest(
        "5c" * 32,
        "affine",
        TrainPlan("sgd", 0.1, 20),
        Manifest(model, 10, 10, 1, "fp32", 10, "cd" * 32),
        f"masked-u{terms.bits}",
        1000,
        60.0,
        secure=terms,
        content="ec" * 32,
    )


class Killed(Exception):
    """The device was killed."""


class MaskedDevice:
    """A device whose process may be killed at each write and at each message; its disk survives.

    Attributes:
        name: Name of the device.
        disk: Bytes of the state; None: nothing was written.
        sent: Messages that left the device.
        secrets: All secrets that the device ever had on its disk.
    """

    def __init__(self, name: str, seed: int = 0) -> None:
        self.name = name
        self.disk: bytes | None = None
        self.sent: list[Shares | Agreement | Reveal] = []
        self.secrets: set[SecretKeys] = set()
        self._random = random.Random(f"{seed}/{name}")
        self.rounds = MaskingRounds(name, self._random.randbytes)

    def accept(self, request: WorkRequest, name: RoundName = NAME) -> MaskingKeys:
        """Begin a round, save, and return the keys that are sent."""
        keys = self.rounds.begin(name, request)
        assert keys is not None, "the device has revealed in this round"
        self.save(self.state)
        return keys

    def take(self, body: MaskingBody, name: RoundName = NAME, *, die: str = "") -> MaskingAnswer:
        """Take a message, save, answer; `die` before "write" or before "send" raises Killed."""
        answer = self.rounds.handle(name, body)
        if answer.state is not None:
            if die == "write":
                raise Killed
            self.save(answer.state)
        if answer.body is not None:
            if die == "send":
                raise Killed
            self.sent.append(answer.body)
        return answer

    @property
    def state(self) -> MaskingRound:
        """State of the round that the device is in."""
        assert self.rounds.state is not None
        return self.rounds.state

    def share(self, roster: Roster, name: RoundName = NAME) -> Shares:
        """Take a roster, and return the shares that are sent."""
        body = self.take(roster, name).body
        assert isinstance(body, Shares)
        return body

    def save(self, state: MaskingRound) -> None:
        """Write the state to the disk."""
        self.disk = to_bytes(state)
        if state.secrets != SecretKeys.erased():
            self.secrets.add(state.secrets)

    def reboot(self) -> None:
        """Start again from the disk."""
        restored = None if self.disk is None else from_bytes(self.disk, MaskingRound)
        self.rounds = MaskingRounds(self.name, self._random.randbytes, restored, offered=self.rounds.spent.offered)

    def masked(self, elements: Array) -> Array:
        """Return the elements with the device's masks."""
        return add_masks(elements, self.rounds.masks())


@dataclass
class PlayedGroup:
    """A group whose devices have keys: the steps of the protocol, one after the other.

    Attributes:
        devices: The devices, in order of names.
        roster: The group.
        shares: Shares of the members that sent them, by index.
    """

    devices: Sequence[MaskedDevice]
    roster: Roster
    group: MaskingGroup
    shares: dict[int, Shares] = field(default_factory=dict)

    @classmethod
    def of(cls, size: int, seed: int = 0, terms: SecureTerms | None = None) -> PlayedGroup:
        """Return a group of devices that have accepted."""
        return cls.with_devices([MaskedDevice(f"pi-{index:02}", seed) for index in range(size)], terms)

    @classmethod
    def with_devices(cls, devices: Sequence[MaskedDevice], terms: SecureTerms | None = None) -> PlayedGroup:
        """Return a group of these devices, all of which accept."""
        terms = terms or terms_of(len(devices))
        request = request_of(terms)
        members = []
        for device in devices:
            members.append(GroupMember(device.name, device.accept(request)))
        roster = Roster(0, threshold_of(terms.threshold, len(devices)), tuple(members))
        digest = request_digest(NAME.task, NAME.run, NAME.round, request)
        return cls(devices, roster, MaskingGroup.of_roster(digest, roster))

    @property
    def context(self) -> bytes:
        """The context of the group."""
        return self.group.context

    def share(self, members: Iterable[int] | None = None) -> None:
        """Send the roster to the members (all), and take their shares."""
        for index in range(len(self.devices)) if members is None else members:
            self.shares[index] = self.devices[index].share(self.roster)

    def inbox_of(self, index: int, masking_set: frozenset[int]) -> Inbox:
        """Return the boxes for a member."""
        return Inbox(
            self.context,
            tuple(
                self.shares[other].boxes[index] if other in masking_set and other != index else b""
                for other in range(len(self.devices))
            ),
        )

    def distribute(self, masking_set: frozenset[int]) -> None:
        """Send the inboxes to the members of the masking set."""
        for index in masking_set:
            answer = self.devices[index].take(self.inbox_of(index, masking_set))
            assert not answer.problem, answer.problem

    def vouch(self, members: Iterable[int]) -> None:
        """Let members offer an update, with their codes over the masking set."""
        for index in members:
            device = self.devices[index]
            if device.state.update is None:
                state = device.rounds.note_update(f"{index:064x}")
                assert state is not None
                device.save(state)

    def unmask(self, reported: frozenset[int], index: int = 0) -> Unmask:
        """Return the message that asks a member for its agreement to the sum of the reported members, which vouch first."""
        self.vouch(one for one in reported if self.devices[one].state.phase is MaskingPhase.READY)
        codes = {one: self.devices[one].state.codes for one in reported}
        sent = tuple(codes[one][index] if codes.get(one) else b"" for one in range(len(self.devices)))
        return Unmask(self.context, bitmap_of(reported, len(self.devices)), sent)

    def agree(self, reported: frozenset[int], members: Iterable[int]) -> dict[int, Agreement]:
        """Ask members for their agreement, and return those that came."""
        found = {}
        for index in members:
            body = self.devices[index].take(self.unmask(reported, index)).body
            if isinstance(body, Agreement):
                found[index] = body
        return found

    def agreed(self, reported: frozenset[int], index: int, agreements: dict[int, Agreement]) -> Agreed:
        """Return the message that asks a member for its shares."""
        codes = (agreements[one].codes[index] if one in agreements else b"" for one in range(len(self.devices)))
        return Agreed(self.context, bitmap_of(reported, len(self.devices)), tuple(codes))

    def reveal(self, index: int, reported: frozenset[int]) -> Reveal:
        """Let all members of the masking set agree, and return the reveal of one."""
        masking_set = members_of(self.devices[index].state.masking_set, len(self.devices))
        assert masking_set is not None
        agreements = self.agree(reported, sorted(masking_set))
        body = self.devices[index].take(self.agreed(reported, index, agreements)).body
        assert isinstance(body, Reveal)
        return body

    def reveals(self, reported: frozenset[int], members: Iterable[int]) -> dict[int, tuple[bytes, ...]]:
        """Let all members of the masking set agree, some of them reveal, and return their shares."""
        return {index: self.reveal(index, reported).shares for index in members}

    def open(
        self, masking_set: frozenset[int], reported: frozenset[int], reveals: dict[int, tuple[bytes, ...]]
    ) -> Opening:
        """Open the group as the coordinator does."""
        commitments = {index: shares.commitment for index, shares in self.shares.items()}
        return open_group(
            self.group, masking_set=masking_set, reported=reported, commitments=commitments, reveals=reveals
        )


def check_transcript(devices: Iterable[MaskedDevice], rosters: Iterable[MaskingGroup]) -> None:
    """Check that no device gave both kinds of share of a peer, and that both secrets of a device stay unknown.

    The kind of a revealed share is read from its bytes, not from the message's bitmap: the boxes of all devices are opened
    with the secrets that they had.

    Args:
        devices: Honest devices with everything that they ever sent.
        rosters: All groups that a coordinator ever formed.
    """
    devices = list(devices)
    groups = {group.context: group for group in rosters}
    for device in devices:
        sums = [(one.context, one.reported) for one in device.sent if isinstance(one, Agreement | Reveal)]
        assert len(set(sums)) == len({context for context, _ in sums}), f"{device.name} agreed to two sums of a group"
    kinds: dict[tuple[bytes, int], dict[str, set[int]]] = {}
    answers: dict[tuple[str, bytes], set[Reveal]] = {}
    for device in devices:
        for reveal in (one for one in device.sent if isinstance(one, Reveal)):
            answers.setdefault((device.name, reveal.context), set()).add(reveal)
            group = groups[reveal.context]
            index = group.index(device.name)
            assert index is not None
            for peer, share in enumerate(reveal.shares):
                for kind in _kinds_of(share, devices, group, (peer, index)) if share else ():
                    kinds.setdefault((reveal.context, peer), {"self": set(), "key": set()})[kind].add(index)
    assert all(len(sent) == 1 for sent in answers.values()), "a device revealed twice with different bytes"
    for (context, peer), by_kind in kinds.items():
        both = by_kind["self"] & by_kind["key"]
        assert not both, f"members {both} gave both kinds of share of member {peer}"
        enough = groups[context].threshold
        assert not all(len(members) >= enough for members in by_kind.values()), f"both secrets of {peer} are known"


def _kinds_of(
    share: bytes, devices: Sequence[MaskedDevice], group: MaskingGroup, ends: tuple[int, int]
) -> Iterable[str]:
    """Return the kinds of a share of member `ends[0]` that member `ends[1]` revealed."""
    peer, index = ends
    by_name = {device.name: device for device in devices}
    sender, receiver = by_name.get(group.members[peer].device), by_name[group.members[index].device]
    if sender is None:
        return
    if peer == index:  # no other member has it; the state machine keeps it in one place, in the same order
        return
    for sent in (one for one in sender.sent if isinstance(one, Shares) and one.context == group.context):
        for secrets in receiver.secrets:
            if secrets.public().share == group.members[index].keys.share:
                pair = open_box(secrets.share, group.members[peer].keys.share, group.context, ends, sent.boxes[index])
                yield from (kind for kind, one in zip(("self", "key"), pair, strict=True) if one == share)
