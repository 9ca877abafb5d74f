"""Buffered rounds of an engine: a later round takes carried work once, unless the work is too old."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from fedpatch.coordinator.buffered.staleness_weight import CarryPolicy
from fedpatch.coordinator.rounds.held_devices import QUARANTINED
from fedpatch.coordinator.rounds.participant_transitions import State
from fedpatch.coordinator.rounds.round_journal import CommittedUpdate, RoundJournal, RoundStart
from fedpatch.coordinator.rounds.round_record import RoundRecord
from fedpatch.coordinator.rounds.run_effects import (
    AggregateUpdates,
    CountEvent,
    Effect,
    ResendChunks,
    SaveJournal,
    SaveRecord,
    StoreUpdate,
)
from fedpatch.coordinator.rounds.run_engine import Engine
from fedpatch.coordinator.rounds.run_events import (
    Aggregated,
    ChunkReceived,
    DevicePresence,
    DevicesRevoked,
    Event,
    HoldsChanged,
    Interrupted,
    ModelPublished,
    RunStarted,
    StopRequested,
    Suspended,
    TimePassed,
    UpdateStored,
)
from fedpatch.coordinator.rounds.secure_policy import SecurePolicy
from fedpatch.coordinator.rounds.termination import Stopped
from fedpatch.shared.tasks.metric_spec import MetricTerms
from fedpatch.shared.wire.chunks import cut
from fedpatch.shared.wire.features import EVALUATE_FEATURE, MASKED_FEATURE
from fedpatch.shared.wire.masking_messages import ThresholdRule
from fedpatch.shared.wire.messages import (
    Accept,
    Cancel,
    Committed,
    Evaluation,
    Failed,
    Grant,
    JobStatus,
    Need,
    Offer,
    Progress,
    Refused,
    RetryAfter,
    WorkRequest,
)
from fedpatch.shared.wire.reason_codes import FailReason, JobPhase, RefuseReason
from tests.coordinator.engines import (
    BLOB,
    DIGEST,
    aggregating,
    asking,
    current,
    engine,
    join,
    leave,
    report_all,
    report_of,
    send,
)
from tests.support.specs import RUN, counted, model, report, sent, there, update

TRAINING = Progress(JobPhase.TRAINING, 1, 10)
DOWNLOADING = Progress(JobPhase.DOWNLOADING, 1, 10)
CARRY = CarryPolicy(max_staleness=2, power=0.5)
EXCLUSIONS = [HoldsChanged({"c": QUARANTINED}), DevicesRevoked(frozenset("c"))]
excluded = pytest.mark.parametrize("exclusion", EXCLUSIONS, ids=["quarantined", "revoked"])


def carrying(devices: str = "abc", last: Progress = TRAINING, **changes: Any) -> Engine:
    """Return an engine after a first version of two updates; the last device is still training or downloading for round 1."""
    given = {"quorum_updates": 2, "grace_s": 0.0, "carries": True, "carry": CARRY, "rounds": 9, **changes}
    made = asking(devices, **given)
    for device in devices:
        send(made, device, Accept(10))
        send(made, device, last if device == devices[-1] else TRAINING)
    made.handle(TimePassed(), 2.0)
    report_all(made, devices[:2])
    made.handle(Aggregated(), 6.0)
    return made


def next_version(made: Engine, now: float = 7.0, version: int = 1) -> list[Effect]:
    """Publish the model of the next round."""
    return made.handle(ModelPublished(model(b"n" * 250), version=version), now)


def upload(made: Engine, device: str, number: int, now: float = 8.0) -> list[Effect]:
    """Let a device offer and send the update of a round; return the effects of its commit."""
    [(_, body)] = sent(send(made, device, Offer(update(BLOB)), now, number))
    assert isinstance(body, Grant)
    last = [made.handle(ChunkReceived(device, cut(BLOB, update(BLOB), index)), now) for index in range(4)][-1]
    [effect] = [one for one in last if isinstance(one, StoreUpdate)]
    assert effect.base_round == number
    return made.handle(UpdateStored(made.last_round, device, DIGEST, report()), now)


def test_device_at_work_at_the_end_is_not_cancelled_and_not_invited_again():
    made = carrying()
    effects = next_version(made)
    assert made.carried.devices.busy == {"c"}
    assert not [body for device, body in sent(effects) if device == "c"]
    [journal] = [one.journal for one in effects if isinstance(one, SaveJournal)]
    assert set(journal.invited) == {"a", "b"}
    assert {device: work.round for device, work in journal.carried.items()} == {"c": 1}


def test_carried_update_joins_the_next_version_and_is_answered_in_its_own_round():
    made = carrying()
    next_version(made)
    effects = upload(made, "c", 1)
    [committed] = [one for one in effects if getattr(getattr(one, "envelope", None), "body", None) == Committed(DIGEST)]
    assert (committed.device, committed.envelope.round, committed.envelope.epoch) == ("c", 1, 1)  # type: ignore[union-attr]
    assert made.carried.works == {}
    send(made, "b", Accept(10), 8.5, 2)
    aggregate = report_of(made, "a", 9.0)[-1]
    assert isinstance(aggregate, AggregateUpdates)
    assert aggregate.devices == ("a", "c")
    assert {device: work.version for device, work in aggregate.carried.items()} == {"c": 0}
    [saved] = [one for one in made.handle(Aggregated(), 10.0) if isinstance(one, SaveRecord)]
    assert saved.record.buffered is not None
    assert saved.record.buffered.staleness == {"0": 1, "1": 1}


def test_repeated_offer_of_a_carried_update_is_answered_committed_and_counts_once():
    made = carrying()
    next_version(made)
    upload(made, "c", 1)
    [(_, body)] = sent(send(made, "c", Offer(update(BLOB)), 8.5, 1))
    assert body == Committed(DIGEST)
    assert sorted(current(made).reports) == ["c"]


def test_device_that_fails_with_its_carried_work_is_not_waited_for():
    made = carrying()
    next_version(made)
    send(made, "c", Offer(update(BLOB)), 8.0, 1)
    send(made, "c", Failed(FailReason.STORAGE), 8.5, 1)
    assert (current(made).round.participants["c"].state, made.carried.works) == (State.FAILED, {})


def test_offer_between_two_rounds_is_put_off():
    made = carrying()
    [(_, body)] = sent(send(made, "c", Offer(update(BLOB)), 6.5, 1))
    assert body == RetryAfter(DIGEST, 1.0)


def test_offer_in_a_long_pause_is_put_off_until_the_next_round_or_a_minute():
    made = carrying(round_interval_s=40.0)
    [(_, body)] = sent(send(made, "c", Offer(update(BLOB)), 6.5, 1))
    assert isinstance(body, RetryAfter)
    assert 30.0 < body.delay_s < 40.0
    made = carrying(round_interval_s=4000.0)
    assert sent(send(made, "c", Offer(update(BLOB)), 6.5, 1)) == [("c", RetryAfter(DIGEST, 60.0))]


def test_work_beyond_max_staleness_is_cancelled_and_its_update_refused_without_offence():
    made = carrying(carry=CarryPolicy(1, 0.5))
    next_version(made)
    report_all(made, "ab", 8.0)
    effects = made.handle(Aggregated(), 9.0)
    assert ("c", Cancel("stale")) in sent(effects)
    next_version(made, 10.0, 2)
    effects = send(made, "c", Offer(update(BLOB)), 11.0, 1)
    [(_, body)] = sent(effects)
    assert isinstance(body, Refused)
    assert body.reason is RefuseReason.LATE  # this device does not support the reason `stale`
    assert not made.fleet.offenders


def test_device_that_knows_the_word_is_refused_stale():
    made = carrying(carry=CarryPolicy(1, 0.5))
    made.handle(DevicePresence("c", replace(there("b2"), features=("carry",))), 6.5)
    del made.carried.works["c"]
    next_version(made)
    current(made).round.participants.pop("c", None)
    effects = send(made, "c", Offer(update(BLOB)), 8.0, 1)
    assert sent(effects)[0][1].reason is RefuseReason.STALE  # type: ignore[union-attr]
    assert ("c", "late", "stale") in counted(effects)


def test_restarted_device_offers_for_its_own_round():
    made = carrying()
    next_version(made)
    job = JobStatus(RUN, 1, 1, JobPhase.UPLOADING)
    made.handle(DevicePresence("c", there("b2", job)), 7.5)
    assert made.carried.devices.busy == {"c"}
    upload(made, "c", 1)
    assert "c" in current(made).reports


def test_restarted_device_without_its_work_is_free_for_the_next_round():
    made = carrying()
    next_version(made)
    made.handle(DevicePresence("c", there("b2")), 7.5)
    assert made.carried.devices.busy == set()
    report_all(made, "ab", 8.0)
    made.handle(Aggregated(), 9.0)
    assert "c" in [device for device, body in sent(next_version(made, 10.0, 2)) if isinstance(body, WorkRequest)]


@pytest.mark.parametrize("message", [DOWNLOADING, Accept(10)])
def test_message_of_a_device_shows_that_it_still_does_its_carried_work(message):
    """A presence that is older than the job seemed to show the opposite."""
    made = carrying()
    next_version(made)
    made.handle(DevicePresence("c", there("b1")), 7.5)
    assert made.carried.devices.busy == set()
    assert send(made, "c", message, 8.0, 1) == []
    assert made.carried.devices.busy == {"c"}
    assert current(made).round.expected == 1


def test_device_that_offers_its_carried_work_is_busy_with_it_after_the_round_too():
    made = carrying()
    next_version(made)
    made.handle(DevicePresence("c", there("b1")), 7.5)
    send(made, "c", Offer(update(BLOB)), 8.0, 1)
    report_all(made, "ab", 9.0)
    made.handle(Aggregated(), 10.0)
    assert made.carried.devices.busy == {"c"}


def test_carried_upload_that_fails_in_the_next_round_is_not_waited_for():
    made = uploading_after_a_round()
    made.handle(TimePassed(), 40.0)
    next_version(made, 40.0, 2)
    report_of(made, "a", 41.0)
    send(made, "c", Failed(FailReason.STORAGE), 42.0, 1)
    assert made.open is not None
    send(made, "b", Failed(FailReason.TRAINING), 43.0, 3)
    assert [record.failure for record in made.records[2:]] == ["quorum_missed"]


def test_round_does_not_wait_for_the_carried_work_of_a_device_that_is_offline():
    made = carrying()
    next_version(made)
    report_of(made, "a", 8.0)
    send(made, "b", Failed(FailReason.TRAINING), 8.5, 2)
    assert made.open is not None
    leave(made, "c", 9.0)
    assert [record.failure for record in made.records[1:]] == ["quorum_missed"]


def test_device_that_has_lost_the_work_that_a_later_round_took_is_cancelled_and_no_longer_waited_for():
    """It begins again, and needs chunks of a model that is not published any more."""
    made = carrying()
    next_version(made)
    send(made, "c", Offer(update(BLOB)), 8.0, 1)
    effects = send(made, "c", Need(model().digest, b"\xff"), 8.5, 1)
    assert sent(effects) == [("c", Cancel("stale"))]
    [count] = [effect for effect in effects if isinstance(effect, CountEvent)]
    assert (count.what, count.reason, count.leaves) == ("failed", "stale", False)
    assert current(made).round.reasons(State.FAILED) == {"stale": 1}
    assert current(made).round.left == set()


def test_failed_round_makes_devices_at_carried_work_absent():
    """It has waited in vain for their updates too."""
    made = carrying()
    next_version(made)
    report_of(made, "a", 8.0)
    made.handle(TimePassed(), 1000.0)
    assert made.records[-1].outcome == "failed"
    assert made.records[-1].absent.keys() == {"b", "c"}


def test_late_message_of_another_round_does_not_end_carried_work():
    """Device `a` failed in round 1, and its work for round 2 is in round 3."""
    made = asking("abcd", quorum_updates=2, grace_s=0.0, carries=True, carry=CARRY, rounds=9, upload_slots=9)
    send(made, "a", Failed(FailReason.DOWNLOAD), 1.0)
    for device in "dcb":
        send(made, device, Accept(10), 1.0)
    report_all(made, "bc", 2.0)
    made.handle(Aggregated(), 3.0)
    next_version(made, 4.0)
    send(made, "a", Accept(10), 4.5, 2)
    report_all(made, "bc", 5.0)
    made.handle(Aggregated(), 6.0)
    next_version(made, 7.0, 2)
    send(made, "a", Offer(update(BLOB)), 8.0, 2)
    assert current(made).works["a"].round == 2
    send(made, "a", Failed(FailReason.DOWNLOAD), 8.5, 1)
    assert current(made).round.participants["a"].state is State.UPLOADING


@pytest.mark.parametrize("carries", [True, False])
def test_device_back_with_its_work_after_it_was_given_up_is_taken_back_where_rounds_carry_work(carries):
    made = asking("abc", carries=carries, carry=CARRY if carries else None, quorum=0.5, rejoin_s=10.0)
    for device in "abc":
        send(made, device, Accept(10))
    leave(made, "c", 2.0)
    made.handle(TimePassed(), 12.0)
    assert current(made).round.participants["c"].state is State.FAILED
    job = JobStatus(RUN, 1, 1, JobPhase.TRAINING)
    made.handle(DevicePresence("c", there("b1", replace(job, round=7))), 13.0)
    assert current(made).round.participants["c"].state is State.FAILED
    made.handle(DevicePresence("c", there("b1", job)), 14.0)
    state = State.TRAINING if carries else State.FAILED
    assert current(made).round.participants["c"].state is state


def test_device_that_was_asked_again_is_refused_superseded_for_its_older_work():
    made = carrying()
    made.handle(DevicePresence("c", replace(there("b2"), features=("carry",))), 6.2)
    next_version(made)
    report_all(made, "ab", 8.0)
    made.handle(Aggregated(), 9.0)
    next_version(made, 10.0, 2)
    assert "c" in current(made).round.participants
    [(_, body), *_] = sent(send(made, "c", Offer(update(BLOB)), 11.0, 1))
    assert isinstance(body, Refused)
    assert body.reason is RefuseReason.SUPERSEDED


def test_device_that_downloads_at_the_end_of_its_round_is_carried():
    """Otherwise a device whose download takes longer than each round would never train."""
    made = carrying(last=DOWNLOADING)
    assert made.carried.devices.busy == {"c"}
    next_version(made)
    assert send(made, "c", DOWNLOADING, 7.5, 1) == []
    upload(made, "c", 1)
    assert "c" in current(made).reports


def test_device_that_restarted_and_has_not_answered_is_not_carried():
    made = asking("abc", quorum_updates=2, grace_s=0.0, carries=True, carry=CARRY)
    for device in "abc":
        send(made, device, Accept(10))
    made.handle(DevicePresence("c", there("b2")), 2.0)
    report_all(made, "ab")
    made.handle(Aggregated(), 6.0)
    assert made.carried.works == {}


def test_carried_download_gets_chunks_of_a_blob_that_is_still_published():
    made = carrying(last=DOWNLOADING)
    next_version(made)
    [effect] = send(made, "c", Need(model(b"n" * 250).digest, b"\x07"), 20.0, 1)
    assert isinstance(effect, ResendChunks)
    assert made.carried.devices.busy == {"c"}


def test_carried_download_that_lacks_chunks_of_an_older_model_is_cancelled():
    made = carrying(last=DOWNLOADING)
    next_version(made)
    [(_, body)] = sent(send(made, "c", Need(model().digest, b"\xff"), 8.0, 1))
    assert body == Cancel("stale")
    assert made.carried.works == {}


def test_committed_updates_of_a_failed_round_count_in_the_next_version():
    made = carrying()
    next_version(made)
    upload(made, "c", 1)
    effects = made.handle(TimePassed(), 7.0 + 300.0 + 1.0)
    saved = [one for one in effects if isinstance(one, SaveRecord)]
    assert [one.record.outcome for one in saved] == ["failed"]
    assert saved[0].record.buffered is not None
    assert saved[0].record.buffered.waiting == 1
    assert saved[0].carried["c"].round == 1
    now = 320.0
    made.handle(TimePassed(), now)
    begun = next_version(made, now, 1)
    assert "c" not in [device for device, body in sent(begun) if isinstance(body, WorkRequest)]
    assert sorted(current(made).reports) == ["c"]


def test_committed_updates_that_no_version_takes_are_counted_unused():
    made = carrying(rounds=2)
    next_version(made)
    upload(made, "c", 1)
    [saved] = [one for one in made.handle(TimePassed(), 308.0) if isinstance(one, SaveRecord)]
    assert saved.record.buffered is not None
    assert (saved.record.buffered.waiting, saved.record.buffered.unused) == (0, 1)
    assert (saved.carried, made.records[-1]) == ({}, saved.record)


def test_stop_after_the_round_keeps_carried_work_and_waiting_updates_for_a_resume():
    made = carrying("abcd")
    send(made, "d", TRAINING, 6.5)
    next_version(made)
    upload(made, "c", 1)
    made.handle(StopRequested(), 9.0)
    effects = made.handle(TimePassed(), 308.0)
    [saved] = [one for one in effects if isinstance(one, SaveRecord)]
    assert saved.record.buffered is not None
    assert (saved.record.buffered.waiting, saved.record.buffered.unused) == (1, 0)
    assert sorted(saved.carried) == ["c", "d"]
    assert made.stopped is Stopped.INTERRUPTED
    assert not [body for device, body in sent(effects) if device in "cd"]


def test_end_of_the_run_cancels_carried_work():
    made = carrying(rounds=2)
    next_version(made)
    report_all(made, "ab", 8.0)
    effects = made.handle(Aggregated(), 9.0)
    assert made.stopped is Stopped.MAX_ROUNDS
    assert [body for device, body in sent(effects) if device == "c"] == [Cancel("late")]


@pytest.mark.parametrize("end", [Interrupted(), Suspended()])
def test_end_of_the_process_cancels_no_carried_training(end):
    made = carrying()
    next_version(made)
    assert not [body for device, body in sent(made.handle(end, 8.0)) if device == "c"]


@pytest.mark.parametrize("moment", ["before the offer", "between rounds"])
def test_device_whose_upload_goes_on_is_not_invited_to_another_round(moment):
    """A presence older than the job may arrive before the upload or between two rounds."""
    made = carrying(round_interval_s=20.0)
    made.handle(TimePassed(), 20.0)
    next_version(made, 20.0)
    if moment == "before the offer":
        made.handle(DevicePresence("c", there("b1")), 20.2)
    assert isinstance(sent(send(made, "c", Offer(update(BLOB)), 20.5, 1))[0][1], Grant)
    made.handle(ChunkReceived("c", cut(BLOB, update(BLOB), 0)), 20.6)
    report_all(made, "ab", 21.0)
    made.handle(Aggregated(), 22.0)
    if moment == "between rounds":
        made.handle(DevicePresence("c", there("b1")), 22.5)
    made.handle(TimePassed(), 40.0)
    assert "c" not in [device for device, body in sent(next_version(made, 40.0, 2)) if isinstance(body, WorkRequest)]
    last = [made.handle(ChunkReceived("c", cut(BLOB, update(BLOB), index)), 40.5) for index in (1, 2, 3)][-1]
    [stored] = [one for one in last if isinstance(one, StoreUpdate)]
    assert stored.work is not None
    assert stored.base_round == 1


def uploading_after_a_round() -> Engine:
    """Return an engine in the pause after round 2, while `c` uploads its work for round 1."""
    made = carrying(round_interval_s=20.0)
    made.handle(TimePassed(), 20.0)
    next_version(made, 20.0)
    send(made, "c", Offer(update(BLOB)), 20.5, 1)
    report_all(made, "ab", 21.0)
    made.handle(Aggregated(), 22.0)
    return made


def test_upload_of_a_device_that_restarted_without_its_work_is_forgotten_between_rounds():
    made = uploading_after_a_round()
    made.handle(DevicePresence("c", there("b2")), 22.5)
    made.handle(TimePassed(), 40.0)
    assert "c" in [device for device, body in sent(next_version(made, 40.0, 2)) if isinstance(body, WorkRequest)]


def test_work_that_is_too_old_for_a_published_model_is_cancelled():
    made = carrying()
    assert ("c", Cancel("stale")) in sent(next_version(made, 7.0, 4))
    assert made.carried.works == {}
    report_all(made, "ab", 8.0)
    made.handle(Aggregated(), 9.0)
    assert made.records[-1].buffered is not None
    assert made.records[-1].buffered.stale == 1


@pytest.mark.parametrize("changes", [{}, {"carry": CARRY, "carries": True}])
def test_round_of_a_share_aims_for_the_updates_that_end_it(changes):
    made = asking("abcde", participation=0.2, quorum_updates=3, **changes)
    assert len(current(made).round.participants) == 3


def test_late_work_is_cancelled_where_late_updates_are_refused():
    made = carrying(carry=None, carries=False)
    assert made.carried.works == {}
    assert current(made).works == {}


def test_deadline_of_a_request_leaves_time_for_later_versions():
    made = asking("ab", carries=True, carry=CARRY, deadline_s=100.0, grace_s=10.0)
    [request] = [body for _, body in sent(current(made).ask(["a"], 0.0)) if isinstance(body, WorkRequest)]
    assert request.deadline_s == 100.0 + 2 * 110.0


@excluded
def test_round_does_not_wait_for_the_carried_work_of_an_excluded_device(exclusion: Event):
    """Its messages are refused, so its update never comes."""
    made = carrying()
    next_version(made)
    report_of(made, "a", 8.0)
    send(made, "b", Failed(FailReason.TRAINING), 8.5, 2)
    assert made.open is not None
    made.handle(exclusion, 9.0)
    assert [record.failure for record in made.records[1:]] == ["quorum_missed"]
    assert made.carried.works == {}


@excluded
def test_upload_of_a_device_that_is_excluded_between_two_rounds_does_not_go_on_in_the_next(exclusion: Event):
    made = uploading_after_a_round()
    made.handle(exclusion, 23.0)
    made.handle(TimePassed(), 40.0)
    next_version(made, 40.0, 2)
    assert set(current(made).round.participants) == {"a", "b"}
    assert not [made.handle(ChunkReceived("c", cut(BLOB, update(BLOB), at)), 40.5) for at in range(4)][-1]


def test_resumed_run_does_not_wait_for_the_carried_work_of_a_quarantined_device():
    before = carrying()
    made = Engine(
        replace(before.spec, devices=2),
        records=before.records,
        jitter=random.Random(1),
        holds={"c": QUARANTINED},
        carried=before.carried.works,
    )
    made.handle(RunStarted(), 10.0)
    made.handle(DevicePresence("c", there("b1", JobStatus(RUN, 1, 1, JobPhase.TRAINING))), 10.0)
    join(made, "ab", 10.0)
    next_version(made, 10.0)
    send(made, "b", Accept(10), 10.5, 2)
    report_of(made, "a", 11.0)
    send(made, "b", Failed(FailReason.TRAINING), 11.5, 2)
    assert [record.failure for record in made.records[1:]] == ["quorum_missed"]


def test_resumed_round_forgets_the_work_of_an_update_that_it_has():
    before = carrying("abcd")
    send(before, "d", TRAINING, 6.5)
    works = dict(before.carried.works)
    assert works.keys() == {"c", "d"}
    journal = RoundJournal(2, 2, ("a", "b"), model(b"n" * 250).digest)
    updates = {
        device: CommittedUpdate(DIGEST, len(BLOB), report(), work)
        for device, work in {"c": works["c"], "a": None}.items()
    }
    made = Engine(
        before.spec,
        records=before.records,
        unfinished=RoundStart(journal, updates),
        jitter=random.Random(1),
        carried=works,
    )
    made.handle(RunStarted(), 10.0)
    next_version(made, 10.0)
    assert made.carried.works.keys() == {"d"}


def waiting_update(devices: str = "abcde", **changes: Any) -> tuple[Engine, str]:
    """Return an engine before round 3, and the device whose update waits: round 2, of version 1, has failed."""
    given = {"quorum_updates": 2, "grace_s": 0.0, "carries": True, "carry": CARRY, "rounds": 9, "upload_slots": 9}
    made = asking(devices, over_select=1.0, **given | changes)
    report_until_the_end(made, sorted(current(made).round.participants), 5.0)
    made.handle(Aggregated(), 6.0)
    made.carried.works.clear()
    next_version(made)
    waits = min(current(made).round.participants)
    report_of(made, waits, 8.0)
    made.handle(TimePassed(), 7.0 + 300.0 + 1.0)
    assert [record.outcome for record in made.records] == ["aggregated", "failed"]
    assert made.records[-1].buffered is not None and made.records[-1].buffered.waiting == 1
    made.carried.works.clear()
    return made, waits


def report_until_the_end(made: Engine, devices: list[str], now: float) -> None:
    """Let devices accept, and report one after the other until the round has enough updates."""
    for device in devices:
        send(made, device, Accept(10), now, made.last_round)
    for device in devices:
        if any(isinstance(effect, AggregateUpdates) for effect in report_of(made, device, now)):
            return


def invited(effects: list[Effect]) -> set[str]:
    return {device for device, body in sent(effects) if isinstance(body, WorkRequest)}


@pytest.mark.parametrize("concurrency", [2, 3, 4])
def test_update_that_waits_takes_one_place_of_the_devices_that_work_at_once(concurrency):
    made, waits = waiting_update("abcdefgh", carry=replace(CARRY, concurrency=concurrency))
    made.handle(TimePassed(), 400.0)
    [journal] = [one.journal for one in next_version(made, 400.0) if isinstance(one, SaveJournal)]
    assert waits not in journal.invited
    # Devices that missed the failed round are asked beside the cohort.
    assert len(set(journal.invited) - set(journal.absent)) == concurrency - 1


@pytest.mark.parametrize("concurrency", [3, 5])
def test_device_that_still_works_takes_one_place_of_the_devices_that_work_at_once(concurrency):
    given = {"quorum_updates": 2, "grace_s": 0.0, "carries": True, "carry": replace(CARRY, concurrency=concurrency)}
    made = asking("abcdefgh", over_select=1.0, rounds=9, **given)
    cohort = sorted(current(made).round.participants)
    assert len(cohort) == concurrency
    report_until_the_end(made, cohort, 5.0)
    made.handle(Aggregated(), 6.0)
    assert made.carried.devices.busy == set(cohort[2:])
    [journal] = [one.journal for one in next_version(made) if isinstance(one, SaveJournal)]
    assert len(journal.invited) == 2


def test_device_whose_update_waits_is_present_once():
    made, waits = waiting_update()
    assert made.present == 5
    leave(made, waits, 309.0)
    assert made.present == 5  # its update counts without it


def test_staleness_counts_versions_and_no_failed_rounds():
    """A failed round makes no version: an update of round 1 is of the same model as one of round 2 after it."""
    made, waits = waiting_update()
    made.handle(TimePassed(), 400.0)
    next_version(made, 400.0)
    for device in sorted(current(made).round.participants.keys() - {waits}):
        send(made, device, Accept(10), 400.5, 3)
    effects = report_of(made, "b" if waits != "b" else "c", 401.0)
    [aggregate] = [effect for effect in effects if isinstance(effect, AggregateUpdates)]
    assert {device: work.version for device, work in aggregate.carried.items()} == {waits: 1}
    made.handle(Aggregated(), 402.0)
    assert made.records[-1].round == 3
    assert made.records[-1].buffered is not None
    assert made.records[-1].buffered.staleness == {"0": 2}


def test_failed_round_makes_no_carried_work_older():
    made = carrying(carry=CarryPolicy(max_staleness=1, power=0.5))
    next_version(made)
    effects = made.handle(TimePassed(), 1000.0)
    assert [record.outcome for record in made.records] == ["aggregated", "failed"]
    assert not [body for device, body in sent(effects) if device == "c"]
    assert set(made.carried.works) == {"c"}


def test_shares_of_weights_are_by_training_time_and_not_by_the_time_of_the_download():
    """The device with the shortest training has the longest download."""
    made = asking("abcde", quorum_updates=5, grace_s=0.0, carries=True, carry=CARRY, upload_slots=9, rounds=9)
    for at, device in enumerate("abcde"):
        send(made, device, Accept(10), 8.0)
        send(made, device, Offer(update(BLOB)), 8.0)
        for index in range(4):
            made.handle(ChunkReceived(device, cut(BLOB, update(BLOB), index)), 8.0)
        timed = replace(report(), train_s=float(1 + at), download_s=float(100 - at), num_examples=10 * (1 + at))
        made.handle(UpdateStored(1, device, DIGEST, timed), 8.0)
    made.handle(Aggregated(), 9.0)
    assert made.records[-1].buffered is not None
    shares = made.records[-1].buffered.weights
    assert shares[0] < shares[-1]


def test_share_of_an_older_update_in_the_weights_has_the_factor_of_its_staleness():
    """The last of three versions has an update of its own model and one of the model two versions before."""
    made = carrying("abcde", upload_slots=9)
    next_version(made)
    for device, carried in zip("ab", "cd", strict=True):
        send(made, device, Accept(10), 7.5, 2)
        upload(made, carried, 1)
    made.handle(Aggregated(), 9.0)
    next_version(made, 10.0, version=2)
    send(made, "d", Accept(10), 10.5, 3)
    upload(made, "e", 1, 11.0)
    report_of(made, "c", 11.5)
    made.handle(Aggregated(), 12.0)
    assert made.records[-1].buffered is not None
    older = CARRY.factor(2)
    shares = [0, 0, 1 / (1 + older), 0, older / (1 + older)]
    assert made.records[-1].buffered.weights == pytest.approx(shares, abs=1e-4)


@pytest.mark.parametrize("every", [1, 2])
@pytest.mark.parametrize("carry", [None, CARRY])
def test_evaluate_rounds_do_not_change_the_cohorts_of_training_rounds(every, carry):
    """Each cohort is half of the devices, drawn by the number of the training round."""
    changes = {"participation": 0.5, "rounds": 4, "carry": carry, "carries": carry is not None, "upload_slots": 9}
    changes |= {"quorum_updates": 4} if carry is not None else {}
    cohorts = [trained_cohorts(evaluate_every=number, **changes) for number in (0, every)]
    assert len(cohorts[0]) == 4
    assert len(set(map(frozenset, cohorts[0]))) > 1
    assert cohorts[1] == cohorts[0]


def trained_cohorts(**changes: Any) -> list[set[str]]:
    """Play a run; return the devices of each training round."""
    made = engine(devices=8, quorum=0.5, over_select=1.0, grace_s=0.0, **changes)
    state = replace(there(), features=(EVALUATE_FEATURE,))
    for device in "abcdefgh":
        made.handle(DevicePresence(device, state), 0.0)
    cohorts, now = list[set[str]](), 1.0
    while made.stopped is None:
        made.handle(TimePassed(), now)
        if made.open is None:
            now += 1.0
            continue
        asked = invited(made.handle(ModelPublished(model(), version=len(cohorts)), now))
        if current(made).evaluates:
            for device in sorted(asked):
                send(made, device, Accept(10), now, made.last_round)
                send(made, device, Evaluation(model().digest, 0.5, 10, 1.0), now, made.last_round)
        else:
            cohorts.append(asked)
            report_until_the_end(made, sorted(asked), now)
            made.handle(Aggregated(), now)
        now += 1.0
    return cohorts


@pytest.mark.parametrize("evaluations", [1, 3])
def test_evaluate_rounds_do_not_change_the_groups_that_masked_rounds_draw(evaluations):
    made = aggregating()
    made.handle(Aggregated(), 6.0)
    [record] = made.records
    cohorts: list[list[tuple[str, ...]]] = [[], []]
    for trained in range(1, 5):
        rounds = [replace(record, round=number) for number in range(1, trained + evaluations + 1)]
        measured = [replace(one, outcome="evaluated") for one in rounds[trained:]]
        cohorts[0].append(masked_cohort(rounds[:trained]))
        cohorts[1].append(masked_cohort([*rounds[:trained], *measured]))
    assert len(set(cohorts[0])) > 1
    assert cohorts[1] == cohorts[0]


def masked_cohort(records: list[RoundRecord]) -> tuple[str, ...]:
    """Return the devices of the next masked round after these rounds: one group of two among eight devices."""
    secure = SecurePolicy(2, 2, ThresholdRule.HALF, 8, 1.0, 600, 5.0, lambda: 0.0)
    made = engine(records, devices=8, participation=0.25, over_select=1.0, rounds=9, secure=secure)
    for device in "abcdefgh":
        made.handle(DevicePresence(device, replace(there(), features=(MASKED_FEATURE,))), 0.0)
    [journal] = [one.journal for one in made.handle(ModelPublished(model()), 1.0) if isinstance(one, SaveJournal)]
    assert len(journal.invited) == 2
    return journal.invited


@pytest.mark.parametrize("longest_s", [0.5, 3.0])
def test_pause_after_failed_rounds_is_at_most_the_longest_pause(longest_s):
    made = engine(devices=1, wait_s=1000.0, longest_pause_s=longest_s, max_failed_rounds=99, rounds=99)
    join(made, "a")
    now = 0.0
    for number in range(1, 9):
        made.handle(ModelPublished(model()), now)
        send(made, "a", Failed(FailReason.TRAINING), now, number)
        made.handle(TimePassed(), now + 0.1)
        assert [record.outcome for record in made.records] == ["failed"] * number
        now += 0.2 + longest_s
        made.handle(TimePassed(), now)
        assert made.open is not None, number


@pytest.mark.parametrize(
    ("metric", "reached"), [(MetricTerms("error", "min", 0.0, 1.0), 0.0), (MetricTerms("gain", "max", -1.0, 1.0), 0.5)]
)
def test_target_of_zero_is_a_target(metric, reached):
    made = asking("ab", target_ua=0.0, metric=metric, rounds=9)
    report_all(made, "ab", 5.0, reached)
    assert made.stopped is None
    made.handle(Aggregated(), 6.0)
    made.handle(TimePassed(), 7.0)
    assert made.stopped is Stopped.TARGET_UA
