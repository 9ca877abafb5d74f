"""The open round on the disk: what it knows, how its time passes, and how it becomes a record."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from fedpatch.coordinator.rounds.participant_transitions import RoundJournal
from fedpatch.coordinator.storage.boot_clock import BootTime
from fedpatch.shared.errors import UpdateRefused
from tests.coordinator.storage.test_registry import new_run, record_of, update_of


def ledger_of(number: int = 1, **changes: Any) -> RoundJournal:
    return replace(RoundJournal(number, 2, ("b", "a", "c"), "ab" * 32), **changes)


def test_open_round_is_known_until_its_record(registry):
    run = new_run(registry).id
    now = BootTime("boot", 10.0, 1e9)
    assert registry.rounds.unfinished(run, now) is None
    registry.rounds.open(run, ledger_of(), now)
    registry.rounds.accept(run, {"a"})
    registry.rounds.add_update(run, update_of(device="c"), {"a", "c"})
    assert registry.rounds.unfinished(run, now) == ledger_of(accepted=frozenset("ac"))
    registry.rounds.close(run)
    assert registry.rounds.unfinished(run, now) == ledger_of(accepted=frozenset("ac"), closing=True)
    registry.rounds.finish(run, record_of(1))
    assert (registry.rounds.unfinished(run, now), registry.rounds.updates(run, 1)) == (None, [])
    assert registry.rounds.records(run) == [record_of(1)]


def test_open_round_keeps_offenders_and_absent_devices(registry):
    run, now = new_run(registry).id, BootTime("boot", 10.0, 1e9)
    registry.rounds.exclude_offender(run, "a", "not_finite")
    assert registry.rounds.unfinished(run, now) is None
    ledger = ledger_of(absent=frozenset("c"), offenders={"a": "not_finite"})
    registry.rounds.open(run, replace(ledger, offenders={}), now)
    registry.rounds.exclude_offender(run, "a", "not_finite")
    assert registry.rounds.unfinished(run, now) == ledger
    registry.rounds.open(run, ledger, now)
    registry.rounds.exclude_offender(run, "b", "damaged")
    assert registry.rounds.unfinished(run, now) == replace(ledger, offenders={"a": "not_finite", "b": "damaged"})


def test_opened_round_keeps_its_own_updates_only(registry):
    run, now = new_run(registry).id, BootTime("boot", 10.0, 1e9)
    registry.rounds.add_update(run, update_of(round=1))
    registry.rounds.add_update(run, update_of(round=2))
    registry.rounds.open(run, ledger_of(2, accepted=frozenset("b")), now)
    assert (registry.rounds.updates(run, 1), len(registry.rounds.updates(run, 2))) == ([], 1)
    assert registry.rounds.unfinished(run, now) == ledger_of(2, accepted=frozenset("b"))


def test_spent_time_counts_on_while_the_coordinator_is_away(registry):
    """By the machine's own clock as long as it runs, by the wall clock after a boot, and never backwards."""
    run, then = new_run(registry).id, BootTime("boot", 10.0, 1e9)
    registry.rounds.open(run, ledger_of(spent_s=5.0), then)
    spent = {
        BootTime("boot", 40.0, 1e9 - 1e8): 35.0,
        BootTime("other", 3.0, 1e9 + 60.0): 65.0,
        BootTime("other", 3.0, 0.0): 5.0,
        BootTime("", 0.0, 1e9 + 7.0): 12.0,
    }
    for now, spent_s in spent.items():
        assert registry.rounds.unfinished(run, now) == ledger_of(spent_s=spent_s)
    registry.rounds.pause(run, 20.0)
    for now in spent:
        assert registry.rounds.unfinished(run, now) == ledger_of(spent_s=20.0)
    registry.rounds.open(run, ledger_of(spent_s=20.0), BootTime("boot", 100.0, 1e9))
    assert registry.rounds.unfinished(run, BootTime("boot", 101.0, 0.0)) == ledger_of(spent_s=21.0)


def test_roll_back_forgets_later_rounds(registry):
    run, now = new_run(registry).id, BootTime("boot", 10.0, 1e9)
    for number in (1, 2, 3):
        registry.rounds.finish(run, record_of(number))
    registry.rounds.open(run, ledger_of(4), now)
    registry.rounds.add_update(run, update_of(round=4))
    registry.rounds.roll_back(run, 1)
    assert registry.rounds.records(run) == [record_of(1)]
    assert (registry.rounds.unfinished(run, now), registry.rounds.updates(run, 4)) == (None, [])


def test_update_counts_once_and_other_bytes_are_refused(registry):
    run = new_run(registry).id
    assert registry.rounds.add_update(run, update_of())
    assert not registry.rounds.add_update(run, update_of())
    with pytest.raises(UpdateRefused) as refused:
        registry.rounds.add_update(run, update_of(digest="cd" * 32))
    assert refused.value.reason == "already_committed"
    assert registry.rounds.add_update(run, update_of(device="pi-0"))
    assert registry.rounds.add_update(run, update_of(digest="cd" * 32, round=2))
    assert registry.rounds.updates(run, 1) == [update_of(device="pi-0"), update_of()]
    registry.rounds.drop_update(run, 1, "pi-0")
    assert registry.rounds.updates(run, 1) == [update_of()]
    assert len(registry.rounds.updates(run, 2)) == 1
