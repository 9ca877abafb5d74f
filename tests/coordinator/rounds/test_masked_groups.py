"""The groups of a masked round: who has one, what is saved and sent at each step, and which messages are ignored."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any

import pytest

from fedpatch.coordinator.aggregation.limit_syntax import Limits
from fedpatch.coordinator.masking.group import MaskedGroup
from fedpatch.coordinator.masking.masked_groups import REGISTER
from fedpatch.coordinator.rounds.masked_round import MaskedRound
from fedpatch.coordinator.rounds.participant_transitions import Phase, State
from fedpatch.coordinator.rounds.round_journal import (
    CommittedUpdate,
    MaskingEntry,
    RoundJournal,
    RoundStart,
    terms_entry,
)
from fedpatch.coordinator.rounds.run_effects import (
    AggregateUpdates,
    CountEvent,
    Effect,
    ExcludeDevice,
    PublishModel,
    SaveGroupSteps,
    SaveJournal,
    SendMessage,
    StoreUpdate,
)
from fedpatch.coordinator.rounds.run_engine import Engine
from fedpatch.coordinator.rounds.run_events import (
    ChunkReceived,
    DeviceMessage,
    DevicePresence,
    Event,
    ModelPublished,
    RunStarted,
    TimePassed,
    UpdateStored,
)
from fedpatch.coordinator.rounds.secure_policy import SecurePolicy
from fedpatch.shared.wire.chunks import cut
from fedpatch.shared.wire.features import MASKED_FEATURE, SUMS_FEATURE
from fedpatch.shared.wire.masking_messages import (
    Agreed,
    Agreement,
    Inbox,
    Reveal,
    Roster,
    Shares,
    ThresholdRule,
    Unmask,
)
from fedpatch.shared.wire.messages import (
    Accept,
    Body,
    DeviceState,
    Failed,
    Grant,
    Offer,
    Refused,
    TaskCapability,
    WorkRequest,
)
from fedpatch.shared.wire.reason_codes import FailReason, RefuseReason
from tests.coordinator.engines import BLOB, current
from tests.support.masked_group import MaskedDevice, terms_of
from tests.support.specs import SCHEMA, TASK, envelope_of, model, run_spec, there, update

UPDATE = replace(update(BLOB), encoding="masked-u8")
RELAY_TASKS = (TaskCapability(TASK, SCHEMA, 80, members=8),)
POLICY = SecurePolicy(9, 2, ThresholdRule.HALF, 8, 1.0, 600, 5.0, lambda: 0.0)


def presence_of(name: str) -> DeviceState:
    """Return the presence of a device, or of a relay if the name is in capitals."""
    if name.islower():
        return replace(there(), features=(MASKED_FEATURE,))
    return replace(there(tasks=RELAY_TASKS), features=(SUMS_FEATURE,))


class Played:
    """A masked round of an engine with these devices. The devices whose names are in capitals are relays.

    Attributes:
        mail: Messages that the devices have not received yet, each with its device.
        saved: The saved steps of the round.
        effects: All effects.
    """

    def __init__(self, names: str, unfinished: RoundStart | None = None, most: int = 9, **changes: Any) -> None:
        given = {"devices": len(names), "quorum": 0.5, "unmask_s": 30.0, "rounds": 9, "upload_slots": 9}
        secure = replace(POLICY, given=terms_of(most), size=most)
        spec = run_spec(**{"secure": secure, "limits": Limits(max_members=20)} | given | changes)
        self.engine = Engine(spec, unfinished=unfinished, jitter=random.Random(1))
        self.devices = {name: MaskedDevice(name) for name in names if name.islower()}
        self.names, self.now = names, 0.0
        self.mail: list[tuple[str, Body]] = []
        self.saved: list[MaskingEntry] = []
        self.effects: list[Effect] = []
        self.change: Callable[[str, Body], Body] = lambda device, answer: answer

    def begin(self) -> Played:
        """Bring all devices online; the round begins with them."""
        self.perform(RunStarted())
        for name in self.names:
            self.perform(DevicePresence(name, presence_of(name)))
        return self

    @property
    def masked(self) -> MaskedRound:
        masked = current(self.engine).masked
        assert masked is not None
        return masked

    @property
    def group(self) -> MaskedGroup:
        """The only group."""
        [group] = self.masked.groups
        return group

    def perform(self, event: Event) -> list[Effect]:
        """Handle an event, and the events that complete its effects; return the effects."""
        effects = self.engine.handle(event, self.now)
        self.effects += effects
        for effect in list(effects):
            match effect:
                case PublishModel():
                    published = ModelPublished(model(), secure=terms_of(9), content="ec" * 32)
                    effects += self.perform(published)
                case StoreUpdate():
                    effects += self.perform(UpdateStored(effect.round, effect.device, effect.manifest.digest, None))
                case SendMessage():
                    self.mail.append((effect.device, effect.envelope.body))
                case SaveGroupSteps() if effect.round != REGISTER:
                    self.saved += effect.entries
        return effects

    def send(self, device: str, body: Body) -> list[Effect]:
        return self.perform(DeviceMessage(device, envelope_of(body)))

    def wait(self, seconds: float) -> list[Effect]:
        self.now += seconds
        return self.perform(TimePassed())

    def turn(self, without: Collection[str] = ()) -> list[Body]:
        """Let the devices receive and answer their mail, except some that lose it; return what they received."""
        mail, self.mail = self.mail, []
        for device, body in mail:
            if device not in without:
                for answer in self.answers(device, body):
                    self.send(device, self.change(device, answer))
        return [body for _, body in mail]

    def turn_until(self, kind: type[Body], without: Collection[str] = ()) -> Played:
        """Take turns until a message of this kind is on its way."""
        for _ in range(9):
            if any(isinstance(body, kind) for _, body in self.mail):
                return self
            self.turn(without)
        raise AssertionError(kind)

    def answers(self, device: str, body: Body) -> list[Body]:
        known = self.devices.get(device)
        match body:
            case WorkRequest():
                return [Accept(10, None if known is None else known.accept(body))]
            case Roster() | Inbox() | Unmask() | Agreed():
                assert known is not None
                answer = known.take(body).body
                return [self.offer_of(device)] if isinstance(body, Inbox) else [answer] if answer is not None else []
            case Grant():
                for index in range(UPDATE.chunk_count):
                    self.perform(ChunkReceived(device, cut(BLOB, UPDATE, index)))
        return []

    def offer_of(self, device: str) -> Offer:
        state = self.devices[device].rounds.note_update(UPDATE.digest)
        assert state is not None
        return Offer(UPDATE, state.codes)

    def counts(self, what: str) -> list[tuple[str, str]]:
        """Return device and reason of each event of this kind."""
        return [(one.device, one.reason) for one in self.effects if isinstance(one, CountEvent) and one.what == what]

    def again(self) -> Played:
        """Return the next epoch of the engine, with the journal, the steps and the committed updates."""
        round = current(self.engine).round
        [journal] = [one.journal for one in self.effects if isinstance(one, SaveJournal)]
        known: RoundJournal = replace(
            journal, accepted=frozenset(round.accepted()), unmasking=False, spent_s=round.spent_s(self.now)
        )
        updates = {device: CommittedUpdate(UPDATE.digest, len(BLOB), None) for device in round.devices(State.REPORTED)}
        terms = {"epoch": 2, "most": self.masked.terms.group_max}
        again = Played(self.names, RoundStart(known, updates, tuple(self.saved)), **terms)
        again.devices, again.now = self.devices, self.now
        again.perform(RunStarted())
        return again


def test_whole_round_opens_its_group():
    played = Played("abc").begin()
    assert [type(body) for body in played.turn()] == [WorkRequest] * 3
    while played.mail:
        played.turn()
    [aggregate] = [one for one in played.effects if isinstance(one, AggregateUpdates)]
    assert (aggregate.devices, [group.devices for group in aggregate.groups]) == (tuple("abc"), [tuple("abc")])


def test_groups_of_the_run_are_saved_before_the_first_round():
    effects = Played("abc").begin().effects
    register = SaveGroupSteps(REGISTER, tuple(MaskingEntry(0, "roster", device, b"") for device in "abc"))
    assert effects.index(register) < effects.index(PublishModel(1))


def test_terms_and_relays_of_a_round_are_saved_before_its_first_request():
    effects = Played("abS").begin().effects
    first = next(at for at, one in enumerate(effects) if isinstance(one, SendMessage))
    [saved] = [one for one in effects[:first] if isinstance(one, SaveGroupSteps) and one.round == 1]
    terms, relay = saved.entries
    assert (terms, terms.group) == (terms_entry(terms_of(9), measures=False), 0)
    assert relay == MaskingEntry(0, "terms", "S", b"")


@pytest.mark.parametrize("turns", [0, 3])
def test_continued_round_saves_no_terms_again(turns):
    played = Played("abc").begin()
    for _ in range(turns):
        played.turn()
    again = [one for one in played.again().effects if isinstance(one, SaveGroupSteps)]
    assert "terms" not in [entry.step for one in again for entry in one.entries]


@pytest.mark.parametrize(("names", "needed"), [("ab", 4), ("abS", 3)])
def test_round_needs_the_devices_of_a_group_unless_a_relay_answers_with_the_sum_of_its_site(names, needed):
    played = Played(names, secure=replace(POLICY, least=4), quorum=1.0)
    for device in played.names:
        played.perform(DevicePresence(device, presence_of(device)))
    assert played.engine.required_devices() == needed


class TestWithoutAGroup:
    def test_round_of_a_relay_and_too_few_devices_goes_on_without_groups(self):
        played = Played("aS").begin()
        played.turn()
        assert (current(played.engine).round.phase, played.masked.drawn) == (Phase.COLLECTING, True)
        assert current(played.engine).round.participants["S"].state is State.ACCEPTED
        assert played.counts("failed") == [("a", "no_group")]
        [count] = [one for one in played.effects if isinstance(one, CountEvent) and one.what == "failed"]
        assert "fedpatch devices drain a" in count.detail

    def test_device_for_which_the_groups_have_no_place_needs_no_remedy(self):
        played = Played("abc", most=2).begin()
        played.turn()
        [count] = [one for one in played.effects if isinstance(one, CountEvent) and one.what == "failed"]
        assert (count.reason, count.detail) == ("no_group", "")
        assert {count.device, *played.group.members} == set("abc")

    def test_continued_round_counts_a_device_without_a_group_among_those_that_accepted(self):
        played = Played("abc", most=2).begin()
        played.turn()
        again = played.again()
        assert again.group.members == played.group.members
        assert current(again.engine).round.accepted() == list("abc")


@pytest.mark.parametrize("reached", [Roster, Inbox, Unmask, Agreed])
def test_continued_round_is_where_its_saved_steps_end(reached):
    """The last device has not answered yet."""
    played = Played("abcd").begin().turn_until(reached)
    played.turn(without="d")
    again = played.again()
    names = ("state", "members", "masking", "reported", "codes", "agreements", "reveals")
    assert [getattr(again.group, name) for name in names] == [getattr(played.group, name) for name in names]
    assert again.saved == []


def test_first_agreements_that_are_enough_are_passed_on_to_all_who_agreed_and_later_ones_to_their_sender():
    """The threshold of four devices is three."""
    played = Played("abcd").begin().turn_until(Unmask)
    asked = dict(played.mail)
    told = []
    for device in "abcd":
        [agreement] = played.answers(device, asked[device])
        effects = played.send(device, agreement)
        told.append(
            {one.device for one in effects if isinstance(one, SendMessage) and isinstance(one.envelope.body, Agreed)}
        )
    assert told == [set(), set(), set("abc"), set("d")]


def test_member_that_has_sent_its_shares_is_not_sent_its_roster_again():
    played = Played("abc").begin().turn_until(Roster)
    played.turn(without="c")
    assert played.masked.remind("a") == []
    [effect] = played.masked.remind("c")
    assert isinstance(effect, SendMessage) and isinstance(effect.envelope.body, Roster)


DAMAGED = [
    (Roster, Shares, {"boxes": ()}),
    (Unmask, Agreement, {"reported": b"\x00"}),
    (Agreed, Reveal, {"shares": ()}),
]


@pytest.mark.parametrize(("before", "kind", "damage"), DAMAGED, ids=[kind.__name__ for _, kind, _ in DAMAGED])
@pytest.mark.parametrize("reason", ["not_ours", "other_context"])
def test_damaged_message_is_ignored_and_one_of_another_context_is_no_offence(before, kind, damage, reason):
    played = Played("abc").begin().turn_until(before)
    changes = damage if reason == "not_ours" else {"context": bytes(32)}
    [good] = played.answers("a", dict(played.mail)["a"])
    assert isinstance(good, kind)
    [count] = played.send("a", replace(good, **changes))
    assert isinstance(count, CountEvent)
    assert (count.device, count.what, count.reason) == ("a", "ignored", reason)
    assert count.detail.startswith("a " if reason == "not_ours" else "the message is of another group")


def test_device_that_accepts_without_keys_is_out_of_the_round_and_its_name_is_in_the_detail():
    played = Played("abc").begin()
    [count] = [one for one in played.send("a", Accept(10)) if isinstance(one, CountEvent)]
    assert (count.device, count.what, count.reason) == ("a", "failed", "no_keys")
    assert count.detail.startswith("a has sent no keys")


def test_update_with_damaged_codes_is_refused_and_the_name_of_its_device_is_in_the_detail():
    played = Played("abc").begin().turn_until(Inbox)
    [good] = played.answers("a", dict(played.mail)["a"])
    assert isinstance(good, Offer)
    excluded, sent, count = played.send("a", replace(good, codes=()))
    assert excluded == ExcludeDevice("a", RefuseReason.DAMAGED)
    assert isinstance(sent, SendMessage) and isinstance(sent.envelope.body, Refused)
    assert (sent.envelope.body.digest, sent.envelope.body.reason) == (UPDATE.digest, RefuseReason.DAMAGED)
    assert isinstance(count, CountEvent)
    assert (count.what, count.reason) == ("refused", RefuseReason.DAMAGED)
    assert sent.envelope.body.detail == count.detail and count.detail.startswith("a ")


def wrong(reveal: Body) -> Body:
    assert isinstance(reveal, Reveal)
    return replace(reveal, shares=tuple(bytes(len(share)) for share in reveal.shares))


def test_sender_of_wrong_shares_is_counted_once():
    """The other group opens later, which ends the round."""
    played = Played("abcdef", most=3).begin().turn_until(Agreed)
    first, last = (group.members for group in played.masked.groups)
    played.change = lambda device, answer: wrong(answer) if device == first[0] else answer
    played.turn(without=last)
    assert played.counts("ignored") == [(first[0], "not_ours")]
    played.wait(31.0)
    assert current(played.engine).round.phase is Phase.AGGREGATING
    assert played.counts("ignored") == [(first[0], "not_ours")]


def test_senders_of_wrong_shares_are_counted_where_a_group_opens_at_the_end_of_unmasking_only():
    """No search follows the third surplus reveal, with which the good ones are enough (MaskedGroup.open)."""
    played = Played("abcdefghi").begin().turn_until(Agreed)
    played.change = lambda device, answer: wrong(answer) if device in "abc" else answer
    played.turn(without="i")
    assert not played.group.over
    played.wait(31.0)
    assert played.counts("ignored") == [("a", "not_ours"), ("b", "not_ours"), ("c", "not_ours")]


class TestMissed:
    def test_device_that_fails_in_a_masked_round_with_a_reason_has_not_missed_it(self):
        played = Played("abcd").begin().turn_until(Inbox)
        played.send("d", Failed(FailReason.TRAINING))
        while played.mail:
            played.turn()
        absentees = current(played.engine).absentees
        assert (absentees.missed, absentees.failed) == ((), ("d",))

    def test_device_that_sends_no_shares_and_so_loses_its_group_has_missed_the_round(self):
        played = Played("abcdef", most=3).begin().turn_until(Roster)
        first = played.masked.groups[0].members
        played.turn(without=first[1:])
        played.wait(5.0)
        while played.mail:
            played.turn(without=first)
        assert current(played.engine).absentees.missed == tuple(first[1:])
