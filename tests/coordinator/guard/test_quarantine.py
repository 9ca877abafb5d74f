"""Quarantine and maintenance: what counts against a device, what is kept of it, and what a coordinator at work makes of it."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from fedpatch.coordinator.aggregation.norm_clipping import check_registered
from fedpatch.coordinator.aggregation.weighted_mean import WeightedMean
from fedpatch.coordinator.cohort.offences import NOT_OFFENCES, OFFENCES, OffenceCounter
from fedpatch.coordinator.guard.quarantine import LOOK_EVERY_S, Quarantine
from fedpatch.coordinator.observability.metric_definitions import IGNORED
from fedpatch.coordinator.rounds.known_devices import DRAINED, QUARANTINED, Fleet
from fedpatch.coordinator.rounds.participant_transitions import RoundJournal
from fedpatch.coordinator.rounds.run_effects import CountEvent
from fedpatch.coordinator.rounds.run_events import DeviceMessage, HoldsChanged
from fedpatch.coordinator.rounds.run_records import Hold
from fedpatch.coordinator.storage.boot_clock import BootTime
from fedpatch.coordinator.storage.database import copy_of
from fedpatch.coordinator.storage.migrations import SCHEMA_VERSION, script
from fedpatch.coordinator.storage.run_registry import REGISTRY_FILE, Registry, Sighting
from fedpatch.shared.errors import UpdateRefused
from fedpatch.shared.tensors.arrays import Schema
from fedpatch.shared.wire.messages import Accept, Cancel, Offer, Refused, RetryAfter
from fedpatch.shared.wire.reason_codes import RefuseReason
from tests.coordinator.registry_builders import seen
from tests.coordinator.engines import asking
from tests.support.specs import TASK, gone, said, there, told, update


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[Registry]:
    """With two devices of one fleet, and one of another that has the same name."""
    with Registry(tmp_path / REGISTRY_FILE) as made:
        for fleet, device in (("kitchen", "pi-1"), ("kitchen", "pi-2"), ("garden", "pi-1")):
            seen(made, device, fleet=fleet, now=1.0, online=True)
        yield made


def test_every_reason_is_an_offence_or_a_misfortune():
    """None is forgotten, and none is both."""
    reasons = {("refused", reason) for reason in RefuseReason} | {("ignored", reason) for reason in IGNORED}
    assert OFFENCES.keys() | NOT_OFFENCES.keys() == reasons
    assert not OFFENCES.keys() & NOT_OFFENCES.keys()


def test_misfortunes_never_count():
    """However often they happen."""
    conduct = OffenceCounter(1, {})
    for what, reason in NOT_OFFENCES:
        assert not conduct.note("a", what, reason, times=1000)
    assert not conduct.note("a", "declined", "unwilling")
    assert not conduct.due("a")


def test_more_examples_than_registered_are_a_misfortune_and_none_at_all_an_offence():
    """A device whose data grew has said so, and a lost message kept it from us; no device trains on nothing."""
    with pytest.raises(UpdateRefused) as grown:
        check_registered(1000, 100)
    with pytest.raises(UpdateRefused) as nothing:
        WeightedMean(Schema(())).add({}, 0)
    conduct = OffenceCounter(1, {})
    assert not conduct.note("a", "refused", grown.value.reason)
    assert conduct.note("a", "refused", nothing.value.reason)


def test_offences_add_up_over_restarts():
    """Those that the registry knows of are counted too; 0 is never enough."""
    conduct = OffenceCounter(3, {"a": 2})
    assert not conduct.due("a")
    assert conduct.note("a", "refused", "damaged")
    assert (conduct.due("a"), conduct.due("b"), conduct.of("a")) == (True, False, 3)
    never = OffenceCounter(0, {"a": 10**6})
    assert not never.due("a")


def test_a_hold_is_kept_with_its_reason_and_its_time(registry):
    """Of this fleet's device alone; the second one changes nothing."""
    assert registry.holds.put("kitchen", "pi-1", QUARANTINED, "sends nonsense", 5.0)
    assert not registry.holds.put("kitchen", "pi-1", QUARANTINED, "again", 6.0)
    assert registry.holds.put("kitchen", "pi-1", DRAINED, "battery", 7.0)
    one, two, three = registry.devices()
    assert (one.fleet, one.quarantined, one.drained) == ("garden", None, None)
    assert (two.quarantined, two.drained) == (Hold("sends nonsense", 5.0), Hold("battery", 7.0))
    assert (three.quarantined, three.drained) == (None, None)
    assert registry.holds.held("kitchen") == {"pi-1": QUARANTINED}
    assert registry.holds.lift("kitchen", "pi-1", QUARANTINED)
    assert not registry.holds.lift("kitchen", "pi-1", QUARANTINED)
    assert registry.holds.held("kitchen") == {"pi-1": DRAINED}


def test_a_release_forgets_offences(registry):
    """The device begins anew; another one's stay."""
    registry.holds.offend("kitchen", {"pi-1": (3, "damaged"), "pi-2": (1, "too_large")})
    registry.holds.offend("kitchen", {"pi-1": (2, "not_ours")})
    assert registry.holds.offences("kitchen") == {"pi-1": 5, "pi-2": 1}
    registry.holds.lift("kitchen", "pi-1", QUARANTINED)
    assert registry.holds.offences("kitchen") == {"pi-2": 1}
    assert [one.offences for one in registry.devices()] == [0, 0, 1]


def test_a_hold_outlives_the_file_that_it_was_written_into(registry):
    """The warden's and whoever else calls `keep`: the copy that takes the place of a damaged registry has it."""
    quarantine = Quarantine(registry, "kitchen", 1, lambda _: None)
    quarantine.note(CountEvent("pi-1", "refused", "damaged"))
    assert quarantine.poll(1.0) == {"pi-1": QUARANTINED}
    registry.holds.put("kitchen", "pi-2", DRAINED, "battery", 7.0)
    registry.holds.keep()
    registry.close()
    registry.path.write_bytes(b"no database")
    with Registry(registry.path) as restored:
        assert restored.holds.held("kitchen") == {"pi-1": QUARANTINED, "pi-2": DRAINED}
    copy = copy_of(registry.path)
    before = copy.stat().st_mtime_ns
    with Registry(registry.path) as again:
        assert Quarantine(again, "kitchen", 1, print).poll(9.0) is None
    assert copy.stat().st_mtime_ns == before


def test_a_registry_of_version_2_is_brought_to_the_present(tmp_path: Path):
    """Devices stay; nobody is held back."""
    path = tmp_path / REGISTRY_FILE
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.executescript(f"BEGIN; {script(0, 2)} PRAGMA user_version = 2; COMMIT; PRAGMA journal_mode = WAL;")
        columns = "id, fleet, first_seen, last_seen, online, version, tasks"
        db.execute(f"INSERT INTO devices ({columns}) VALUES ('pi-1', 'lab', 1, 2, 1, '1.0', '[]')")
    with Registry(path) as registry:
        [device] = registry.devices()
        assert (device.id, device.quarantined, device.drained, device.offences) == ("pi-1", None, None, 0)
        assert registry.holds.put("lab", "pi-1", DRAINED, "battery", 3.0)
        assert registry._db.execute("PRAGMA user_version").fetchone()[0] == SCHEMA_VERSION > 2


def test_names_that_were_never_asked_are_forgotten_first(registry):
    """Of more devices than may be known, the one not heard for longest goes; who worked or is held back stays."""
    registry.count("kitchen", ("pi-1", "invited", ""))
    registry.holds.put("kitchen", "pi-2", DRAINED, "battery", 1.0)
    ghosts = [Sighting(f"ghost-{number}", 10.0 + number, True, "", ()) for number in range(50)]
    registry.seen_devices("kitchen", ghosts, 5)
    left = [one.id for one in registry.devices() if one.fleet == "kitchen"]
    assert left == ["ghost-47", "ghost-48", "ghost-49", "pi-1", "pi-2"]
    assert any(one.fleet == "garden" for one in registry.devices())


def test_a_coordinator_notices_what_another_process_decides(registry):
    """At its next look, and only then is there anything to do."""
    quarantine = Quarantine(registry, "kitchen", 5, print)
    assert quarantine.poll(1.0) is None
    with Registry(registry.path) as other:
        other.holds.put("kitchen", "pi-1", DRAINED, "battery", 1.0)
    assert quarantine.poll(1.0 + LOOK_EVERY_S / 2) is None
    assert quarantine.poll(1.0 + LOOK_EVERY_S) == {"pi-1": DRAINED}
    assert quarantine.poll(1.0 + 2 * LOOK_EVERY_S) is None
    with Registry(registry.path) as other:
        other.holds.lift("kitchen", "pi-1", DRAINED)
    assert quarantine.poll(1.0 + 3 * LOOK_EVERY_S) == {}


def test_the_warden_puts_offenders_into_quarantine(registry):
    """At the limit, told to people with the way back; released, it may offend anew before it is held again."""
    lines: list[str] = []
    quarantine = Quarantine(registry, "kitchen", 2, lines.append)
    quarantine.note(CountEvent("pi-1", "refused", "damaged"))
    quarantine.note(CountEvent("pi-2", "refused", "late"))
    assert quarantine.poll(1.0) is None
    quarantine.note(CountEvent("pi-1", "ignored", "not_ours"))
    assert quarantine.poll(3.0) == {"pi-1": QUARANTINED}
    assert "fedpatch devices release pi-1" in lines[0]
    assert Quarantine(registry, "kitchen", 2, print).held == {"pi-1": QUARANTINED}
    with Registry(registry.path) as other:
        other.holds.lift("kitchen", "pi-1", QUARANTINED)
    assert quarantine.poll(5.0) == {}
    quarantine.note(CountEvent("pi-1", "refused", "damaged"))
    assert quarantine.poll(7.0) is None


def test_a_release_before_quarantine_forgets_offences_in_a_run_too(registry):
    """One that was near its limit begins anew, though nobody had held it back yet."""
    quarantine = Quarantine(registry, "kitchen", 2, print)
    quarantine.note(CountEvent("pi-1", "refused", "damaged"))
    assert quarantine.poll(1.0) is None
    with Registry(registry.path) as other:
        other.holds.lift("kitchen", "pi-1", QUARANTINED)
    assert quarantine.poll(3.0) is None
    quarantine.note(CountEvent("pi-1", "refused", "damaged"))
    assert quarantine.poll(5.0) is None
    assert registry.holds.offences("kitchen") == {"pi-1": 1}


def test_names_without_end_leave_bounded_offences_and_holds(registry):
    """Who makes way for another is forgotten, with what was not written yet; no more are held than may be known."""
    quarantine = Quarantine(registry, "kitchen", 2, print, most=3)
    quarantine.note(CountEvent("ghost", "refused", "damaged"))
    quarantine.poll(1.0)
    quarantine.forget("ghost")
    quarantine.note(CountEvent("spirit", "refused", "damaged"))
    quarantine.forget("spirit")
    assert quarantine.poll(3.0) is None
    assert registry.holds.offences("kitchen") == {}
    for number in range(9):
        quarantine.note(CountEvent(f"ghost-{number}", "ignored", "not_ours", times=2))
    held = quarantine.poll(5.0)
    assert held == dict.fromkeys(("ghost-0", "ghost-1", "ghost-2"), QUARANTINED)
    for number in range(9):
        quarantine.forget(f"ghost-{number}")
    quarantine.poll(7.0)
    assert registry.holds.offences("kitchen").keys() == held.keys()


def test_who_has_offended_enough_does_not_escape_by_making_way(registry):
    """It leaves at once, and others come in its place before the warden has looked."""
    quarantine = Quarantine(registry, "kitchen", 2, print, most=3)
    quarantine.note(CountEvent("pi-1", "refused", "damaged", times=2))
    quarantine.forget("pi-1")
    assert quarantine.poll(1.0) == {"pi-1": QUARANTINED}
    quarantine.forget("pi-1")
    assert quarantine.poll(3.0) is None
    assert registry.holds.offences("kitchen") == {"pi-1": 2}


def test_a_quarantined_device_is_out_of_the_round_and_turned_away():
    """It hears so, its messages are counted, and the others go on."""
    engine = asking("ab")
    engine.handle(DeviceMessage("b", said(Accept(10))), 1.0)
    assert CountEvent("b", "failed", QUARANTINED) in engine.handle(HoldsChanged({"b": QUARANTINED}), 2.0)
    answers = engine.handle(DeviceMessage("b", said(Offer(update()))), 3.0)
    [(_, refused), (_, cancel)] = told(answers)
    assert isinstance(refused, Refused)
    assert refused.reason is RefuseReason.QUARANTINED
    assert cancel == Cancel("quarantined")
    assert answers[-1] == CountEvent("b", "refused", "quarantined")
    assert engine.fleet.eligible() == ["a"]
    engine.handle(HoldsChanged({}), 4.0)
    assert engine.fleet.eligible() == ["a", "b"]


def test_a_drained_device_finishes_what_it_does():
    """It is asked for nothing further, and its work counts."""
    engine = asking("ab")
    engine.handle(DeviceMessage("b", said(Accept(10))), 1.0)
    assert told(engine.handle(HoldsChanged({"b": DRAINED}), 2.0)) == []
    assert engine.fleet.eligible() == ["a"]
    [(device, _)] = told(engine.handle(DeviceMessage("b", said(Offer(update()))), 3.0))
    assert device == "b"
    assert engine.fleet.members["b"].held == DRAINED


def test_a_device_that_comes_later_is_held_back_too():
    """The order of presence and decision does not matter."""
    fleet = Fleet(TASK)
    fleet.hold({"a": DRAINED})
    fleet.update("a", there())
    fleet.update("b", there())
    assert fleet.eligible() == ["b"]
    assert "held back, as a: drained" in fleet.missing_text(2, 5.0)


def test_the_fleet_has_room_for_so_many():
    """Who is gone and never worked makes way, the longest gone first; where nobody can, the newcomer is not taken in."""
    fleet = Fleet(TASK, 3)
    for device in "abc":
        assert fleet.update(device, there())
    assert not fleet.update("d", there())
    for device in "ba":
        fleet.update(device, gone())
    fleet.works("b")
    assert fleet.update("d", there())
    assert (sorted(fleet.members), fleet.evicted) == (["b", "c", "d"], ["a"])
    assert not fleet.update("e", there())
    assert fleet.eligible() == ["c", "d"]


def test_an_update_waits_for_the_run_that_may_still_take_it():
    """Of a run that can be resumed, and the round that is open there; of any other it is refused."""
    engine = asking("ab", resumable={"run-0": 7})
    [(_, body)] = told(engine.handle(DeviceMessage("a", said(Offer(update()), 7, run="run-0", epoch=3)), 1.0))
    assert isinstance(body, RetryAfter)
    assert body.digest == update().digest
    for number, run in ((6, "run-0"), (7, "run-9")):
        [(_, body)] = told(engine.handle(DeviceMessage("a", said(Offer(update()), number, run=run, epoch=3)), 1.0))
        assert isinstance(body, Refused)


def test_runs_that_can_be_resumed_are_known_with_their_round(registry):
    """Until they came to their end."""
    runs = []
    for fleet in ("kitchen", "garden", "kitchen"):
        terms = {"task": "digits", "strategy": "fedavg", "private": "none", "schema": "5c"}
        run = registry.create_run(created_at=1.0, settings={"fleet": fleet}, **terms)
        registry.rounds.open(run.id, RoundJournal(4, 1, ("a",), "b"), BootTime.now())
        runs.append(run.id)
    registry.finish_run(runs[0], stopped_because="interrupted", user_accuracy=None, model=None)
    registry.finish_run(runs[2], stopped_because="max_rounds", user_accuracy=None, model=None)
    assert registry.open_rounds("kitchen") == {runs[0]: 4}
