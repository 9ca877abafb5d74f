"""The groups of a masked round: keys, rosters, shares, inboxes and reveals, as effects.

`MaskedRound` adds masking to coordinator.rounds.active_round: it draws the groups at the end of recruiting, and drives one
coordinator.masking.group.MaskedGroup for each. Each step is a SaveGroupSteps effect before the messages that depend on it,
so that a restarted coordinator continues with the same rosters, masking sets and reported sets.

Lost messages: a roster is sent again until shares come, `unmask` until an agreement comes, `agreed` until a reveal comes, all
every REPEAT_S. A device does not
confirm its inbox. The inbox is sent again after doubling pauses until the device offers its update, and after each answer of
the device to a work request.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from fedpatch.coordinator.masking.group import GroupState, MaskedGroup, OpenGroup
from fedpatch.coordinator.masking.masked_groups import RunGroups
from fedpatch.coordinator.rounds.participant_transitions import AT_WORK, ParticipantEvent, Phase, State
from fedpatch.coordinator.rounds.round_journal import MaskingEntry
from fedpatch.coordinator.rounds.round_phases import GROUP_LOST, RETURN_S, Round
from fedpatch.coordinator.rounds.run_effects import CountEvent, Effect, SaveGroupSteps
from fedpatch.coordinator.rounds.secure_policy import SecurePolicy
from fedpatch.shared.errors import WireError
from fedpatch.shared.masking.group_threshold import threshold_of
from fedpatch.shared.masking.keys import key_in_any_form
from fedpatch.shared.masking.revocation import RevocationList
from fedpatch.shared.masking.signed_keys import check_signed_keys
from fedpatch.shared.typed_values import learn_types
from fedpatch.shared.wire.codec import from_bytes, to_bytes
from fedpatch.shared.wire.masking_messages import (
    Agreement,
    Codes,
    GroupMember,
    MaskingKeys,
    Reveal,
    Roster,
    SecureTerms,
    Shares,
)
from fedpatch.shared.wire.messages import Accept, Body, Cancel, Need, Offer, Progress

REPEAT_S = 3.0
"""The pause before a roster or `unmask` is sent again: the message or its answer may be lost."""
NO_KEYS, NO_SHARES, OTHER_KEYS, NO_GROUP = "no_keys", "no_shares", "other_keys", "no_group"
"""Reasons of participants that leave the round: no keys with the acceptance, no shares in time, other keys than before, or no
group that they fit into."""

_LONGEST_PAUSE_S = 60.0
_WRONG = "wrong secret shares"
_TOO_FEW = (
    "the devices without a relay are fewer than min_group, but they count; if they stay too few, `fedpatch devices drain {}` "
    "takes it out of the count"
)

Send = Callable[[str, Body], Effect]


class MaskedRound:
    """The groups of one round.

    Args:
        round: The round's state machine.
        terms: The terms in its work requests.
        policy: The conditions of the run.
        request: Digest of its work request (shared.masking.group_context.request_digest).
        send: Makes the effect that sends a message to a device.
        sums: Relays of the round, whose updates are the sums of their sites: they have no keys and no group here.
        revoked: The list of revoked certificates in its work request.
        groups: The groups of the run.

    Attributes:
        sums: As given.
        keys: The keys of the devices that accepted, by name.
        groups: The groups; empty before they are drawn.
    """

    def __init__(
        self,
        round: Round,
        terms: SecureTerms,
        policy: SecurePolicy,
        request: bytes,
        send: Send,
        sums: Collection[str] = (),
        revoked: RevocationList | None = None,
        *,
        groups: RunGroups,
    ) -> None:
        self.terms = terms
        self.sums = frozenset(sums)
        self.keys: dict[str, MaskingKeys] = {}
        self.groups: list[MaskedGroup] = []
        self._round, self._number = round, round.number
        self._policy = policy
        self._run_groups = groups
        self._request = request
        self._revoked = revoked
        self._send = send
        self._group_of: dict[str, MaskedGroup] = {}
        self._owner_of: dict[bytes, str] = {}  # device by its keys, in the form of `key_in_any_form`
        self._without_groups = False
        # Relays may report before the groups are drawn, but other devices cannot: the grace period does not run yet.
        round.sharing = bool(self.sums)
        self._shares_until = self._repeat_at = self._inbox_at = 0.0
        self._inbox_pause_s = REPEAT_S

    def advance(self, now: float) -> list[Effect]:
        """Draw the groups once recruiting has ended, and end the work of devices that cannot report any more.

        With too few devices for a group and no relay, the round fails. Called after every event.
        """
        effects: list[Effect] = []
        if self._round.phase is Phase.COLLECTING and not self.drawn:
            effects += self._draw(now)
        if self._round.phase is Phase.COLLECTING:
            effects += [effect for device, why in self._out().items() for effect in self.leave(device, why, now)]
            self._round.sharing = any(group.state is GroupState.KEYED for group in self.groups)
            self._round.tick(now)
        return effects

    def on_message(self, device: str, body: Body) -> list[Effect] | None:
        """Handle a masking message, or a message of a device whose update is committed and whose shares are still needed.

        Args:
            device: The sender, a participant.

        Returns:
            The effects; None for a message that is handled as in other rounds.
        """
        match body:
            case Shares() if self._round.awaits(device):
                return self._on_shares(device, body)
            case Agreement():
                return self._on_agreement(device, body)
            case Reveal():
                return self._on_reveal(device, body)
            case _ if device in self.sums:
                return None
            case Accept() | Progress() | Need() if self._round.participants[device].state is State.REPORTED:
                # `cancel` would make the device forget the shares that it still has to reveal.
                return self.remind(device)
        return None

    def leave(self, device: str, why: str, now: float, detail: str = "") -> list[Effect]:
        """End the work of a device in this round; do nothing if it is not working.

        Args:
            why: The reason, for the record.
            now: The time, in seconds.
            detail: Details, for the operator.
        """
        if not self._round.handle(device, ParticipantEvent.FAIL, now, why):
            return []
        return [self._send(device, Cancel(why)), CountEvent(device, "failed", why, detail)]

    # ---- keys and rosters

    @property
    def drawn(self) -> bool:
        """True if the groups are drawn, or only relays are left."""
        return self._without_groups or bool(self.groups)

    def add_keys(self, device: str, keys: MaskingKeys | None) -> None:
        """Take the keys of an acceptance.

        Raises:
            WireError: Keys are missing or unusable, those of another device, or other than the keys in the roster. Where keys
                must be signed, a bad signature makes them unusable: the other members would refuse the whole roster.
        """
        forms = _forms(keys)
        if keys is None or not forms:
            raise WireError(f"{device} has sent no keys that can be used")
        if self.drawn:
            if self.keys.get(device) != keys:
                raise WireError(f"{device} is in no roster, or its roster has other keys")
            return
        policy = self._policy
        if policy.authorities is not None:
            check_signed_keys(device, keys, self._request, policy.authorities, policy.unix_time(), self._revoked)
        if owner := next((one for form in forms if (one := self._owner_of.get(form, device)) != device), None):
            raise WireError(f"{device} has sent a key of {owner}, in the same or another form")
        self._owner_of |= dict.fromkeys(forms, device)
        self.keys[device] = keys

    def _draw(self, now: float) -> list[Effect]:
        """Draw the groups of the devices that accepted; return the effects that save the rosters and send them."""
        at_work = self._round.devices(*AT_WORK)
        able = [device for device in at_work if device in self.keys]
        policy, most = self._policy, self.terms.group_max
        size = min(policy.size, most)
        drawn = self._run_groups.of_round(able, self._number, size=size, least=policy.least, most=most)
        for number, names in enumerate(drawn):
            members = tuple(GroupMember(name, self.keys[name]) for name in names)
            self._add_group(Roster(number, threshold_of(self.terms.threshold, len(names)), members))
        if not drawn and self.sums.isdisjoint(self._round.devices(*AT_WORK, State.REPORTED)):
            self._round.abandon(now, "too_few_accepted")
            return []
        self._without_groups = not drawn
        self._shares_until = now + self._policy.share_deadline_s
        self._repeat_at = self._inbox_at = now + REPEAT_S
        entries = tuple(MaskingEntry(one.roster.group, "roster", "", to_bytes(one.roster)) for one in self.groups)
        without = [
            effect
            for device in at_work
            if device not in self._group_of and device not in self.sums
            for effect in self._leave_out(device, now)
        ]
        saved: list[Effect] = [SaveGroupSteps(self._number, entries)] if entries else []
        return [*saved, *self._rosters(), *without]

    def _leave_out(self, device: str, now: float) -> list[Effect]:
        if device not in self.keys:
            return self.leave(device, NO_KEYS, now)
        return self.leave(device, NO_GROUP, now, _TOO_FEW.format(device) if self._without_groups else "")

    def group_of(self, device: str) -> MaskedGroup | None:
        """Return the group of a device; None before the groups are drawn, and for a device without one."""
        return self._group_of.get(device)

    # ---- shares and inboxes

    def _on_shares(self, device: str, shares: Shares) -> list[Effect]:
        """Take the shares of a member. The answer to repeated shares is the member's inbox, if it exists already."""
        group = self.group_of(device)
        if group is None:
            return []
        try:
            group.add_shares(device, shares)
        except WireError as error:
            return [_ignored(device, str(error), ours=shares.context == group.context)]
        if group.state is GroupState.KEYED and group.all_shared:
            return self._end_sharing([group])
        return self._inbox(group, device)

    def remind(self, device: str) -> list[Effect]:
        """Return the message that a device may have lost: its roster, its inbox or `unmask`."""
        group = self.group_of(device)
        if group is None or group.over:
            return []
        if group.state is GroupState.KEYED:
            return [] if device in group.shares else [self._send(device, group.roster)]
        if (asked := group.request(device)) is not None:
            return [self._send(device, asked)]
        return self._inbox(group, device)

    def may_upload(self, device: str) -> bool:
        """Return whether a device is in the masking set of a group that collects, or a relay."""
        if device in self.sums:
            return True
        group = self.group_of(device)
        return group is not None and group.state is GroupState.SHARED and device in group.masking

    def take_codes(self, device: str, offer: Offer) -> list[Effect]:
        """Take the codes of an offer over the masking set, and return the effect that saves them.

        Raises:
            WireError: The device does not vouch for the masking set of its group: its update cannot be in a sum.
        """
        group = self.group_of(device)
        if device in self.sums or group is None or not group.add_codes(device, offer.codes or ()):
            return []
        content = to_bytes(_Codes(group.codes[device]))
        return [SaveGroupSteps(self._number, (MaskingEntry(group.roster.group, "codes", device, content),))]

    def _out(self) -> dict[str, str]:
        """Return the devices that cannot report, each with the reason."""
        reasons = {}
        for group in self.groups:
            for device in group.members:
                if group.state is GroupState.LOST:
                    reasons[device] = GROUP_LOST
                elif group.state is not GroupState.KEYED and device not in group.masking:
                    reasons[device] = NO_SHARES
        return reasons

    # ---- unmasking

    def end_collecting(self, committed: Collection[str], now: float) -> list[Effect]:
        """Fix the reported sets and request shares.

        Args:
            committed: Devices with a committed update.
            now: The time, in seconds.

        Returns:
            The effects that save the sets, then ask each member of the masking sets for its agreement.
        """
        entries = []
        for group in self.groups:
            if group.state not in (GroupState.KEYED, GroupState.SHARED):
                continue
            _end_collecting(group, committed)
            content = to_bytes(_Names(group.reported))
            entries.append(MaskingEntry(group.roster.group, "reported", "", content))
        self._repeat_at = now + REPEAT_S
        save: list[Effect] = [SaveGroupSteps(self._number, tuple(entries))] if entries else []
        return [*save, *self._unmask()]

    def _on_agreement(self, device: str, agreement: Agreement) -> list[Effect]:
        """Take the agreement of a member: saved first, then passed on once there are enough."""
        group = self.group_of(device)
        if group is None:
            return []
        unmasks = group.state is GroupState.UNMASKING
        try:
            new = group.add_agreement(device, agreement)
        except WireError as error:
            return [_ignored(device, str(error), ours=agreement.context == group.context)]
        if not new:
            return self.remind(device)
        content = to_bytes(_Codes(agreement.codes))
        saved = SaveGroupSteps(self._number, (MaskingEntry(group.roster.group, "agreement", device, content),))
        if unmasks:
            return [saved, *self.remind(device)]
        return [saved, *(self._unmask(group) if group.state is GroupState.UNMASKING else ())]

    def _on_reveal(self, device: str, reveal: Reveal) -> list[Effect]:
        """Take the reveal of a member: saved first, then used."""
        group = self.group_of(device)
        if group is None:
            return []
        try:
            new = group.add_reveal(device, reveal)
        except WireError as error:
            return [_ignored(device, str(error), ours=reveal.context == group.context)]
        if not new:
            return []
        group.open()
        saved = SaveGroupSteps(self._number, (MaskingEntry(group.roster.group, "reveal", device, to_bytes(reveal)),))
        wrong = (_ignored(sender, _WRONG, ours=True) for sender in sorted(group.offenders))
        return [saved, *wrong]

    @property
    def silent(self) -> set[str]:
        """The devices that sent no shares or no reveal, so that their group is lost."""
        return {device for group in self.groups for device in group.silent}

    @property
    def held_up(self) -> set[str]:
        """The devices that could not report, because others of their group sent no shares."""
        return {device for group in self.groups for device in group.held_up}

    @property
    def settled(self) -> bool:
        """True if each group is open or lost."""
        return all(group.over for group in self.groups)

    def end_unmasking(self, now: float) -> list[Effect]:
        """End unmasking: groups that are not open are lost, and their reports do not count.

        The round continues with its aggregation, or fails with `groups_lost`.
        """
        effects = [effect for group in self.groups for effect in self._end_group(group)]
        lost = [device for group in self.groups if group.state is GroupState.LOST for device in group.members]
        reported = [device for device in lost if self._round.participants[device].state is State.REPORTED]
        self._round.finish_unmasking(lost, now)
        return [*effects, *(CountEvent(device, "failed", GROUP_LOST) for device in reported)]

    @staticmethod
    def _end_group(group: MaskedGroup) -> list[Effect]:
        was_over = group.over
        group.end_unmasking()
        return [] if was_over else [_ignored(sender, _WRONG, ours=True) for sender in sorted(group.offenders)]

    def results(self) -> tuple[OpenGroup, ...]:
        """Return the open groups."""
        return tuple(group.result() for group in self.groups if group.state is GroupState.OPEN)

    # ---- time

    def tick(self, now: float, *, connected: bool) -> list[Effect]:
        """End the exchange of shares at its deadline, and send unanswered messages again."""
        late = [group for group in self.groups if group.state is GroupState.KEYED and now >= self._shares_until]
        effects = self._end_sharing(late)
        if now >= self._repeat_at and self._waits:
            self._repeat_at = now + REPEAT_S
            effects += [*self._rosters(), *self._unmask()] if connected else []
        if now >= self._inbox_at and (without := self._before_upload()):
            self._inbox_pause_s = min(2 * self._inbox_pause_s, _LONGEST_PAUSE_S)
            self._inbox_at = now + self._inbox_pause_s
            effects += [effect for device in without for effect in self.remind(device)] if connected else []
        return effects

    def next_deadline(self) -> float | None:
        """Return the next time at which `tick` may have an effect; None if there is none."""
        candidates = [self._repeat_at] if self._waits else []
        if any(group.state is GroupState.KEYED for group in self.groups):
            candidates.append(self._shares_until)
        if self._before_upload():
            candidates.append(self._inbox_at)
        return min(candidates, default=None)

    # ---- a continued round

    def resume(self, entries: Sequence[MaskingEntry], updates: Collection[str], now: float, *, closing: bool) -> None:
        """Continue with the groups of an earlier process, before the round resumes.

        A group is lost if the update of a reported member is damaged, or if the aggregation had begun without the group.

        Args:
            entries: The steps that the earlier process saved.
            updates: Devices with a committed update.
            now: The time, in seconds.
            closing: Whether the aggregation had begun.

        Raises:
            WireError, IllegalTransition, LookupError, ValueError: An entry is damaged.
        """
        updates = frozenset(updates)
        by_kind: dict[str, list[MaskingEntry]] = {}
        for entry in entries:
            by_kind.setdefault(entry.step, []).append(entry)
        for entry in sorted(by_kind.get("roster", ()), key=lambda one: one.group):
            roster = from_bytes(entry.content, Roster)
            self.keys |= {member.device: member.keys for member in roster.members}
            self._add_group(roster)
        for entry in by_kind.get("shares", ()):
            self.groups[entry.group].add_shares(entry.device, from_bytes(entry.content, Shares))
        for entry in by_kind.get("masking", ()):
            self.groups[entry.group].end_sharing()
        self._resume_agreement(by_kind)
        for entry in by_kind.get("reveal", ()):
            self.groups[entry.group].add_reveal(entry.device, from_bytes(entry.content, Reveal))
        for group in self.groups:
            _continue(group, updates, closing=closing)
        self._shares_until = now + max(self._policy.share_deadline_s, RETURN_S)
        self._repeat_at = now

    def _resume_agreement(self, by_kind: dict[str, list[MaskingEntry]]) -> None:
        """Take the saved codes, reported sets and agreements."""
        for entry in by_kind.get("codes", ()):
            self.groups[entry.group].add_codes(entry.device, from_bytes(entry.content, _Codes).codes)
        for entry in by_kind.get("reported", ()):
            _end_collecting(self.groups[entry.group], from_bytes(entry.content, _Names).names)
        for entry in by_kind.get("agreement", ()):
            self.groups[entry.group].resume_agreement(entry.device, from_bytes(entry.content, _Codes).codes)

    # ---- helpers

    @property
    def _waits(self) -> bool:
        waiting = (GroupState.KEYED, GroupState.AGREEING, GroupState.UNMASKING)
        return any(group.state in waiting for group in self.groups)

    def _before_upload(self) -> list[str]:
        """Return the devices that have their inbox, as far as is known, and have not offered an update."""
        states = (State.ACCEPTED, State.TRAINING)
        waiting = (device for device in self._round.devices(*states) if device not in self.sums)
        return [device for device in waiting if self.may_upload(device)]

    def _add_group(self, roster: Roster) -> None:
        group = MaskedGroup(self._request, roster, strict=self.terms.strict)
        self.groups.append(group)
        self._group_of |= dict.fromkeys(group.members, group)

    def _end_sharing(self, groups: Sequence[MaskedGroup]) -> list[Effect]:
        entries, inboxes = [], []
        for group in groups:
            group.end_sharing()
            number = group.roster.group
            entries += [
                MaskingEntry(number, "shares", device, to_bytes(group.shares[device])) for device in group.masking
            ]
            entries.append(MaskingEntry(number, "masking", "", b""))
            inboxes += [effect for device in group.masking for effect in self._inbox(group, device)]
        return [SaveGroupSteps(self._number, tuple(entries)), *inboxes] if entries else []

    def _inbox(self, group: MaskedGroup, device: str) -> list[Effect]:
        if group.state is not GroupState.SHARED or device not in group.masking:
            return []
        return [self._send(device, group.inbox(device))]

    def _rosters(self) -> list[Effect]:
        keyed = [group for group in self.groups if group.state is GroupState.KEYED]
        return [
            self._send(device, group.roster)
            for group in keyed
            for device in group.members
            if device not in group.shares
        ]

    def _unmask(self, *groups: MaskedGroup) -> list[Effect]:
        """Return the messages that members of groups (default: all) have not answered yet, from `unmask` on."""
        return [
            self._send(device, asked)
            for group in groups or self.groups
            for device in group.masking
            if (asked := group.request(device)) is not None
        ]


@dataclass(frozen=True)
class _Names:
    """The content of an entry with a set of devices."""

    names: tuple[str, ...]


@dataclass(frozen=True)
class _Codes:
    """The content of an entry with the codes of a member."""

    codes: Codes


learn_types(_Names, _Codes)


def _end_collecting(group: MaskedGroup, committed: Collection[str]) -> None:
    """Fix the reported set, and begin to ask for agreements unless the group is lost."""
    group.end_collecting(committed)
    if group.state is GroupState.COLLECTED:
        group.begin_agreeing()


def _continue(group: MaskedGroup, updates: frozenset[str], *, closing: bool) -> None:
    """Open a group if its reveals allow it; the group is lost without the update of a reported member."""
    if not updates >= set(group.reported):
        group.lose()
    elif closing:
        group.end_unmasking()
    else:
        group.open()


def _forms(keys: MaskingKeys | None) -> tuple[bytes, ...]:
    """Return both keys in the form that all their copies have; empty if other members cannot agree on masks with them."""
    if keys is None:
        return ()
    try:
        forms = key_in_any_form(keys.share), key_in_any_form(keys.mask)
    except WireError:
        return ()
    return forms if len(set(forms)) == len(forms) else ()


def _ignored(device: str, detail: str, *, ours: bool) -> Effect:
    """Count a message. A message of another context is no offence: its request may have changed on its way."""
    return CountEvent(device, "ignored", "not_ours" if ours else "other_context", detail)
