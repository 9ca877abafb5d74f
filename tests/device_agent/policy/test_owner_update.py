"""What becomes of an update whose device was to send it, by its owner's preferences: nothing goes over a link unseen."""

from __future__ import annotations

import pytest

from fedpatch.device_agent.job.job_state_machine import Job
from fedpatch.shared.wire.messages import Failed, Offer
from fedpatch.shared.wire.reason_codes import Condition, FailReason
from tests.device_agent.jobs import KEY, REQUEST, ask, here, said_back
from tests.device_agent.owners import WELL, Bench, facts
from tests.support.specs import update

UNPLUGGED = facts(external_power=False)
METERED = facts(metered=True)


def asking(resumed: bool) -> Job:
    """A job whose update is ready and awaits clearance, after training or after a restart."""
    job = Job(max_blob_bytes=10_000, ask_to_send=True)
    if resumed:
        job.resume(KEY, update(), 20.0, REQUEST)
    else:
        ask(job)
        here(job, range(3), 11.0)
        job.trained(KEY, update(), 20.0)
    assert job.awaits_clearance
    return job


@pytest.mark.parametrize("resumed", [False, True])
def test_an_update_waits_until_the_link_was_looked_at(resumed):
    """After training as after a restart: the look is asked for at once, and then the update is offered."""
    bench, job = Bench(), asking(resumed)
    asked = bench.book.asked
    bench.owner.tick(job, 21.0)
    assert bench.book.asked == asked + 1
    assert job.tick(21.0) == []
    assert said_back(bench.see(job, WELL, 21.1)) == [Offer(update())]


@pytest.mark.parametrize("resumed", [False, True])
def test_an_update_is_not_sent_over_a_link_that_is_metered(resumed):
    """Nor while it is not yet certain that it is; it goes on when it is not any more."""
    bench, job = Bench(), asking(resumed)
    assert said_back(bench.see(job, METERED, 21.0, 22.0, 23.0, 24.0)) == []
    assert job.paused
    assert said_back(bench.see(job, WELL, 25.0, 36.0)) == [Offer(update())]


def test_an_update_is_sent_once_a_moment_is_over():
    """The link was metered for less than counts."""
    bench, job = Bench(), Job(max_blob_bytes=10_000, ask_to_send=True)
    ask(job)
    here(job, range(3), 11.0)
    bench.see(job, WELL, 19.0)
    job.trained(KEY, update(), 20.0)
    assert said_back(bench.see(job, METERED, 21.0)) == []
    assert said_back(bench.see(job, WELL, 22.0)) == [Offer(update())]


def test_an_update_is_given_up_where_its_owner_said_so():
    """Not a byte of it was sent."""
    bench, job = Bench(on_loss="abandon"), asking(resumed=False)
    assert said_back(bench.see(job, METERED, 21.0, 23.0)) == [Failed(FailReason.UNWILLING, Condition.METERED)]


def test_an_update_is_finished_where_its_owner_said_so():
    """Whatever it costs."""
    bench, job = Bench(on_loss="finish"), asking(resumed=False)
    assert said_back(bench.see(job, METERED, 21.0, 23.0)) == [Offer(update())]


def test_an_update_is_finished_after_a_loss_in_training_too():
    """What was missed then had been judged already: it is not told a second time when the update is ready."""
    bench, job = Bench(on_loss="finish"), Job(max_blob_bytes=10_000, ask_to_send=True)
    ask(job)
    here(job, range(3), 11.0)
    bench.see(job, UNPLUGGED, 13.0, 16.0)
    job.trained(KEY, update(), 20.0)
    assert said_back(bench.see(job, METERED, 21.0)) == [Offer(update())]
