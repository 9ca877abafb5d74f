"""Quarantine and maintenance: offences of devices, holds in the registry, and their effect on a running coordinator."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from fedpatch.coordinator.aggregation.registered_counts import check_registered
from fedpatch.coordinator.aggregation.weighted_mean import WeightedMean
from fedpatch.coordinator.cohort.offences import OFFENCES
from fedpatch.coordinator.guard.quarantine import Quarantine
from fedpatch.coordinator.rounds.device_record import Hold
from fedpatch.coordinator.rounds.held_devices import DRAINED, QUARANTINED
from fedpatch.coordinator.rounds.known_devices import Fleet
from fedpatch.coordinator.rounds.missing_devices import missing_text
from fedpatch.coordinator.rounds.round_journal import RoundJournal
from fedpatch.coordinator.rounds.run_effects import CountEvent
from fedpatch.coordinator.rounds.run_events import DeviceMessage, HoldsChanged
from fedpatch.coordinator.runtime.device_counters import DeviceCounters
from fedpatch.coordinator.storage.boot_clock import BootTime
from fedpatch.coordinator.storage.database.registry_files import copy_of
from fedpatch.coordinator.storage.run_registry import REGISTRY_FILE, Registry, Sighting
from fedpatch.shared.errors import UpdateRefused
from fedpatch.shared.tensors.arrays import Schema
from fedpatch.shared.wire.messages import Accept, Cancel, Offer, Refused, RetryAfter
from fedpatch.shared.wire.reason_codes import RefuseReason
from tests.coordinator.engines import asking
from tests.coordinator.registry_builders import new_run, seen
from tests.support.specs import TASK, envelope_of, refusal, run_spec, sent, there, update


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[Registry]:
    with Registry(tmp_path / REGISTRY_FILE) as made:
        for fleet, device in (("kitchen", "pi-1"), ("kitchen", "pi-2"), ("garden", "pi-1")):
            seen(made, device, fleet=fleet, now=1.0, online=True)
        yield made


def test_too_many_examples_are_no_offence_and_none_are_one():
    with pytest.raises(UpdateRefused) as grown:
        check_registered(1000, 100)
    with pytest.raises(UpdateRefused) as nothing:
        WeightedMean(Schema(())).add({}, 0)
    assert ("refused", grown.value.reason) not in OFFENCES
    assert ("refused", nothing.value.reason) in OFFENCES


def test_hold_keeps_its_reason_and_time(registry):
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


def test_release_forgets_offences(registry):
    registry.holds.offend("kitchen", {"pi-1": (3, "damaged"), "pi-2": (1, "too_large")})
    registry.holds.offend("kitchen", {"pi-1": (2, "not_ours")})
    assert registry.holds.offences("kitchen") == {"pi-1": 5, "pi-2": 1}
    registry.holds.lift("kitchen", "pi-1", QUARANTINED)
    assert registry.holds.offences("kitchen") == {"pi-2": 1}
    assert [one.offences for one in registry.devices()] == [0, 0, 1]


def test_hold_is_in_the_copy_of_the_registry(registry):
    quarantine = Quarantine(registry, "kitchen", 1, lambda _: None)
    quarantine.note("pi-1", "damaged")
    assert quarantine.poll() == {"pi-1": QUARANTINED}
    registry.holds.put("kitchen", "pi-2", DRAINED, "battery", 7.0)
    registry.holds.keep()
    registry.close()
    registry.path.write_bytes(b"no database")
    with Registry(registry.path) as restored:
        assert restored.holds.held("kitchen") == {"pi-1": QUARANTINED, "pi-2": DRAINED}
    copy = copy_of(registry.path)
    before = copy.stat().st_mtime_ns
    with Registry(registry.path) as again:
        assert Quarantine(again, "kitchen", 1, print).poll() is None
    assert copy.stat().st_mtime_ns == before


def test_devices_that_never_worked_are_evicted_first(registry):
    registry.count("kitchen", ("pi-1", "invited", ""))
    registry.holds.put("kitchen", "pi-2", DRAINED, "battery", 1.0)
    ghosts = [Sighting(f"ghost-{number}", 10.0 + number, True, "", ()) for number in range(50)]
    registry.seen_devices("kitchen", ghosts, 5)
    left = [one.id for one in registry.devices() if one.fleet == "kitchen"]
    assert left == ["ghost-47", "ghost-48", "ghost-49", "pi-1", "pi-2"]
    assert any(one.fleet == "garden" for one in registry.devices())


def test_poll_notices_holds_of_another_process(registry):
    quarantine = Quarantine(registry, "kitchen", 5, print)
    assert quarantine.poll() is None
    with Registry(registry.path) as other:
        other.holds.put("kitchen", "pi-1", DRAINED, "battery", 1.0)
    assert quarantine.poll() == {"pi-1": DRAINED}
    assert quarantine.poll() is None
    with Registry(registry.path) as other:
        other.holds.lift("kitchen", "pi-1", DRAINED)
    assert quarantine.poll() == {}


def test_offender_is_quarantined_at_the_limit(registry):
    lines: list[str] = []
    quarantine = Quarantine(registry, "kitchen", 2, lines.append)
    quarantine.note("pi-1", "damaged")
    assert quarantine.poll() is None
    quarantine.note("pi-1", "not_ours")
    assert quarantine.poll() == {"pi-1": QUARANTINED}
    assert "fedpatch devices release pi-1" in lines[0]
    assert Quarantine(registry, "kitchen", 2, print).held == {"pi-1": QUARANTINED}
    with Registry(registry.path) as other:
        other.holds.lift("kitchen", "pi-1", QUARANTINED)
    assert quarantine.poll() == {}
    quarantine.note("pi-1", "damaged")
    assert quarantine.poll() is None


@pytest.mark.parametrize(
    ("limit", "offences", "due"),
    [(1, 0, False), (1, 1, True), (2, 1, False), (2, 2, True), (2, 3, True), (0, 10**6, False)],
)
def test_device_is_quarantined_at_the_limit_and_never_with_limit_zero(registry, limit, offences, due):
    quarantine = Quarantine(registry, "kitchen", limit, print)
    if offences:
        quarantine.note("pi-1", "damaged", times=offences)
    assert (quarantine.poll() is not None) is due
    assert quarantine.held == ({"pi-1": QUARANTINED} if due else {})


def test_only_offences_of_a_device_count(registry):
    quarantine = Quarantine(registry, "kitchen", 3, print)
    counters = DeviceCounters(registry, "kitchen", run_spec(), quarantine, lambda _: None)
    for device, what, reason, times in (
        ("pi-1", "ignored", "not_ours", 2),
        ("pi-1", "ignored", "over_limit", 9),
        ("pi-1", "refused", "late", 9),
        ("pi-2", "declined", "unwilling", 9),
        ("", "ignored", "not_ours", 9),
        ("pi-1", "ignored", "not_ours", 1),
    ):
        counters.count(CountEvent(device, what, reason, times=times))
    quarantine.save()
    assert registry.holds.offences("kitchen") == {"pi-1": 3}


def test_release_before_quarantine_forgets_pending_offences(registry):
    quarantine = Quarantine(registry, "kitchen", 2, print)
    quarantine.note("pi-1", "damaged")
    assert quarantine.poll() is None
    with Registry(registry.path) as other:
        other.holds.lift("kitchen", "pi-1", QUARANTINED)
    assert quarantine.poll() is None
    quarantine.note("pi-1", "damaged")
    assert quarantine.poll() is None
    assert registry.holds.offences("kitchen") == {"pi-1": 1}


def test_unbounded_names_leave_bounded_offences_and_holds(registry):
    quarantine = Quarantine(registry, "kitchen", 2, print, most=3)
    quarantine.note("ghost", "damaged")
    quarantine.poll()
    quarantine.forget("ghost")
    quarantine.note("spirit", "damaged")
    quarantine.forget("spirit")
    assert quarantine.poll() is None
    assert registry.holds.offences("kitchen") == {}
    for number in range(9):
        quarantine.note(f"ghost-{number}", "not_ours", times=2)
    held = quarantine.poll()
    assert held == dict.fromkeys(("ghost-0", "ghost-1", "ghost-2"), QUARANTINED)
    for number in range(9):
        quarantine.forget(f"ghost-{number}")
    quarantine.poll()
    assert registry.holds.offences("kitchen").keys() == held.keys()


def test_evicted_offender_is_quarantined(registry):
    quarantine = Quarantine(registry, "kitchen", 2, print, most=3)
    quarantine.note("pi-1", "damaged", times=2)
    quarantine.forget("pi-1")
    assert quarantine.poll() == {"pi-1": QUARANTINED}
    quarantine.forget("pi-1")
    assert quarantine.poll() is None
    assert registry.holds.offences("kitchen") == {"pi-1": 2}


def test_quarantined_device_leaves_the_round_and_is_refused():
    engine = asking("ab")
    engine.handle(DeviceMessage("b", envelope_of(Accept(10))), 1.0)
    assert CountEvent("b", "failed", QUARANTINED, leaves=True) in engine.handle(HoldsChanged({"b": QUARANTINED}), 2.0)
    answers = engine.handle(DeviceMessage("b", envelope_of(Offer(update()))), 3.0)
    [(_, refused), (_, cancel)] = sent(answers)
    assert isinstance(refused, Refused)
    assert refused.reason is RefuseReason.QUARANTINED
    assert cancel == Cancel("quarantined")
    assert answers[-1] == CountEvent("b", "refused", "quarantined")
    assert engine.fleet.eligible() == ["a"]
    engine.handle(HoldsChanged({}), 4.0)
    assert engine.fleet.eligible() == ["a", "b"]


def test_drained_device_finishes_its_work():
    engine = asking("ab")
    engine.handle(DeviceMessage("b", envelope_of(Accept(10))), 1.0)
    assert sent(engine.handle(HoldsChanged({"b": DRAINED}), 2.0)) == []
    assert engine.fleet.eligible() == ["a"]
    [(device, _)] = sent(engine.handle(DeviceMessage("b", envelope_of(Offer(update()))), 3.0))
    assert device == "b"
    assert engine.fleet.members["b"].held == DRAINED


def test_device_that_comes_after_the_hold_is_held():
    fleet = Fleet(TASK)
    fleet.hold({"a": DRAINED})
    fleet.update("a", there())
    fleet.update("b", there())
    assert fleet.eligible() == ["b"]
    assert "held back, as a: drained" in missing_text(fleet, 2, 5.0)


def test_offer_for_a_resumable_run_is_answered_with_retry():
    engine = asking("ab", resumable={"run-0": 7})
    [(_, body)] = sent(engine.handle(DeviceMessage("a", envelope_of(Offer(update()), 7, run="run-0", epoch=3)), 1.0))
    assert isinstance(body, RetryAfter)
    assert body.digest == update().digest
    for number, run in ((6, "run-0"), (7, "run-9")):
        refusal(engine.handle(DeviceMessage("a", envelope_of(Offer(update()), number, run=run, epoch=3)), 1.0))


def test_open_rounds_of_resumable_runs_are_known(registry):
    runs = []
    for fleet in ("kitchen", "garden", "kitchen"):
        run = new_run(registry, settings={"fleet": fleet})
        registry.rounds.open(run.id, RoundJournal(4, 1, ("a",), "b"), BootTime.now())
        runs.append(run.id)
    registry.finish_run(runs[0], stopped_because="interrupted", user_accuracy=None, model=None)
    registry.finish_run(runs[2], stopped_because="max_rounds", user_accuracy=None, model=None)
    assert registry.open_rounds("kitchen") == {runs[0]: 4}
