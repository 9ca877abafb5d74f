"""A round that an earlier coordinator left open: committed updates count, and the other devices are invited again."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from fedpatch.coordinator.rounds.held_devices import QUARANTINED
from fedpatch.coordinator.rounds.participant_transitions import Phase, State
from fedpatch.coordinator.rounds.round_journal import (
    CommittedUpdate,
    MaskingEntry,
    RoundJournal,
    RoundStart,
    terms_entry,
)
from fedpatch.coordinator.rounds.round_phases import RETURN_S
from fedpatch.coordinator.rounds.run_effects import (
    AggregateUpdates,
    PublishModel,
    SaveJournal,
    SaveSpentTime,
    SendMessage,
)
from fedpatch.coordinator.rounds.run_engine import Engine
from fedpatch.coordinator.rounds.run_events import (
    Aggregated,
    ChunkReceived,
    DeviceMessage,
    DevicePresence,
    Interrupted,
    LinkChanged,
    ModelPublished,
    RunStarted,
    Suspended,
    TimePassed,
    UpdateStored,
)
from fedpatch.coordinator.rounds.unresponsive_devices import PROBE_S
from fedpatch.shared.wire.chunks import cut
from fedpatch.shared.wire.masking_messages import SecureTerms, ThresholdRule
from fedpatch.shared.wire.messages import Accept, Committed, Failed, Offer, Progress, WorkRequest
from fedpatch.shared.wire.reason_codes import FailReason, JobPhase
from tests.coordinator.engines import BLOB, DIGEST, accept, asking, current, join, kinds, send
from tests.support.specs import counted, envelope_of, model, report, run_spec, sent, there, update

EPOCH = 2


def opening(
    invited: str, accepted: str = "", reported: str = "", spent_s: float = 0.0, closing: bool = False
) -> RoundStart:
    """Return round 1 as recorded in its journal."""
    journal = RoundJournal(1, len(invited), tuple(invited), model().digest, frozenset(accepted), spent_s, closing)
    return RoundStart(journal, {device: CommittedUpdate(DIGEST, len(BLOB), report(0.5)) for device in reported})


def going_on(unfinished: RoundStart, now: float = 0.0, **changes: Any) -> tuple[Engine, list[Any]]:
    """Return the next epoch's engine, and its effects after the model is published."""
    made = Engine(run_spec(epoch=EPOCH, **changes), unfinished=unfinished, jitter=random.Random(1))
    assert made.handle(RunStarted(), now) == [PublishModel(1)]
    return made, made.handle(ModelPublished(model()), now)


def states(made: Engine) -> dict[str, State]:
    return {device: participant.state for device, participant in current(made).round.participants.items()}


def test_time_spent_by_an_earlier_process_counts_once():
    """This holds before and after the model is published."""
    made = Engine(run_spec(epoch=EPOCH), unfinished=opening("ab", spent_s=7.0), jitter=random.Random(1))
    made.handle(RunStarted(), 0.0)
    assert current(made).spent_s(2.0) == 9.0
    made.handle(ModelPublished(model()), 2.0)
    assert current(made).spent_s(3.0) == 8.0


def test_resumed_round_has_traffic_and_reports_of_all_committed_updates():
    made, _ = going_on(opening("abc", accepted="ab", reported="ab"))
    assert current(made).traffic().up == 2 * len(BLOB)
    assert current(made).reports == dict.fromkeys("ab", report(0.5))


def test_offender_of_a_resumed_round_is_not_invited_and_does_not_count():
    """The journal names the offender: the round needs one update less, and its record has the reason."""
    known = opening("abcd", accepted="abcd", reported="ab")
    journal = replace(known.journal, offenders={"d": "not_finite"})
    made, effects = going_on(replace(known, journal=journal), quorum=1.0)
    assert sorted(device for device, _ in sent(effects)) == ["c"]
    assert (states(made)["d"], current(made).round.needed, made.fleet.offenders) == (
        State.FAILED,
        3,
        {"d": "not_finite"},
    )
    made.handle(DevicePresence("d", there()), 1.0)
    assert made.fleet.eligible() == []
    assert current(made).record("failed").offenders == {"d": "not_finite"}


def test_device_that_left_the_count_of_a_resumed_round_is_not_asked_and_does_not_count():
    known = opening("abcd", accepted="abc", reported="ab")
    journal = replace(known.journal, departed={"d": (State.DECLINED, "plan_limit")})
    made, effects = going_on(replace(known, journal=journal), quorum=1.0)
    assert [device for device, _ in sent(effects)] == ["c"]
    assert (states(made)["d"], current(made).round.needed, made.fleet.offenders) == (State.DECLINED, 3, {})
    assert next(one.journal for one in effects if isinstance(one, SaveJournal)).departed == journal.departed
    assert current(made).record("failed").decline_reasons == {"plan_limit": 1}


@pytest.mark.parametrize("measures", [True, False])
def test_continued_masked_round_has_the_terms_and_the_measurement_that_it_began_with(measures):
    terms = SecureTerms(ThresholdRule.HALF, 2, 9, 8, 1, bytes(16), 1.0, 10, b"")
    relay = MaskingEntry(0, "terms", "site", b"")
    start = replace(opening("ab"), masking=(relay, terms_entry(terms, measures=measures)))
    assert (start.terms, start.measures) == (terms, measures)
    assert (opening("ab").terms, opening("ab").measures) == (None, None)


def test_new_round_is_journalled_before_any_invitation():
    made = Engine(run_spec(devices=2), jitter=random.Random(1))
    made.handle(RunStarted(), 0.0)
    join(made, "ab")
    effects = made.handle(ModelPublished(model()), 0.0)
    assert isinstance(effects[0], SaveJournal)
    journal = effects[0].journal
    assert (journal.round, journal.target, sorted(journal.invited), journal.base) == (1, 2, ["a", "b"], model().digest)
    assert kinds(effects[-2:]) == [SendMessage, SendMessage]


def test_resumed_round_invites_devices_without_a_report_for_the_time_left():
    made, effects = going_on(opening("abc", accepted="ab", reported="a", spent_s=100.0))
    asked = [(device, body.deadline_s) for device, body in sent(effects) if isinstance(body, WorkRequest)]
    assert asked == [("b", 200.0), ("c", 200.0)]
    assert states(made) == {"a": State.REPORTED, "b": State.LOST, "c": State.INVITED}
    assert counted(effects) == []


def test_resumed_round_does_not_invite_quarantined_devices():
    made = Engine(
        run_spec(epoch=EPOCH, quorum=0.5),
        unfinished=opening("abc", accepted="abc", reported="a"),
        jitter=random.Random(1),
    )
    made.fleet.hold({"a": QUARANTINED, "b": QUARANTINED})
    made.handle(RunStarted(), 0.0)
    effects = made.handle(ModelPublished(model()), 0.0)
    assert [device for device, body in sent(effects) if isinstance(body, WorkRequest)] == ["c"]
    assert states(made) == {"a": State.REPORTED, "b": State.FAILED, "c": State.LOST}


def test_resumed_round_begins_without_waiting_for_devices():
    made, _ = going_on(opening("abcd"), devices=4)
    assert current(made).round.phase is Phase.RECRUITING


def test_committed_updates_count_in_the_resumed_round():
    made, _ = going_on(opening("ab", accepted="ab", reported="a"))
    effects = report_of_again(made, "b")
    assert effects[-1] == AggregateUpdates(1, ("a", "b"))


def test_offer_of_a_committed_update_is_committed_again_in_either_epoch():
    made, _ = going_on(opening("ab", accepted="ab", reported="a"))
    for epoch in (1, EPOCH):
        effects = made.handle(DeviceMessage("a", envelope_of(Offer(update(BLOB)), epoch=epoch)), 1.0)
        assert sent(effects) == [("a", Committed(DIGEST))]


@pytest.mark.parametrize("body", [Offer(update(BLOB)), Progress(JobPhase.TRAINING, 1, 2), Accept(10)], ids=str)
def test_message_of_the_old_epoch_is_answered_with_a_request_of_the_new(body):
    made, _ = going_on(opening("ab", accepted="ab"))
    assert [
        (device, type(answer)) for device, answer in sent(made.handle(DeviceMessage("a", envelope_of(body)), 1.0))
    ] == [("a", WorkRequest)]
    assert states(made)["a"] is State.LOST


@pytest.mark.parametrize(("rejoin_s", "returns_s"), [(5.0, RETURN_S), (90.0, 90.0)])
def test_accepted_devices_have_rejoin_s_and_at_least_return_s_to_come_back(rejoin_s, returns_s):
    """If the broker was offline too, an agent may need a minute to reconnect."""
    made, _ = going_on(opening("ab", accepted="ab", reported="a"), rejoin_s=rejoin_s, quorum=0.6)
    made.handle(TimePassed(), returns_s - 0.1)
    assert states(made)["b"] is State.LOST
    made.handle(TimePassed(), returns_s)
    assert (made.open, made.records[-1].failure) == (None, "quorum_missed")


def test_invited_devices_have_the_whole_time_to_answer_again():
    made, _ = going_on(opening("ab", spent_s=200.0), recruit_deadline_s=10.0)
    made.handle(DeviceMessage("a", envelope_of(Accept(10), epoch=EPOCH)), RETURN_S - 1)
    assert states(made)["a"] is State.ACCEPTED


@pytest.mark.parametrize("end", [Interrupted(), Suspended()])
def test_end_before_the_model_is_published_keeps_the_time_spent(end):
    """A round must not stay open forever because the disk is full at each start."""
    made = Engine(run_spec(epoch=EPOCH), unfinished=opening("a", spent_s=100.0), jitter=random.Random(1))
    made.handle(RunStarted(), 0.0)
    assert made.handle(end, 5.0)[0] == SaveSpentTime(105.0)


def test_deadline_of_a_resumed_round_does_not_begin_anew():
    made, _ = going_on(opening("ab", spent_s=299.0), now=50.0)
    made.handle(DeviceMessage("a", envelope_of(Accept(10), epoch=EPOCH)), 50.5)
    made.handle(TimePassed(), 51.0)
    assert made.records[-1].outcome == "failed"


@pytest.mark.parametrize(("reported", "outcome"), [("a", "failed"), ("abc", "aggregated")])
def test_resumed_round_past_its_deadline_ends_with_its_updates(reported, outcome):
    made, effects = going_on(opening("abcd", accepted="abcd", reported=reported, spent_s=900.0), quorum=0.7)
    assert not [body for _, body in sent(effects) if isinstance(body, WorkRequest)]
    if made.open is not None:
        made.handle(Aggregated(), 0.0)
    assert made.records[-1].outcome == outcome


def test_closing_round_is_aggregated_with_the_same_updates():
    _, effects = going_on(opening("abc", accepted="abc", reported="ac", closing=True), quorum=0.5)
    assert [effect for effect in effects if isinstance(effect, AggregateUpdates)] == [AggregateUpdates(1, ("a", "c"))]
    assert not [body for _, body in sent(effects) if isinstance(body, WorkRequest)]


def test_interrupt_saves_the_time_spent():
    made = asking("ab")
    effects = made.handle(Interrupted(), 120.0)
    assert effects[0] == SaveSpentTime(120.0)


def test_time_until_the_broker_answers_counts_as_spent():
    made = Engine(run_spec(epoch=EPOCH), unfinished=opening("a", spent_s=10.0), jitter=random.Random(1))
    made.handle(LinkChanged(connected=False), 0.0)
    assert made.handle(RunStarted(), 100.0) == []
    assert made.handle(LinkChanged(connected=True), 105.0) == [PublishModel(1)]
    made.handle(ModelPublished(model()), 105.0)
    assert current(made).round.spent_s(105.0) == 15.0


def test_bytes_of_committed_updates_are_in_the_record():
    made, _ = going_on(opening("a", accepted="a", reported="a", closing=True))
    made.handle(Aggregated(), 0.0)
    assert made.records[-1].bytes_up == len(BLOB)


class TestSilence:
    """An accepted device may be silent because its failure message was lost, or the request and its acceptance were lost."""

    def test_silent_device_is_sent_the_request_again(self):
        made = asking("ab")
        accept(made, "ab")
        send(made, "b", Progress(JobPhase.TRAINING, 1, 2), now=20.0)
        asked = sent(made.handle(TimePassed(), 1.0 + PROBE_S))
        assert [(device, type(body)) for device, body in asked] == [("a", WorkRequest)]

    def test_silent_device_is_not_probed_without_a_broker(self):
        made = asking("ab", quorum=0.5)
        send(made, "a", Accept(10))
        made.handle(LinkChanged(connected=False), 2.0)
        assert sent(made.handle(TimePassed(), 1.0 + PROBE_S)) == []
        made.handle(LinkChanged(connected=True), 40.0)
        assert {device for device, _ in sent(made.handle(TimePassed(), 60.0))} == {"a"}

    def test_failure_after_the_probe_ends_the_wait(self):
        made = asking("a", max_failed_rounds=1)
        send(made, "a", Accept(10))
        made.handle(TimePassed(), 1.0 + PROBE_S)
        send(made, "a", Failed(FailReason.TRAINING), now=32.0)
        assert made.records[-1].failures == {FailReason.TRAINING: 1}

    def test_uploading_device_is_not_probed(self):
        made = asking("a")
        send(made, "a", Offer(update(BLOB)))
        assert not [body for _, body in sent(made.handle(TimePassed(), 1.0 + PROBE_S)) if isinstance(body, WorkRequest)]


def report_of_again(made: Engine, device: str) -> list[Any]:
    """Handle a device's whole round in the new epoch; return the effects of its report."""
    manifest = update(BLOB)
    made.handle(DeviceMessage(device, replace(envelope_of(Accept(10)), epoch=EPOCH)), 1.0)
    made.handle(DeviceMessage(device, replace(envelope_of(Offer(manifest)), epoch=EPOCH)), 1.0)
    for index in range(manifest.chunk_count):
        made.handle(ChunkReceived(device, cut(BLOB, manifest, index)), 1.0)
    return made.handle(UpdateStored(made.last_round, device, DIGEST, report()), 1.0)
