"""Envelopes: each message has run, epoch and round; the answer to a stale message has the values of that message."""

from __future__ import annotations

import pytest

from fedpatch.coordinator.rounds.envelopes import EnvelopeFactory
from fedpatch.coordinator.rounds.run_effects import CountEvent, SendMessage
from fedpatch.shared.wire.messages import Accept, Cancel, Committed, Decline, Failed, Need, Offer, Progress, Refused
from fedpatch.shared.wire.reason_codes import DeclineReason, FailReason, JobPhase, RefuseReason
from tests.support.specs import RUN, TASK, envelope_of, model, run_spec, sent, update


def test_messages_carry_run_epoch_round_and_a_new_id():
    post = EnvelopeFactory(run_spec(epoch=4))
    first, second = (post.send("a", 2, Cancel("late")).envelope for _ in range(2))
    assert (first.run, first.task, first.epoch, first.round) == (RUN, TASK, 4, 2)
    assert first.id < second.id


def test_stale_offer_of_a_committed_update_is_committed_again():
    post = EnvelopeFactory(run_spec())
    post.committed["a"] = update().digest
    old = envelope_of(Offer(update()), 7, epoch=3, run="another")
    [effect] = post.answer_stale("a", old, RefuseReason.LATE)
    assert isinstance(effect, SendMessage)
    assert effect.envelope.body == Committed(update().digest)
    assert (effect.envelope.run, effect.envelope.epoch, effect.envelope.round) == ("another", 3, 7)


def test_stale_offer_is_refused_with_the_reason():
    post = EnvelopeFactory(run_spec())
    post.committed["b"] = update().digest
    effects = post.answer_stale("a", envelope_of(Offer(update())), RefuseReason.STALE_EPOCH)
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
def test_work_that_is_stale_or_of_a_quarantined_device_is_cancelled(body):
    post, envelope = EnvelopeFactory(run_spec()), envelope_of(body)
    assert sent(post.answer_stale("a", envelope, RefuseReason.LATE)) == [("a", Cancel("late"))]
    assert sent(post.answer_quarantined("a", envelope)) == [("a", Cancel("quarantined"))]


def test_offer_of_a_quarantined_device_is_refused_and_cancelled():
    effects = EnvelopeFactory(run_spec()).answer_quarantined("a", envelope_of(Offer(update())))
    [(_, refused), (_, cancel)] = sent(effects)
    assert isinstance(refused, Refused)
    assert (refused.digest, refused.reason) == (update().digest, RefuseReason.QUARANTINED)
    assert (cancel, effects[2]) == (Cancel("quarantined"), CountEvent("a", "refused", "quarantined"))


@pytest.mark.parametrize(
    "body", [Decline(DeclineReason.UNWILLING), Failed(FailReason.TRAINING), Cancel("late")], ids=str
)
def test_stale_end_of_work_has_no_answer(body):
    post = EnvelopeFactory(run_spec())
    assert post.answer_stale("a", envelope_of(body), RefuseReason.LATE) == []
    assert post.answer_quarantined("a", envelope_of(body)) == [CountEvent("a", "refused", RefuseReason.QUARANTINED)]
