"""An owner's facts, where the standing order asks for none and others do."""

from __future__ import annotations

from fedpatch.device_agent.job.events import AdmissionDecision
from fedpatch.device_agent.policy.owner_policy import LOOK_IDLE_S
from tests.device_agent.jobs import training
from tests.device_agent.owners import Pocketbook, facts, owner_of
from tests.support.specs import TASK

UNPLUGGED = facts(external_power=False)


def test_facts_are_looked_up_for_others_where_the_order_needs_none():
    """At the pace of an idle device; they change nothing about what the order says."""
    book = Pocketbook()
    owner, job = owner_of(book, "always", look_anyway=True), training()
    owner.tick(job, 12.0)
    assert book.asked == 1
    assert owner.update_facts(UNPLUGGED, job, [TASK], 13.0) == owner.update_facts(UNPLUGGED, job, [TASK], 100.0) == []
    assert (owner.facts, owner.unwilling, owner.willing) == (UNPLUGGED, None, True)
    assert owner.next_deadline(job) == 100.0 + LOOK_IDLE_S
    assert owner.decide(TASK, 0, 101.0) == AdmissionDecision(True)
