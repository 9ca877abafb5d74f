"""The registry of runs, rounds, devices and updates, also when the coordinator is killed."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedpatch.coordinator.buffered.carried_work import CarriedWork
from fedpatch.coordinator.rounds.participant_transitions import State
from fedpatch.coordinator.rounds.round_journal import RoundJournal
from fedpatch.coordinator.rounds.round_record import PhaseSeconds, RoundRecord
from fedpatch.coordinator.rounds.run_summary import RunInfo
from fedpatch.coordinator.rounds.stored_update import StoredUpdate
from fedpatch.coordinator.storage.boot_clock import BootTime
from fedpatch.coordinator.storage.database.registry_files import copy_of
from fedpatch.coordinator.storage.run_registry import REGISTRY_FILE, Registry
from fedpatch.shared.errors import LeadershipLost, StateError, UsageError
from tests.coordinator import registry_builders
from tests.coordinator.registry_builders import driver_of, seen
from tests.support.paths import ROOT

DIGEST = "ab" * 32


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The path of a new registry, in a directory that does not exist yet."""
    return tmp_path / "state" / REGISTRY_FILE


@pytest.fixture
def place(tmp_path: Path, engine: Callable[[Path], Path]) -> Path:
    """Like `path`, for a registry in SQLite or in PostgreSQL."""
    return engine(tmp_path / "state")


@pytest.fixture
def registry(place: Path):
    with Registry(place) as opened:
        yield opened


def new_run(registry: Registry, created_at: float = 1_700_000_000.0, fleet: str = "default") -> RunInfo:
    settings = {"rounds": 3, "target_ua": None, "fleet": fleet}
    return registry_builders.new_run(registry, created_at, private="affine", settings=settings, schema=DIGEST)


def record_of(number: int, **values) -> RoundRecord:
    return RoundRecord(number, "aggregated", 4, 3, 1, 3, 0.5, phase_seconds=PhaseSeconds(train=2.5), **values)


def update_of(digest: str = DIGEST, device: str = "pi-1", round: int = 1) -> StoredUpdate:
    """Return an update that is on the disk."""
    return StoredUpdate(round=round, device=device, digest=digest, raw_bytes=99, num_examples=40, encoding="fp32")


def test_new_run_is_running_in_epoch_one(registry):
    run = new_run(registry)
    assert run.id.startswith("20231114-221320-")
    assert (run.created_at, run.epoch, run.status, run.stopped_because) == (1_700_000_000.0, 1, "running", None)
    assert (run.task, run.strategy, run.private, run.schema) == ("digits", "fedavg", "affine", DIGEST)
    assert run.settings == {"rounds": 3, "target_ua": None, "fleet": "default"}
    assert registry.runs() == [run]


def test_runs_of_the_same_second_have_two_ids_newest_first(registry):
    first, second = new_run(registry), new_run(registry)
    third = new_run(registry, created_at=5.0)
    assert [run.id for run in registry.runs()] == [third.id, second.id, first.id]
    assert len({first.id, second.id, third.id}) == 3


@pytest.mark.parametrize(
    ("why", "status"),
    [
        ("target_ua", "finished"),
        ("max_rounds", "finished"),
        ("deadline", "finished"),
        ("interrupted", "interrupted"),
        ("failed", "failed"),
    ],
)
def test_finished_run_has_a_status_and_can_be_reopened(registry, why, status):
    run = new_run(registry).id
    registry.finish_run(run, stopped_because=why, user_accuracy=0.9, model="model.npz")
    ended = registry.run(run)
    assert (ended.status, ended.stopped_because, ended.user_accuracy, ended.model) == (status, why, 0.9, "model.npz")
    registry.reopen(run)
    assert [registry.next_epoch(run), registry.next_epoch(run)] == [2, 3]
    again = registry.run(run)
    assert (again.status, again.stopped_because, again.epoch) == ("running", None, 3)


def test_run_is_found_by_id_prefix_or_last(registry):
    first, second = new_run(registry), new_run(registry, created_at=1_800_000_000.0)
    assert registry.run("last") == second
    assert registry.run(first.id) == registry.run(first.id[:-1]) == registry.run("2023") == first
    with pytest.raises(UsageError, match="could be any of"):
        registry.run("20")
    with pytest.raises(UsageError, match=f"unknown run .*did you mean '{first.id}'"):
        registry.run(first.id[1:])
    with pytest.raises(UsageError, match="unknown run ''"):
        registry.run("")


def test_unknown_run_cannot_be_changed(registry):
    with pytest.raises(UsageError, match="no runs in"):
        registry.run("last")
    for change in (
        lambda: registry.next_epoch("x"),
        lambda: registry.reopen("x"),
        lambda: registry.finish_run("x", stopped_because="failed", user_accuracy=None, model=None),
    ):
        with pytest.raises(UsageError, match="unknown run 'x'"):
            change()
    with pytest.raises(StateError, match="not in this registry"):
        registry.rounds.finish("x", record_of(1))


def test_run_that_another_coordinator_has_gone_on_with_is_changed_no_more(registry):
    run = new_run(registry).id
    with Registry(registry.path) as other:
        other.next_epoch(run)
        for change in (registry.reopen, lambda one: registry.rounds.finish(one, record_of(1))):
            with pytest.raises(LeadershipLost, match=f"another fedpatch has gone on with run {run}"):
                change(run)
        other.reopen(run)
        assert other.run(run).epoch == 2


def test_records_are_in_order_and_replaced_when_played_again(registry):
    run, other = new_run(registry).id, new_run(registry).id
    for number in (2, 1, 3):
        registry.rounds.finish(run, record_of(number, decline_reasons={"busy": number}))
    registry.rounds.finish(run, record_of(3, late=2))
    assert registry.rounds.records(run) == [
        record_of(1, decline_reasons={"busy": 1}),
        record_of(2, decline_reasons={"busy": 2}),
        record_of(3, late=2),
    ]
    assert registry.rounds.records(other) == []


def test_device_keeps_its_presence_and_counters(registry):
    seen(registry, "pi-2", fleet="lab", now=10.0, online=True, version="1.0", tasks=["digits", "mnist"])
    seen(registry, "pi-1", fleet="lab", now=11.0, online=True)
    seen(registry, "pi-2", fleet="lab", now=20.0, online=False)
    for what, reason in (("invited", ""), ("invited", ""), ("declined", "busy"), ("accepted", "")):
        registry.count("lab", ("pi-2", what, reason))
    registry.count("lab", ("nobody", "invited", ""))
    one, two = registry.devices()
    assert (one.id, one.online, one.invited) == ("pi-1", True, 0)
    assert (two.id, two.fleet, two.first_seen, two.last_seen, two.online) == ("pi-2", "lab", 10.0, 20.0, False)
    assert (two.version, two.tasks) == ("1.0", ("digits", "mnist"))
    assert (two.invited, two.accepted, two.declined, two.reported, two.last_reason) == (2, 1, 1, 0, "busy")
    with pytest.raises(ValueError, match="no counter"):
        registry.count("lab", ("pi-2", "first_seen = 0; --", ""))


def test_devices_of_a_fleet_are_offline_until_they_are_heard_again(registry):
    """Each presence was told to an earlier coordinator, perhaps days before a backup was restored."""
    for fleet in ("lab", "home"):
        seen(registry, "pi-1", fleet=fleet, now=10.0, online=True, version="1")
    registry.none_online("lab")
    assert {(one.fleet, one.online, one.last_seen) for one in registry.devices()} == {
        ("lab", False, 10.0),
        ("home", True, 10.0),
    }


def test_devices_of_two_fleets_may_have_the_same_name(registry):
    for fleet, online in (("lab", True), ("kitchen", False)):
        seen(registry, "pi-1", fleet=fleet, now=10.0, online=online)
    registry.count("kitchen", ("pi-1", "invited", ""), ("pi-1", "declined", "busy"))
    assert [(one.fleet, one.online, one.invited, one.last_reason) for one in registry.devices()] == [
        ("kitchen", False, 1, "busy"),
        ("lab", True, 0, ""),
    ]


def test_newest_run_of_a_fleet_has_its_status(registry):
    assert registry.newest("fleet") is None
    old = new_run(registry, fleet="fleet")
    assert registry.newest("fleet") == old
    assert registry.newest("other") is None
    new = new_run(registry, fleet="fleet")
    for how, left in (("interrupted", True), ("failed", True), ("max_rounds", False), ("target_ua", False)):
        registry.finish_run(new.id, stopped_because=how, user_accuracy=None, model=None)
        assert (registry.newest("fleet").status != "finished") is left
    registry.abandon_running("fleet")
    assert registry.run(old.id).status == "interrupted"


@pytest.mark.medium
def test_changes_outlast_a_kill(place):
    program = f"""
import os, signal
from pathlib import Path
from fedpatch.coordinator.rounds.round_record import RoundRecord
from fedpatch.coordinator.storage.run_registry import Registry
registry = Registry(Path({str(place)!r}))
run = registry.create_run(created_at=0.0, task="t", strategy="s", private="none", settings={{}}, schema="")
registry.rounds.finish(run.id, RoundRecord(1, "aggregated", 1, 1, 0, 1))
registry.next_epoch(run.id)
os.kill(os.getpid(), signal.SIGKILL)
"""
    killed = subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=False)
    assert killed.returncode == -signal.SIGKILL
    with Registry(place) as registry:
        run = registry.run("last")
        assert (run.epoch, registry.rounds.records(run.id)) == (2, [RoundRecord(1, "aggregated", 1, 1, 0, 1)])


def test_readonly_registry_sees_a_run_in_progress(registry, place):
    run = new_run(registry)
    with Registry(place, readonly=True) as reader:
        assert reader.runs() == [run]
        registry.rounds.finish(run.id, record_of(1))
        assert len(reader.rounds.records(run.id)) == 1
        with pytest.raises(StateError, match=r"read-?only"):
            reader.reopen(run.id)


@pytest.mark.parametrize("readonly", [True, False])
def test_second_registry_of_the_same_process_keeps_the_locks_of_the_first(path, readonly):
    """Without the locks another process would delete SQLite's log, and with it all later changes of the first registry."""
    program = f"""
from pathlib import Path
from fedpatch.coordinator.storage.run_registry import Registry
with Registry(Path({str(path)!r})) as registry:
    print(*sorted(device.id for device in registry.devices()))
"""

    def devices_of_another_process() -> list[str]:
        done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True, capture_output=True, text=True)
        return done.stdout.split()

    with Registry(path) as registry:
        seen(registry, "pi-1")
        Registry(path, readonly=readonly).close()
        assert devices_of_another_process() == ["pi-1"]
        seen(registry, "pi-2")
        assert devices_of_another_process() == ["pi-1", "pi-2"]


def test_readonly_registry_where_none_is_raises_and_makes_nothing(path):
    with pytest.raises(UsageError, match=r"no runs in .*state .*--state-dir"):
        Registry(path, readonly=True)
    assert not path.parent.exists()


@pytest.mark.parametrize("readonly", [False, True])
def test_foreign_file_is_refused_and_left_alone(path, readonly):
    path.parent.mkdir()
    path.write_text("my diary, " * 1000)
    with pytest.raises(StateError, match=rf"{path}: is damaged .*move it away"):
        Registry(path, readonly=readonly)
    assert path.read_text().startswith("my diary")
    for statement, problem in (
        ("CREATE TABLE songs (title TEXT)", "is not a registry of fedpatch; move it away"),
        ("PRAGMA user_version = 99", r"newer fedpatch \(version 99"),
    ):
        path.unlink(missing_ok=True)
        database = sqlite3.connect(path)
        database.execute(statement)
        database.close()
        before = path.read_bytes()
        with pytest.raises(StateError, match=problem):
            Registry(path, readonly=readonly)
        assert path.read_bytes() == before


def test_damaged_pages_are_reported_with_the_file(path):
    with Registry(path) as registry:
        run = new_run(registry).id
        for number in range(1, 60):
            registry.rounds.finish(run, record_of(number))
    for file in (path, copy_of(path)):
        data = bytearray(file.read_bytes())
        data[4096:] = os.urandom(len(data) - 4096)
        file.write_bytes(data)
    with pytest.raises(StateError, match=f"{path}: "), Registry(path) as registry:
        registry.rounds.records(run)


def test_full_disk_is_reported_and_loses_no_record(path):
    with Registry(path) as registry:
        run = new_run(registry).id
        pages = driver_of(registry).execute("PRAGMA page_count").fetchone()[0]
        driver_of(registry).execute(f"PRAGMA max_page_count = {pages}")
        with pytest.raises(StateError, match=rf"{path}: cannot be used: .*full; .*space"):
            for number in range(1, 1000):
                registry.rounds.finish(run, record_of(number))
        known = registry.rounds.records(run)
        assert [record.round for record in known] == list(range(1, len(known) + 1))


def test_directory_that_cannot_be_made_is_reported(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StateError, match=r"file.*: (Not a directory|File exists)"):
        Registry(tmp_path / "file" / "state" / REGISTRY_FILE)


@pytest.mark.parametrize("umask", [0, 0o002])
def test_registry_and_its_journals_are_readable_by_their_owner_alone(path, umask):
    before = os.umask(umask)
    try:
        with Registry(path) as registry:
            new_run(registry)
        path.chmod(0o644)
        with Registry(path) as registry:
            journal = registry.journal.path(new_run(registry).id)
            modes = {one.name: one.stat().st_mode & 0o777 for one in path.parent.iterdir() if one.is_file()}
    finally:
        os.umask(before)
    assert {REGISTRY_FILE, f"{REGISTRY_FILE}-wal"} <= modes.keys()
    assert set(modes.values()) == {0o600}, modes
    folders = (path.parent, journal.parent, journal.parent.parent)
    assert [one.stat().st_mode & 0o777 for one in folders] == [0o700] * 3


def journal_of(number: int = 1, **changes: Any) -> RoundJournal:
    return replace(RoundJournal(number, 2, ("b", "a", "c"), "ab" * 32), **changes)


def test_open_round_is_known_until_its_record(registry):
    run = new_run(registry).id
    now = BootTime("boot", 10.0, 1e9)
    assert registry.rounds.unfinished(run, now) is None
    registry.rounds.open(run, journal_of(), now)
    registry.rounds.accept(run, {"a"})
    registry.rounds.add_updates(run, [update_of(device="c")], {"a", "c"})
    assert registry.rounds.unfinished(run, now) == journal_of(accepted=frozenset("ac"))
    registry.rounds.close(run, {"c"})
    assert registry.rounds.unfinished(run, now) == journal_of(accepted=frozenset("ac"), closing=True)
    registry.rounds.finish(run, record_of(1))
    assert (registry.rounds.unfinished(run, now), registry.rounds.updates(run, 1)) == (None, [])
    assert registry.rounds.records(run) == [record_of(1)]


def test_open_round_keeps_offenders_and_absent_devices(registry):
    run, now = new_run(registry).id, BootTime("boot", 10.0, 1e9)
    registry.rounds.exclude_offender(run, "a", "not_finite")
    assert registry.rounds.unfinished(run, now) is None
    journal = journal_of(absent=frozenset("c"), offenders={"a": "not_finite"})
    registry.rounds.open(run, replace(journal, offenders={}), now)
    registry.rounds.exclude_offender(run, "a", "not_finite")
    assert registry.rounds.unfinished(run, now) == journal
    registry.rounds.open(run, journal, now)
    registry.rounds.exclude_offender(run, "b", "damaged")
    assert registry.rounds.unfinished(run, now) == replace(journal, offenders={"a": "not_finite", "b": "damaged"})


def test_open_round_keeps_devices_that_left_the_count(registry):
    run, now = new_run(registry).id, BootTime("boot", 10.0, 1e9)
    departed = {"a": (State.DECLINED, "plan_limit"), "b": (State.FAILED, "quarantined")}
    registry.rounds.depart(run, departed)
    assert registry.rounds.unfinished(run, now) is None
    registry.rounds.open(run, journal_of(departed={"a": departed["a"]}), now)
    registry.rounds.depart(run, {"b": departed["b"]})
    assert registry.rounds.unfinished(run, now) == journal_of(departed=departed)


def test_carried_work_in_an_encoding_of_an_earlier_version_is_left_out(registry):
    """Its update could not be read, and would count as an offence of its device."""
    known, former = (CarriedWork(1, 1, 0, "ab" * 32, encoding) for encoding in ("delta-int8", "delta-int4"))
    run = new_run(registry).id
    registry.rounds.finish(run, RoundRecord(1, "aggregated", 2, 2, 0, 2), {"pi-1": known, "pi-2": former})
    assert registry.rounds.carried(run) == {"pi-1": known}


def test_opened_round_keeps_its_own_updates_only(registry):
    run, now = new_run(registry).id, BootTime("boot", 10.0, 1e9)
    registry.rounds.add_updates(run, [update_of(round=1), update_of(round=2)])
    registry.rounds.open(run, journal_of(2, accepted=frozenset("b")), now)
    assert (registry.rounds.updates(run, 1), len(registry.rounds.updates(run, 2))) == ([], 1)
    assert registry.rounds.unfinished(run, now) == journal_of(2, accepted=frozenset("b"))


def test_spent_time_counts_on_while_the_coordinator_is_away(registry):
    """Spent time is measured by uptime until the machine reboots, then by the wall clock, and never decreases."""
    run, then = new_run(registry).id, BootTime("boot", 10.0, 1e9)
    registry.rounds.open(run, journal_of(spent_s=5.0), then)
    spent = {
        BootTime("boot", 40.0, 1e9 - 1e8): 35.0,
        BootTime("other", 3.0, 1e9 + 60.0): 65.0,
        BootTime("other", 3.0, 0.0): 5.0,
        BootTime("", 0.0, 1e9 + 7.0): 12.0,
    }
    for now, spent_s in spent.items():
        assert registry.rounds.unfinished(run, now) == journal_of(spent_s=spent_s)
    registry.rounds.pause(run, 20.0)
    for now in spent:
        assert registry.rounds.unfinished(run, now) == journal_of(spent_s=20.0)
    registry.rounds.open(run, journal_of(spent_s=20.0), BootTime("boot", 100.0, 1e9))
    assert registry.rounds.unfinished(run, BootTime("boot", 101.0, 0.0)) == journal_of(spent_s=21.0)


def test_closing_a_round_drops_the_updates_that_are_not_aggregated(registry):
    run = new_run(registry).id
    registry.rounds.open(run, journal_of(), BootTime("boot", 10.0, 1e9))
    registry.rounds.add_updates(run, [update_of(device="a"), update_of(device="b")])
    registry.rounds.close(run, {"a"})
    assert registry.rounds.updates(run, 1) == [update_of(device="a")]


def test_roll_back_forgets_later_rounds(registry):
    run, now = new_run(registry).id, BootTime("boot", 10.0, 1e9)
    for number in (1, 2, 3):
        registry.rounds.finish(run, record_of(number))
    registry.rounds.open(run, journal_of(4), now)
    registry.rounds.add_updates(run, [update_of(round=4)])
    registry.rounds.roll_back(run, 1)
    assert registry.rounds.records(run) == [record_of(1)]
    assert (registry.rounds.unfinished(run, now), registry.rounds.updates(run, 4)) == (None, [])


def test_update_counts_once_and_other_bytes_are_refused(registry):
    run = new_run(registry).id
    assert registry.rounds.add_updates(run, [update_of()]) == {}
    assert registry.rounds.add_updates(run, [update_of()]) == {}
    other = update_of(digest="cd" * 32)
    assert registry.rounds.add_updates(run, [other, update_of(device="pi-0")]) == {other.device: update_of().digest}
    assert registry.rounds.add_updates(run, [update_of(digest="cd" * 32, round=2)]) == {}
    assert registry.rounds.updates(run, 1) == [update_of(device="pi-0"), update_of()]
    registry.rounds.drop_update(run, 1, "pi-0")
    assert registry.rounds.updates(run, 1) == [update_of()]
    assert len(registry.rounds.updates(run, 2)) == 1
