"""Envelopes: each message has run, epoch and round."""

from __future__ import annotations

from fedpatch.coordinator.rounds.envelopes import EnvelopeFactory
from fedpatch.shared.wire.messages import Cancel
from tests.support.specs import RUN, TASK, run_spec


def test_messages_carry_run_epoch_round_and_a_new_id():
    post = EnvelopeFactory(run_spec(epoch=4))
    first, second = (post.send("a", 2, Cancel("late")).envelope for _ in range(2))
    assert (first.run, first.task, first.epoch, first.round) == (RUN, TASK, 4, 2)
    assert first.id < second.id
