"""Answers to outdated messages: each has the run, epoch and round of the message."""

from __future__ import annotations

import pytest

from fedpatch.coordinator.rounds.envelopes import EnvelopeFactory
from fedpatch.coordinator.rounds.known_devices import Fleet
from fedpatch.coordinator.rounds.outdated_messages import OutdatedMessages
from fedpatch.coordinator.rounds.run_effects import CountEvent, SendMessage
from fedpatch.shared.wire.messages import (
    Accept,
    Cancel,
    Committed,
    Decline,
    Failed,
    Need,
    Offer,
    Progress,
    Refused,
)
from fedpatch.shared.wire.reason_codes import DeclineReason, FailReason, JobPhase, RefuseReason
from tests.support.specs import TASK, envelope_of, model, run_spec, sent, update


def outdated_messages() -> tuple[EnvelopeFactory, OutdatedMessages]:
    """Return the answers of a run, with the factory of their envelopes."""
    post = EnvelopeFactory(run_spec())
    return post, OutdatedMessages(run_spec(), Fleet(TASK), post)


def test_outdated_offer_of_a_committed_update_is_committed_again():
    post, outdated = outdated_messages()
    post.committed["a"] = update().digest
    old = envelope_of(Offer(update()), 7, epoch=3, run="another")
    [effect] = outdated.answer("a", old, RefuseReason.LATE)
    assert isinstance(effect, SendMessage)
    assert effect.envelope.body == Committed(update().digest)
    assert (effect.envelope.run, effect.envelope.epoch, effect.envelope.round) == ("another", 3, 7)


def test_outdated_offer_is_refused_with_the_reason():
    post, outdated = outdated_messages()
    post.committed["b"] = update().digest
    effects = outdated.answer("a", envelope_of(Offer(update())), RefuseReason.STALE_EPOCH)
    [(device, body)] = sent(effects)
    assert device == "a"
    assert isinstance(body, Refused)
    assert (body.digest, body.reason) == (update().digest, RefuseReason.STALE_EPOCH)
    assert effects[1] == CountEvent("a", "late", "stale_epoch")


@pytest.mark.parametrize(
    "body",
    [Accept(5), Progress(JobPhase.TRAINING, 1, 2), Need(model().digest, b"\x01")],
    ids=lambda b: type(b).__name__,
)
def test_work_that_is_outdated_or_of_a_quarantined_device_is_cancelled(body):
    outdated, envelope = outdated_messages()[1], envelope_of(body)
    assert sent(outdated.answer("a", envelope, RefuseReason.LATE)) == [("a", Cancel("late"))]
    assert sent(outdated.answer_quarantined("a", envelope)) == [("a", Cancel("quarantined"))]


def test_offer_of_a_quarantined_device_is_refused_and_cancelled():
    effects = outdated_messages()[1].answer_quarantined("a", envelope_of(Offer(update())))
    [(_, refused), (_, cancel)] = sent(effects)
    assert isinstance(refused, Refused)
    assert (refused.digest, refused.reason) == (update().digest, RefuseReason.QUARANTINED)
    assert (cancel, effects[2]) == (Cancel("quarantined"), CountEvent("a", "refused", "quarantined"))


@pytest.mark.parametrize(
    "body", [Decline(DeclineReason.UNWILLING), Failed(FailReason.TRAINING), Cancel("late")], ids=str
)
def test_outdated_end_of_work_has_no_answer(body):
    outdated = outdated_messages()[1]
    assert outdated.answer("a", envelope_of(body), RefuseReason.LATE) == []
    assert outdated.answer_quarantined("a", envelope_of(body)) == [CountEvent("a", "refused", RefuseReason.QUARANTINED)]
