"""A device's part in a masked group (Bonawitz et al. 2017, Fig. 4) as a state machine: messages in, answers out.

    KEYED -> SHARED -> READY -> REVEALED

| state | message | answer | next state |
|---|---|---|---|
| any | a request of another round, or another request | new keys | KEYED |
| any but REVEALED | the same request | the same keys | unchanged |
| KEYED | `roster` with these keys, within the terms | `shares` | SHARED |
| SHARED, READY | the same `roster` | the same `shares` | unchanged |
| SHARED | `inbox` with a masking set of at least the threshold | none; the update may be masked | READY |
| READY | `unmask`, a subset of the masking set of at least the threshold | `reveal`; all secrets are erased | REVEALED |
| REVEALED | the same `unmask` | the same `reveal` | unchanged |

Any other message gets no answer and changes nothing; the reason is logged on the device. So for every other member a device
reveals either the share of the self-mask or the share of the mask key, never both, whatever the coordinator sends.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

from fedpatch.device_agent.masking.masking_round import MaskingPhase, MaskingRound, RoundName
from fedpatch.shared.errors import WireError
from fedpatch.shared.masking.group_context import MaskingGroup, bitmap_of, members_of, request_digest, threshold_of
from fedpatch.shared.masking.keys import (
    PrivateKey,
    SecretKeys,
    check_distinct_keys,
    noise_seed,
    open_box,
    seal_box,
)
from fedpatch.shared.masking.opening import Mask, masks_of_member
from fedpatch.shared.masking.secret_sharing import Random, split_secret
from fedpatch.shared.privacy.skellam import SkellamNoise
from fedpatch.shared.wire.masking_messages import GroupMember, Inbox, MaskingKeys, Reveal, Roster, Shares, Unmask
from fedpatch.shared.wire.messages import WorkRequest
from fedpatch.shared.wire.privacy_messages import PrivacyTerms

MaskingBody = Roster | Inbox | Unmask


class KeyCertificates(Protocol):
    """The certificate of this device, and the CA that signs those of the others."""

    def sign(self, keys: MaskingKeys, request: bytes) -> MaskingKeys:
        """Return the keys with certificate and signature. Raises WireError."""

    def check(self, member: GroupMember, request: bytes) -> None:
        """Raise WireError unless the member has signed its keys for this request."""


@dataclass(frozen=True)
class MaskingAnswer:
    """The reaction to a message.

    Attributes:
        state: State to write to disk before the answer is sent; None: nothing is answered.
        body: The answer; None where the message has none.
        problem: Why the message was refused, for the device's log; "" if it was not.
    """

    state: MaskingRound | None = None
    body: Shares | Reveal | None = None
    problem: str = ""


class MaskingRounds:
    """The masked rounds of one device; only the last one is kept.

    Args:
        device: Name of the device.
        random: Returns random bytes: `os.urandom`.
        restored: State from before a restart.
        certificates: Signs this device's keys and checks those of others; None: the device has no certificate of the fleet's
            CA.

    Example:
        >>> import os
        >>> rounds = MaskingRounds("pi-1", os.urandom)
        >>> rounds.state is None, rounds.is_ready
        (True, False)
    """

    def __init__(
        self,
        device: str,
        random: Random,
        restored: MaskingRound | None = None,
        certificates: KeyCertificates | None = None,
    ) -> None:
        self.state = restored
        self._certificates = certificates
        self._device = device
        self._random = random

    @property
    def is_ready(self) -> bool:
        """True if the update can be masked: the masking set is known, and the secrets are not erased yet."""
        return self.state is not None and self.state.phase is MaskingPhase.READY

    def begin(self, name: RoundName, request: WorkRequest) -> MaskingKeys | None:
        """Begin a round, or continue it, and return the public keys for `accept`.

        Args:
            name: The round.
            request: Its request, with `secure`.

        Returns:
            The keys; None if this device has already revealed shares in this round: it takes no part in it again.

        Raises:
            WireError: The keys must be signed, and this device cannot sign them. The state is unchanged.
        """
        assert request.secure is not None
        digest, state = request_digest(name.task, name.run, name.round, request), self.state
        if state is not None and state.name == name:
            if state.phase is MaskingPhase.REVEALED:
                return None
            if state.request == digest:
                return state.keys
        secrets = SecretKeys.new(self._random)
        keys = secrets.public()
        if request.secure.strict:
            keys = self._signing().sign(keys, digest)
        self.state = MaskingRound(name, digest, request.secure, secrets, keys)
        return keys

    def handle(self, name: RoundName, body: MaskingBody) -> MaskingAnswer:
        """Take a message of the coordinator.

        Args:
            name: The round that the envelope names.
            body: The message.

        Returns:
            The state to write, and the answer to send after it.
        """
        state = self.state
        if state is None or state.name != name:
            return MaskingAnswer(problem=f"no keys for round {name.round} of {name.run}")
        try:
            answer = self._react(state, body)
        except WireError as error:
            return MaskingAnswer(problem=str(error))
        self.state = answer.state or self.state
        return answer

    def _react(self, state: MaskingRound, body: MaskingBody) -> MaskingAnswer:
        match body:
            case Roster():
                return self._on_roster(state, body)
            case Inbox():
                return self._on_inbox(state, body)
            case Unmask():
                return self._on_unmask(state, body)

    def masks(self) -> tuple[Mask, ...]:
        """Return the masks of the update; `is_ready` must hold. WireError where a key of the roster is unusable."""
        state, index, masking_set = self._membership()
        return masks_of_member(
            state.group,
            index,
            mask_key=state.secrets.mask,
            self_mask=state.secrets.self_mask,
            masking_set=masking_set,
        )

    def noise(self, terms: PrivacyTerms) -> SkellamNoise:
        """Return the device's share of the noise; `is_ready` must hold.

        A sum has at least `threshold` devices. Each adds 1 / `threshold` of the variance, so that a sum never has less noise
        than the terms require. The seed follows from the round's secrets: after a restart the noise is the same.
        """
        state, _, _ = self._membership()
        variance = (terms.noise_multiplier * terms.steps) ** 2 / state.group.threshold
        return SkellamNoise(noise_seed(state.secrets.share, state.group.context), variance)

    def note_update(self, digest: str) -> MaskingRound | None:
        """Note the masked update; None if it must not be sent, because another one was made under the same keys.

        Two different vectors under the same masks would reveal their difference. The result is also None after shares are
        revealed: the sum is then made without this device.
        """
        state = self.state
        if state is None or not self.is_ready or state.update not in (None, digest):
            return None
        self.state = replace(state, update=digest)
        return self.state

    def _membership(self) -> tuple[MaskingRound, int, frozenset[int]]:
        state = self.state
        assert state is not None
        assert self.is_ready
        index, masking_set = state.group.index(self._device), members_of(state.masking_set, len(state.group))
        assert index is not None
        assert masking_set is not None
        return state, index, masking_set

    # ---- roster

    def _on_roster(self, state: MaskingRound, roster: Roster) -> MaskingAnswer:
        if state.roster is not None:
            if state.phase is MaskingPhase.REVEALED:
                return MaskingAnswer(problem="the shares of this round are revealed already, and its secrets erased")
            if state.roster == roster:
                return MaskingAnswer(state, state.shares_message())
            return MaskingAnswer(problem="a second roster for the same keys; the first one counts")
        group = MaskingGroup.of_roster(state.request, roster)
        index = self._own_place(state, group)
        secrets, size = state.secrets, len(group)
        of_self_mask = split_secret(secrets.self_mask, size, group.threshold, self._random)
        of_mask_key = split_secret(secrets.mask, size, group.threshold, self._random)
        key = PrivateKey(secrets.share)
        pairs = list(zip(of_self_mask, of_mask_key, strict=True))
        boxes = tuple(
            seal_box(key, member.keys.share, group.context, (index, other), pairs[other]) if other != index else b""
            for other, member in enumerate(group.members)
        )
        own = b"".join(pairs[index])
        shared = replace(state, roster=roster, boxes=boxes, own_shares=own)
        return MaskingAnswer(shared, shared.shares_message())

    def _own_place(self, state: MaskingRound, group: MaskingGroup) -> int:
        """Return the device's index. WireError for a roster that is not of this device or not within the terms."""
        index, terms = group.index(self._device), state.terms
        if index is None:
            raise WireError(f"the roster does not name {self._device}")
        if group.members[index].keys != state.keys:
            raise WireError("the roster has other keys for this device")
        if not terms.group_min <= len(group) <= terms.group_max:
            raise WireError(f"a group of {len(group)} is outside the terms, {terms.group_min} to {terms.group_max}")
        if group.threshold != (agreed := threshold_of(terms.threshold, len(group))):
            raise WireError(f"a threshold of {group.threshold} is not that of the terms, {agreed}")
        check_distinct_keys(group.members)
        if terms.strict:
            for place, member in enumerate(group.members):
                if place != index:
                    self._signing().check(member, state.request)
        return index

    def _signing(self) -> KeyCertificates:
        if self._certificates is None:
            raise WireError("keys must be signed, and this device has no certificate of its fleet's CA")
        return self._certificates

    # ---- inbox

    def _on_inbox(self, state: MaskingRound, inbox: Inbox) -> MaskingAnswer:
        group, index = self._group_of(state, inbox.context)
        if len(inbox.boxes) != len(group) or inbox.boxes[index]:
            raise WireError(f"an inbox of {len(inbox.boxes)} boxes does not fit the group of {len(group)}")
        masking_set = frozenset({index, *(place for place, box in enumerate(inbox.boxes) if box)})
        bitmap = bitmap_of(masking_set, len(group))
        if state.inbox is not None:
            problem = (
                "" if bitmap == state.masking_set else "a second inbox with another masking set; the first one counts"
            )
            return MaskingAnswer(problem=problem)
        if len(masking_set) < group.threshold:
            raise WireError(f"a masking set of {len(masking_set)} is below the threshold of {group.threshold}")
        key = PrivateKey(state.secrets.share)
        shares = tuple(
            state.own_shares if place == index else self._open(key, group, (place, index), box)
            for place, box in enumerate(inbox.boxes)
        )
        return MaskingAnswer(replace(state, inbox=shares, masking_set=bitmap))

    @staticmethod
    def _open(key: PrivateKey, group: MaskingGroup, ends: tuple[int, int], box: bytes) -> bytes:
        """Return the shares in a box; empty if there is none or it does not open: the group can unmask without them."""
        sender = group.members[ends[0]]
        try:
            return b"".join(open_box(key, sender.keys.share, group.context, ends, box))
        except WireError:
            return b""

    # ---- unmask

    def _on_unmask(self, state: MaskingRound, unmask: Unmask) -> MaskingAnswer:
        group, _ = self._group_of(state, unmask.context)
        if state.inbox is None:
            raise WireError("the sum is asked for before the masking set is known")
        if state.reported is not None:
            if state.reported == unmask.reported:
                return MaskingAnswer(state, state.reveal_message())
            raise WireError(
                "a second, different set of reported members; shares of both kinds would open single updates"
            )
        reported, masking_set = members_of(unmask.reported, len(group)), members_of(state.masking_set, len(group))
        if reported is None or masking_set is None or not reported <= masking_set:
            raise WireError("the reported members are not a part of the masking set")
        if len(reported) < group.threshold:
            raise WireError(f"a sum of {len(reported)} devices is below the threshold of {group.threshold}")
        revealed = state.revealed(unmask.reported)
        return MaskingAnswer(revealed, revealed.reveal_message())

    def _group_of(self, state: MaskingRound, context: bytes) -> tuple[MaskingGroup, int]:
        if state.roster is None:
            raise WireError("a message about a group came before its roster")
        if state.group.context != context:
            raise WireError("a message about another group than this device's")
        index = state.group.index(self._device)
        assert index is not None
        return state.group, index
