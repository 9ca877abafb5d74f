"""What the coordinator remembers of runs, rounds, devices and updates, also when it is killed."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from fedpatch.coordinator.rounds.run_records import PhaseSeconds, RoundRecord, StoredUpdate
from fedpatch.coordinator.storage.database import copy_of
from fedpatch.coordinator.storage.run_registry import REGISTRY_FILE, Registry
from fedpatch.shared.errors import StateError, UsageError
from tests.coordinator.device_sightings import seen
from tests.support.paths import ROOT

DIGEST = "ab" * 32


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where a registry is to be, in a directory that is not there yet."""
    return tmp_path / "state" / REGISTRY_FILE


@pytest.fixture
def registry(path: Path):
    """An empty registry."""
    with Registry(path) as opened:
        yield opened


def new_run(registry: Registry, created_at: float = 1_700_000_000.0, fleet: str = "default"):
    """A run of whatever."""
    return registry.create_run(
        created_at=created_at,
        task="digits",
        strategy="fedavg",
        private="affine",
        settings={"rounds": 3, "target_ua": None, "fleet": fleet},
        schema=DIGEST,
    )


def record_of(number: int, **values) -> RoundRecord:
    """A round's record."""
    return RoundRecord(number, "aggregated", 4, 3, 1, 3, 0.5, phase_seconds=PhaseSeconds(train=2.5), **values)


def update_of(digest: str = DIGEST, device: str = "pi-1", round: int = 1) -> StoredUpdate:
    """An update that is on the disk."""
    return StoredUpdate(round=round, device=device, digest=digest, raw_bytes=99, num_examples=40, encoding="fp32")


def test_a_new_run_is_running_in_epoch_one(registry):
    """And everything it was created with is there."""
    run = new_run(registry)
    assert run.id.startswith("20231114-221320-")
    assert (run.created_at, run.epoch, run.status, run.stopped_because) == (1_700_000_000.0, 1, "running", None)
    assert (run.task, run.strategy, run.private, run.schema) == ("digits", "fedavg", "affine", DIGEST)
    assert run.settings == {"rounds": 3, "target_ua": None, "fleet": "default"}
    assert registry.runs() == [run]


def test_two_runs_of_the_same_second_are_two(registry):
    """Also on a machine whose clock stands still; the newest comes first whatever the clock says."""
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
def test_a_run_ends_and_can_be_opened_again(registry, why, status):
    """Its status follows from why it stopped; each epoch that follows has a number of its own."""
    run = new_run(registry).id
    registry.finish_run(run, stopped_because=why, user_accuracy=0.9, model="model.npz")
    ended = registry.run(run)
    assert (ended.status, ended.stopped_because, ended.user_accuracy, ended.model) == (status, why, 0.9, "model.npz")
    registry.reopen(run)
    assert [registry.next_epoch(run), registry.next_epoch(run)] == [2, 3]
    again = registry.run(run)
    assert (again.status, again.stopped_because, again.epoch) == ("running", None, 3)


def test_a_run_is_found_by_its_id_its_beginning_or_as_the_last(registry):
    """As people type it; what fits several or none is told, with the nearest."""
    first, second = new_run(registry), new_run(registry, created_at=1_800_000_000.0)
    assert registry.run("last") == second
    assert registry.run(first.id) == registry.run(first.id[:-1]) == registry.run("2023") == first
    with pytest.raises(UsageError, match="could be any of"):
        registry.run("20")
    with pytest.raises(UsageError, match=f"unknown run .*did you mean '{first.id}'"):
        registry.run(first.id[1:])
    with pytest.raises(UsageError, match="unknown run ''"):
        registry.run("")


def test_an_unknown_run_cannot_be_changed(registry):
    """A slip must not be stored as if it were a run."""
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


def test_rounds_come_back_as_they_were_in_order(registry):
    """A round that is played again after a crash replaces what was known of it."""
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


def test_a_device_is_remembered_with_what_came_of_asking_it(registry):
    """When it was seen, what it said of itself while it was there, and its counters."""
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


def test_devices_of_two_fleets_may_have_the_same_name(registry):
    """One state directory serves several fleets; each device keeps its own presence and counters."""
    for fleet, online in (("lab", True), ("kitchen", False)):
        seen(registry, "pi-1", fleet=fleet, now=10.0, online=online)
    registry.count("kitchen", ("pi-1", "invited", ""), ("pi-1", "declined", "busy"))
    assert [(one.fleet, one.online, one.invited, one.last_reason) for one in registry.devices()] == [
        ("kitchen", False, 1, "busy"),
        ("lab", True, 0, ""),
    ]


def test_the_newest_run_of_a_fleet_is_found_and_says_whether_it_came_to_its_end(registry):
    """Only the newest of a fleet: what was left behind before it was left for good."""
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


def test_everything_is_there_when_the_file_is_opened_again(path):
    """A second start makes no new tables and loses nothing."""
    with Registry(path) as registry:
        run = new_run(registry)
        registry.rounds.finish(run.id, record_of(1))
    with Registry(path) as registry:
        assert registry.runs() == [run]
        assert registry.rounds.records(run.id) == [record_of(1)]


def test_what_a_method_did_outlasts_a_kill(path):
    """The process is killed right after a round was added, without closing anything."""
    program = f"""
import os, signal
from pathlib import Path
from fedpatch.coordinator.rounds.run_records import RoundRecord
from fedpatch.coordinator.storage.run_registry import Registry
registry = Registry(Path({str(path)!r}))
run = registry.create_run(created_at=0.0, task="t", strategy="s", private="none", settings={{}}, schema="")
registry.rounds.finish(run.id, RoundRecord(1, "aggregated", 1, 1, 0, 1))
registry.next_epoch(run.id)
os.kill(os.getpid(), signal.SIGKILL)
"""
    killed = subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=False)
    assert killed.returncode == -signal.SIGKILL
    with Registry(path) as registry:
        run = registry.run("last")
        assert (run.epoch, registry.rounds.records(run.id)) == (2, [RoundRecord(1, "aggregated", 1, 1, 0, 1)])


def test_reading_sees_a_run_in_progress_and_changes_nothing(registry, path):
    """`fedpatch runs` may be called while a coordinator works."""
    run = new_run(registry)
    with Registry(path, readonly=True) as reader:
        assert reader.runs() == [run]
        registry.rounds.finish(run.id, record_of(1))
        assert len(reader.rounds.records(run.id)) == 1
        with pytest.raises(StateError, match="readonly"):
            reader.reopen(run.id)


def test_reading_where_there_is_nothing_says_so_and_makes_nothing(path):
    """A wrong --state-dir must not leave an empty registry behind."""
    with pytest.raises(UsageError, match=r"no runs in .*state .*--state-dir"):
        Registry(path, readonly=True)
    assert not path.parent.exists()


def test_the_directory_is_for_its_owner_only(registry, path):
    """Settings and the names of devices are nobody else's business."""
    assert path.parent.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("readonly", [False, True])
def test_a_file_that_is_no_registry_is_left_alone(path, readonly):
    """Text, a foreign database, one of a newer version: told with the file and the mend."""
    path.parent.mkdir()
    path.write_text("my diary, " * 1000)
    with pytest.raises(StateError, match=rf"{path}: is damaged .*move it away"):
        Registry(path, readonly=readonly)
    assert path.read_text().startswith("my diary")
    for statement, said in (
        ("CREATE TABLE songs (title TEXT)", "is not a registry of fedpatch; move it away"),
        ("PRAGMA user_version = 99", r"newer fedpatch \(version 99"),
    ):
        path.unlink(missing_ok=True)
        database = sqlite3.connect(path)
        database.execute(statement)
        database.close()
        before = path.read_bytes()
        with pytest.raises(StateError, match=said):
            Registry(path, readonly=readonly)
        assert path.read_bytes() == before


def test_a_damaged_page_is_told_with_the_file(path):
    """An SD card at the end of its life, which has the copy too."""
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


def test_a_full_disk_is_told_and_what_was_there_stays(registry, path):
    """The database is not let grow, as on a disk without space."""
    run = new_run(registry).id
    pages = registry._db.execute("PRAGMA page_count").fetchone()[0]
    registry._db.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(StateError, match=rf"{path}: cannot be used: .*full; .*space"):
        for number in range(1, 1000):
            registry.rounds.finish(run, record_of(number))
    known = registry.rounds.records(run)
    assert [record.round for record in known] == list(range(1, len(known) + 1))


def test_a_directory_that_cannot_be_made_is_told(tmp_path):
    """The system's words, with the path."""
    (tmp_path / "file").write_text("")
    with pytest.raises(StateError, match=r"file.*: (Not a directory|File exists)"):
        Registry(tmp_path / "file" / "state" / REGISTRY_FILE)


def test_registry_is_readable_by_its_owner_alone(tmp_path):
    """File, log and copy, whatever the umask, and also one that an earlier version left open to all."""
    before = os.umask(0)
    try:
        with Registry(tmp_path / "registry.sqlite3") as registry:
            new_run(registry)
        (tmp_path / "registry.sqlite3").chmod(0o644)
        with Registry(tmp_path / "registry.sqlite3") as registry:
            new_run(registry)
            modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir() if path.is_file()}
    finally:
        os.umask(before)
    assert {"registry.sqlite3", "registry.sqlite3-wal"} <= modes.keys()
    assert set(modes.values()) == {0o600}, modes


@pytest.mark.parametrize("umask", [0, 0o002])
def test_run_directory_made_for_a_journal_is_its_owners_alone(tmp_path, umask):
    """The registry makes it before anything else of the run is written, whatever the umask."""
    before = os.umask(umask)
    try:
        with Registry(tmp_path / REGISTRY_FILE) as registry:
            journal = registry.journal.path(new_run(registry).id)
    finally:
        os.umask(before)
    assert [one.stat().st_mode & 0o777 for one in (journal.parent, journal.parent.parent)] == [0o700, 0o700]
