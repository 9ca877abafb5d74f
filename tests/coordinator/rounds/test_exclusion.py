"""Exclusion: a refused update of an offence excludes its device, on disk before the refusal is shown."""

from __future__ import annotations

import pytest

from fedpatch.coordinator.cohort.exclusion import excludes
from fedpatch.coordinator.cohort.offences import NOT_OFFENCES, OFFENCES
from fedpatch.coordinator.rounds.run_effects import CountEvent, ExcludeDevice, SendMessage
from fedpatch.coordinator.rounds.run_events import ModelPublished, UpdateRejected
from fedpatch.shared.wire.messages import Accept
from fedpatch.shared.wire.reason_codes import RefuseReason
from tests.coordinator.engines import DIGEST, engine, join, send
from tests.support.specs import model

EXCLUDING = [reason for kind, reason in OFFENCES if kind == "refused"]
OTHERS = [reason for kind, reason in NOT_OFFENCES if kind == "refused"]


def refuse(reason: RefuseReason):
    """Return the engine, and its effects when the update of one of four devices is refused."""
    made = engine(devices=4, rounds=9)
    join(made, "abcd")
    made.handle(ModelPublished(model()), 0.0)
    send(made, "a", Accept(10), 0.5, 1)
    return made, made.handle(UpdateRejected(1, "a", DIGEST, reason, "bad"), 1.0)


@pytest.mark.parametrize("reason", EXCLUDING)
def test_offence_is_written_before_the_message_and_the_count_that_show_it(reason):
    made, effects = refuse(RefuseReason(reason))
    shown = [type(effect) for effect in effects if isinstance(effect, ExcludeDevice | SendMessage | CountEvent)]
    assert shown[:3] == [ExcludeDevice, SendMessage, CountEvent]
    assert ExcludeDevice("a", RefuseReason(reason)) in effects
    assert made.fleet.offenders == {"a": reason} and "a" not in made.fleet.eligible()


@pytest.mark.parametrize("reason", OTHERS)
def test_refusal_that_can_meet_an_honest_device_excludes_none(reason):
    made, effects = refuse(RefuseReason(reason))
    assert not [effect for effect in effects if isinstance(effect, ExcludeDevice)]
    assert not made.fleet.offenders and "a" in made.fleet.eligible()


@pytest.mark.parametrize("reason", [reason for kind, reason in OFFENCES if kind == "ignored"])
def test_ignored_offence_counts_towards_quarantine_and_excludes_none(reason):
    assert not excludes(reason)
