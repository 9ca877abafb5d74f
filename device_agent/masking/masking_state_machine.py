"""A device's part in a masked group (Bonawitz et al. 2017, Fig. 4) as a state machine: messages in, answers out.

    KEYED -> SHARED -> READY -> AGREED -> REVEALED

| state | message | answer | next state |
|---|---|---|---|
| any | a request of another round, or another request, whose base is not used | new keys | KEYED |
| any | the same, whose base is used: this device has offered an update from its values | none | unchanged |
| KEYED, SHARED, READY | the same request | the same keys | unchanged |
| KEYED | `roster` with these keys, within the terms | `shares` | SHARED |
| SHARED, READY | the same `roster` | the same `shares` | unchanged |
| SHARED | `inbox` with a masking set of at least the threshold | none; the update may be masked | READY |
| READY | `unmask` of enough members, each with a code over this masking set | `agreement`; all secrets are erased | AGREED |
| AGREED, REVEALED | the same `unmask` | the same `agreement` | unchanged |
| AGREED | `agreed` with codes of at least the threshold of members, this one among them | `reveal` | REVEALED |
| REVEALED | the same sum `agreed` | the same `reveal` | unchanged |

Any other message gets no answer and changes nothing; the reason is logged on the device. So for every other member a device
reveals either the share of the self-mask or the share of the mask key, never both, whatever the coordinator sends. It reveals
for one sum, to which as many members as the threshold agree, all of them with one masking set.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Protocol

from msgspec import UnsetType

from fedpatch.device_agent.masking.masking_round import MaskingPhase, MaskingRound, RoundName
from fedpatch.device_agent.masking.spent_bases import SpentBases
from fedpatch.shared.errors import WireError
from fedpatch.shared.masking.agreement import (
    Sets,
    codes_of,
    expected_codes,
    is_signature,
    matching,
    signed_by,
    statement,
)
from fedpatch.shared.masking.group_context import MaskingGroup, bitmap_of, members_of, request_digest
from fedpatch.shared.masking.group_threshold import most_colluders, threshold_of
from fedpatch.shared.masking.keys import (
    PrivateKey,
    SecretKeys,
    check_distinct_keys,
    noise_seed,
    open_box,
    seal_box,
    training_secret,
)
from fedpatch.shared.masking.secret_sharing import Random, split_secret
from fedpatch.shared.masking.unmasking import Mask, masks_of_member
from fedpatch.shared.privacy.skellam import SkellamNoise
from fedpatch.shared.wire.masking_messages import (
    Agreed,
    Agreement,
    GroupMember,
    Inbox,
    MaskingKeys,
    Reveal,
    Roster,
    Shares,
    Unmask,
)
from fedpatch.shared.wire.messages import WorkRequest
from fedpatch.shared.wire.privacy_messages import PrivacyTerms

_PAST_SUM = (MaskingPhase.AGREED, MaskingPhase.REVEALED)
MaskingBody = Roster | Inbox | Unmask | Agreed


class KeyCertificates(Protocol):
    """The certificate of this device, and the CA that signs those of the others."""

    def sign(self, keys: MaskingKeys, request: bytes) -> MaskingKeys:
        """Return the keys with certificate and signature. Raises WireError."""

    def sign_statement(self, text: bytes) -> bytes:
        """Return the signature of a statement. Raises WireError."""

    def take_revocations(self, der: bytes | UnsetType) -> None:
        """Take the list of a request, UNSET for none. Raises WireError where it cannot count: a round does not begin then."""

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
    body: Shares | Agreement | Reveal | None = None
    problem: str = ""


class MaskingRounds:
    """The masked rounds of one device; only the last one is kept.

    Args:
        device: Name of the device.
        random: Returns random bytes: `os.urandom`.
        restored: State from before a restart.
        certificates: Signs this device's keys and checks those of others; None: the device has no certificate of the fleet's
            CA.
        offered: Digests of the bases from which this device has offered a masked update; None: the record of them is damaged,
            so the device takes part in no further round.

    Attributes:
        state: The state of the last round; None before the first one.
        spent: The bases in `offered`, and those of later offers.

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
        offered: Collection[str] | None = (),
    ) -> None:
        self.state = restored
        self.spent = SpentBases(offered)
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
            request: Request of the round, with `secure`.

        Returns:
            The keys; None if this device has offered an update from the same base, in any run, round or group, or has already
            agreed to a sum of this request. The offered update itself may be repeated under its keys.

        Raises:
            WireError: The keys must be signed, and this device cannot sign them, or it refuses the list of revoked
                certificates. The state is unchanged.
        """
        assert request.secure is not None
        digest, state = request_digest(name.task, name.run, name.round, request), self.state
        if state is not None and state.request == digest:
            return None if state.phase in _PAST_SUM else state.keys
        base = request.content or ""
        if self.spent.is_spent(base):
            return None
        secrets = SecretKeys.new(self._random)
        keys = secrets.public()
        if request.secure.strict:
            self._signing().take_revocations(request.revocations)
            keys = self._signing().sign(keys, digest)
        self.state = MaskingRound(name, digest, request.secure, secrets, keys, base=base)
        return keys

    def handle(self, name: RoundName, body: MaskingBody) -> MaskingAnswer:
        """Take a message of the coordinator.

        Args:
            name: The round that the envelope names.

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
            case Agreed():
                return self._on_agreed(state, body)

    def training_secret(self) -> bytes:
        """Return the secret of this attempt, for batch order and rounding; empty without secrets."""
        state = self.state
        return training_secret(state.secrets.share, state.request) if state is not None and state.secrets.share else b""

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

        A sum has at least `threshold` devices, of which `colluders` may tell their noise. Each adds its share of the variance
        among the others, so that their noise is never less than the terms require. The seed follows from the round's secrets:
        after a restart the noise is the same.
        """
        state, _, _ = self._membership()
        honest = state.group.threshold - (state.terms.colluders or 0)
        variance = (terms.noise_multiplier * terms.steps) ** 2 / honest
        return SkellamNoise(noise_seed(state.secrets.share, state.group.context), variance)

    def note_update(self, digest: str) -> MaskingRound | None:
        """Note the masked update and its base; None if it must not be sent: another one was, under its keys or from its base.

        Two different vectors under the same masks would reveal their difference, and two sums from the same base that of their
        members. The result is also None after the device has agreed to a sum: it is then made without this device.

        Raises:
            WireError: The masking set must be signed, and this device cannot sign it.
        """
        state = self.state
        if state is None or not self.is_ready or state.update not in (None, digest):
            return None
        if self.spent.is_damaged or (state.update is None and self.spent.is_spent(state.base)):
            return None
        if state.base:
            self.spent.add(state.base)
        codes = state.codes or self._codes(state, state.sets)
        self.state = replace(state, update=digest, codes=codes)
        return self.state

    def _codes(self, state: MaskingRound, sets: Sets) -> tuple[bytes, ...]:
        """Return what the device sends to vouch for sets: a code for each other member, or one signature."""
        index = state.group.index(self._device)
        assert index is not None
        if state.terms.strict:
            signature = self._signing().sign_statement(statement(state.group, index, sets))
            if not is_signature(state.group, index, sets, signature):
                raise WireError("this device's certificate has changed since the group was formed")
            return (signature,)
        return codes_of(state.group, index, sets, state.secrets.share)

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
            if state.phase in _PAST_SUM:
                return MaskingAnswer(
                    problem="this device has agreed to a sum of this round already, and its secrets are erased"
                )
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
        most = most_colluders(threshold_of(terms.threshold, len(group)), len(group))
        if (terms.colluders or 0) > most:
            raise WireError(f"{terms.colluders} colluders are above the {most} that a group of {len(group)} withstands")
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
        group, index = self._group_of(state, unmask.context)
        if state.inbox is None:
            raise WireError("the sum is asked for before the masking set is known")
        if state.reported is not None:
            if state.reported == unmask.reported:
                return MaskingAnswer(state, state.agreement_message())
            raise WireError(
                "a second, different set of reported members; shares of both kinds would open single updates"
            )
        reported, masking_set = members_of(unmask.reported, len(group)), members_of(state.masking_set, len(group))
        if reported is None or masking_set is None or not reported <= masking_set:
            raise WireError("the reported members are not a part of the masking set")
        if len(reported) < group.threshold:
            raise WireError(f"a sum of {len(reported)} devices is below the threshold of {group.threshold}")
        if index in reported and state.update is None:
            raise WireError("the reported members include this device, which has offered no update")
        others = reported - {index}
        if lacking := others - self._vouched(state, state.sets, others, unmask.codes):
            first = group.members[min(lacking)].device
            raise WireError(f"{len(lacking)} reported members, such as {first}, do not vouch for this masking set")
        both = Sets(state.masking_set, unmask.reported)
        agreement = self._codes(state, both)
        expected = () if state.terms.strict else expected_codes(group, index, both, state.secrets.share)
        agreed = state.agreed(unmask.reported, agreement, expected)
        return MaskingAnswer(agreed, agreed.agreement_message())

    def _vouched(
        self, state: MaskingRound, sets: Sets, members: frozenset[int], codes: tuple[bytes, ...]
    ) -> frozenset[int]:
        """Return the members that vouch for these sets to this device."""
        group = state.group
        if state.terms.strict:
            return signed_by(group, members, sets, codes)
        if state.phase in _PAST_SUM:
            return members & matching(state.expected, codes)
        index = group.index(self._device)
        assert index is not None
        return members & matching(expected_codes(group, index, sets, state.secrets.share), codes)

    # ---- agreed

    def _on_agreed(self, state: MaskingRound, agreed: Agreed) -> MaskingAnswer:
        group, index = self._group_of(state, agreed.context)
        if state.reported is None or state.reported != agreed.reported:
            raise WireError("members agree to another sum than this device")
        if not state.revealed:
            masking_set = members_of(state.masking_set, len(group))
            assert masking_set is not None
            count = 1 + len(self._vouched(state, state.sets, masking_set - {index}, agreed.codes))
            if count < group.threshold:
                raise WireError(f"{count} members agree to this sum, below the threshold of {group.threshold}")
        revealed = replace(state, revealed=True)
        return MaskingAnswer(revealed, revealed.reveal_message())

    def _group_of(self, state: MaskingRound, context: bytes) -> tuple[MaskingGroup, int]:
        if state.roster is None:
            raise WireError("a message about a group came before its roster")
        if state.group.context != context:
            raise WireError("a message about another group than this device's")
        index = state.group.index(self._device)
        assert index is not None
        return state.group, index
