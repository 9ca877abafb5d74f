"""A registry whose file is damaged or changed by other programs: its repair, and the doctor's findings."""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import os
import pwd
import sqlite3
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from shutil import rmtree
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fedpatch.coordinator.buffered.carried_work import CarriedWork
from fedpatch.coordinator.rounds.round_journal import MaskingEntry, RoundJournal
from fedpatch.coordinator.rounds.round_record import RoundRecord
from fedpatch.coordinator.rounds.stored_update import StoredUpdate
from fedpatch.coordinator.storage.boot_clock import BootTime
from fedpatch.coordinator.storage.content_checks import check_stored
from fedpatch.coordinator.storage.database.opening import URL_FILE, must_exist, url_of
from fedpatch.coordinator.storage.database.registry_copy import keep_copy
from fedpatch.coordinator.storage.database.registry_files import copy_of
from fedpatch.coordinator.storage.database.sqlite_file import sqlite_errors
from fedpatch.coordinator.storage.run_journal import RUNS
from fedpatch.coordinator.storage.run_registry import REGISTRY_FILE, Registry
from fedpatch.shared.errors import FedpatchError, StateError, UsageError
from tests.coordinator.registry_builders import change, driver_of, new_run, seen
from tests.support.checkups import quiet_checkup
from tests.support.disks import small_disk
from tests.support.examples import examples

Content = dict[str, list[tuple[Any, ...]]]
LOG = "fedpatch.registry"


def content_of(db: sqlite3.Connection) -> Content:
    """Return all rows of all tables."""
    names = [name for (name,) in db.execute("SELECT name FROM sqlite_schema WHERE type = 'table'").fetchall()]
    return {name: db.execute(f"SELECT * FROM {name}").fetchall() for name in names if name != "sqlite_sequence"}


def record_of(number: int) -> RoundRecord:
    return RoundRecord(number, "aggregated", 4, 3, 1, 3, 0.5)


def files_of(directory: Path) -> dict[str, bytes]:
    """Return the content of all files in a directory tree, by name."""
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


class Story:
    """A registry that changed after its copy, made after five rounds: files after a clean end and after a power cut."""

    def __init__(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / REGISTRY_FILE
            registry = Registry(path)
            run = new_run(registry, settings={"rounds": 9}).id
            seen(registry, "pi-1", fleet="lab", now=3.5, online=True, version="1.0", tasks=["digits"])
            for number in range(1, 6):
                registry.rounds.finish(run, record_of(number))
            self.copied = content_of(driver_of(registry))
            self.run = run
            registry.count("lab", ("pi-1", "reported", ""))
            registry.rounds.add_updates(run, [StoredUpdate(7, "pi-1", "ab" * 32, 99, 40, "fp32")])
            self.full = content_of(driver_of(registry))
            self.cut = files_of(path.parent)
            registry.close()
            self.ended = files_of(path.parent)


@pytest.fixture(scope="module")
def story() -> Story:
    """A `Story`, made once; every test uses a copy of its files."""
    return Story()


@contextmanager
def laid_out(files: Mapping[str, bytes]) -> Iterator[Path]:
    """Write these files to a directory, and yield the registry's path."""
    with tempfile.TemporaryDirectory() as folder:
        for name, data in files.items():
            (Path(folder) / name).parent.mkdir(parents=True, exist_ok=True)
            (Path(folder) / name).write_bytes(data)
        yield Path(folder) / REGISTRY_FILE


@pytest.fixture
def path(story: Story) -> Iterator[Path]:
    """The registry's path, with its files after a clean end."""
    with laid_out(story.ended) as laid:
        yield laid


class LogLines(logging.Handler):
    """Collects the log lines of the registry within a `with` block."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())

    def __enter__(self) -> list[str]:
        logging.getLogger(LOG).addHandler(self)
        return self.lines

    def __exit__(self, *_: object) -> None:
        logging.getLogger(LOG).removeHandler(self)


def opened(path: Path) -> tuple[Content, list[str]]:
    """Open the registry for writing; return its content and the logged lines."""
    with LogLines() as lines, Registry(path) as registry:
        found = content_of(driver_of(registry))
        seen(registry, "pi-9", fleet="lab", now=1.0, online=True)
    return found, lines


@st.composite
def damages(draw: st.DrawFn) -> tuple[float, bytes]:
    """Return a place, and the bytes that damage it; no bytes: the file is cut off there."""
    place = draw(st.floats(0, 1, exclude_max=True))
    what = draw(st.sampled_from(["bit", "zeros", "ones", "noise", "cut"]))
    if what == "bit":
        return place, bytes([1 << draw(st.integers(0, 7))])
    if what == "cut":
        return place, b""
    length = draw(st.sampled_from([1, 16, 512, 4096, 20_000]))
    noise = draw(st.integers(0, 255))
    return place, {"zeros": bytes(length), "ones": b"\xff" * length}.get(what) or bytes(
        (i * i + noise) % 251 for i in range(length)
    )


def with_damage(data: bytes, damage: tuple[float, bytes]) -> bytes:
    """Damage the data: a single byte flips bits (XOR), more bytes overwrite, no bytes cut off the rest."""
    at = int(damage[0] * len(data))
    new = damage[1]
    if len(new) == 1:
        new = bytes([data[at] ^ new[0]])
    return data[:at] + new + data[at + len(new) :] if new else data[:at]


def doctor_finds(path: Path) -> list[str]:
    """Return the doctor's findings, except that the run has no checkpoints."""
    checkup = quiet_checkup()
    check_stored(path.parent, checkup)
    found = [one for one in checkup.findings if one.verdict in ("warn", "fail")]
    return [one.detail for one in found if "holds no checkpoint" not in one.detail]


def read_records(rounds: Any) -> list[tuple[Any, ...]]:
    """Return the rows of the table of rounds, as the coordinator reads them."""
    return [(*row[:-1], RoundRecord.from_dict(json.loads(row[-1]))) for row in rounds]


def assert_whole_or_known(story: Story, path: Path) -> None:
    """Check that damage loses nothing, is harmless, is reported by the doctor, or is repaired from copy and journals (logged).

    Damage to counters of devices and to their last contact is harmless: no decision depends on them.
    """
    bytes_before = path.read_bytes()
    found_before = doctor_finds(path)
    found, lines = opened(path)
    if not lines:
        changed = {name for name in story.full if found[name] != story.full[name]}
        # A key with a damaged name is read as its default, which is harmless if the value was the default.
        if "rounds" in changed and read_records(found["rounds"]) == read_records(story.full["rounds"]):
            changed.remove("rounds")
        assert changed <= {"devices", "updates"} or found_before
        return
    assert (found["rounds"], found["runs"]) == (story.copied["rounds"], story.copied["runs"])
    assert found_before
    assert lines[0].startswith((f"{path}: is damaged (", f"{path}: is empty; "))
    assert f"it is now {REGISTRY_FILE}.damaged, and its copy {REGISTRY_FILE}.before is in its place" in lines[0]
    assert path.with_name(f"{REGISTRY_FILE}.damaged").read_bytes() == bytes_before
    assert opened(path)[1] == []


@pytest.mark.medium
@examples(30)
@given(damage=damages())
@example(damage=(0.21875, b"\x01"))
def test_damage_anywhere_in_the_file_is_repaired_or_reported(story: Story, damage: tuple[float, bytes]):
    with laid_out(story.ended) as path:
        path.write_bytes(with_damage(path.read_bytes(), damage))
        assert_whole_or_known(story, path)


@pytest.mark.medium
def test_damage_anywhere_in_the_header_is_repaired_or_reported(story: Story):
    for at in range(100):
        with laid_out(story.ended) as path:
            data = bytearray(path.read_bytes())
            data[at] ^= 1 << at % 3
            path.write_bytes(data)
            assert_whole_or_known(story, path)


@pytest.mark.medium
@examples(20)
@given(damage=damages().filter(lambda damage: damage[1]))
def test_damage_anywhere_in_the_log_loses_no_round(story: Story, damage: tuple[float, bytes]):
    """After a power cut the last transactions are in SQLite's log, which SQLite reads up to the first damage."""
    with laid_out(story.cut) as path:
        log = path.with_name(f"{REGISTRY_FILE}-wal")
        log.write_bytes(with_damage(log.read_bytes(), damage))
        found_before = doctor_finds(path)
        found, lines = opened(path)
        assert found["rounds"] == story.full["rounds"] or found_before or lines


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE devices SET reported = 7",
        "UPDATE runs SET task = 'mnist'",
        "DELETE FROM updates",
        "INSERT INTO holds VALUES ('lab', 'pi-1', 'drained', 'battery', 1.0)",
        "CREATE INDEX by_fleet ON devices (fleet)",
    ],
)
def test_row_changed_by_another_program_while_open_stays_changed(path: Path, story: Story, statement: str):
    with Registry(path) as registry:
        change(path, statement)
        registry.next_epoch(story.run)
    with closing(sqlite3.connect(path)) as db:
        changed = content_of(db)
    assert opened(path) == (changed, [])
    path.unlink()
    found, (line, *_) = opened(path)
    assert line == f"{path}: is not there; its copy {copy_of(path).name} is in its place"
    assert found["rounds"] == story.full["rounds"]


def test_row_changed_by_another_program_after_the_end_leaves_the_run_finished(path: Path, story: Story):
    with Registry(path) as registry:
        registry.finish_run(story.run, stopped_because="max_rounds", user_accuracy=0.5, model="model.npz")
    change(path, "UPDATE devices SET last_seen = 4.0")
    with LogLines() as lines, Registry(path) as registry:
        run = registry.run("last")
    assert (run.status, run.user_accuracy, lines) == ("finished", 0.5, [])


def test_copy_made_at_the_end_of_a_run_has_its_end(path: Path, story: Story):
    with Registry(path) as registry:
        registry.finish_run(story.run, stopped_because="max_rounds", user_accuracy=0.5, model="model.npz")
    with closing(sqlite3.connect(copy_of(path))) as db:
        assert db.execute("SELECT status, user_accuracy FROM runs").fetchall() == [("finished", 0.5)]
    path.write_bytes(b"no database")
    with Registry(path) as registry:
        assert registry.run("last").status == "finished"


@pytest.mark.parametrize(
    ("statement", "why"),
    [
        ("UPDATE rounds SET record = 'x' WHERE round = 2", "a row of rounds does not hold what was written"),
        ("UPDATE rounds SET round = 99 WHERE round = 2", "a row of rounds does not hold"),
        ("UPDATE runs SET epoch = 'many'", "a row of runs does not hold"),
        ("UPDATE devices SET reported = -1", "a row of devices does not hold"),
        ("PRAGMA foreign_keys = OFF; DELETE FROM runs", "a row of rounds belongs to one of runs that is not there"),
        ("PRAGMA ignore_check_constraints = ON; UPDATE runs SET status = 'on'", "runs"),
    ],
)
def test_impossible_values_are_reported_and_repaired(path: Path, story: Story, statement: str, why: str):
    change(path, *statement.split("; "))
    with pytest.raises(StateError, match=rf"{path}: is damaged \(.*{why}.*`fedpatch run` or"):
        Registry(path, readonly=True)
    assert any(why in one for one in doctor_finds(path))
    found, (line, *_) = opened(path)
    assert why in line
    assert (found["rounds"], found["runs"]) == (story.full["rounds"], story.full["runs"])


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("absent", "null"), ("report_p90_s", '"x"'), ("report_p90_s", "1e999"), ("offenders", "[1]"),
        ("offenders", '{"pi-1": 1}'), ("needed", '"3"'), ("downloads", "-1"), ("measured", "1.5"),
        ("deadline_s", "null"), ("bounded_devices", "7"), ("bounded_devices", '{"pi-1": "norm"}'),
        ("independent", '{"gaining": 1}'), ("metric", "null"), ("metric_goal", '"most"'),
        ("phase_seconds", "[]"),
    ],
)  # fmt: skip
def test_record_with_a_field_of_another_type_is_damaged(path: Path, story: Story, key: str, value: str):
    with closing(sqlite3.connect(path)) as db:
        (text,) = db.execute("SELECT record FROM rounds WHERE round = 2").fetchone()
        changed = json.dumps({**json.loads(text), key: "PLACE"}).replace('"PLACE"', value)
        db.execute("UPDATE rounds SET record = ? WHERE round = 2", (changed,))
        db.commit()
    with pytest.raises(StateError, match=rf"{path}: is damaged \(a row of rounds does not hold what was written"):
        Registry(path, readonly=True)
    found, _ = opened(path)
    assert found["rounds"] == story.full["rounds"]


@pytest.mark.parametrize("value", ['{"pi-1": ["gone", ""]}', '{"pi-1": "declined"}', '{"pi-1": ["failed"]}', "[]"])
def test_departed_device_without_state_and_reason_is_damage(tmp_path: Path, value: str):
    path = tmp_path / REGISTRY_FILE
    with Registry(path) as registry:
        run, now = new_run(registry).id, BootTime("boot", 1.0, 1.0)
        registry.rounds.open(run, RoundJournal(1, 1, ("pi-1",), "ab" * 32), now)
        driver_of(registry).execute("UPDATE open_rounds SET departed = ?", (value,))
        with pytest.raises(StateError, match="is damaged"):
            registry.rounds.unfinished(run, now)
    with pytest.raises(StateError, match="a row of open_rounds does not hold what was written"):
        Registry(path, readonly=True)


@pytest.mark.parametrize(
    "changed",
    ["invited = '[\"pi 1\"]'", "absent = '[7]'", 'negotiated = \'{"": "fp32"}\'', 'offenders = \'{"PI": "late"}\''],
)
def test_impossible_device_name_in_an_open_round_is_damage(tmp_path: Path, changed: str):
    """A resume would ask this device, and end with an error each time."""
    path = tmp_path / REGISTRY_FILE
    with Registry(path) as registry:
        registry.rounds.open(new_run(registry).id, RoundJournal(1, 1, ("pi-1",), "ab" * 32), BootTime("boot", 1.0, 1.0))
        driver_of(registry).execute(f"UPDATE open_rounds SET {changed}")
    with pytest.raises(StateError, match=r"a row of open_rounds does not hold what was written .*device is"):
        Registry(path, readonly=True)


@pytest.mark.parametrize(
    ("table", "read"),
    [
        ("acceptances", lambda rounds, run: rounds.unfinished(run, BootTime("boot", 1.0, 1.0))),
        ("updates", lambda rounds, run: rounds.updates(run, 1)),
        ("carried_work", lambda rounds, run: rounds.carried(run)),
        ("masking", lambda rounds, run: rounds.masking(run, 1)),
    ],
)
def test_impossible_device_name_that_another_program_writes_meanwhile_is_damage(tmp_path: Path, table: str, read: Any):
    """In PostgreSQL no row is checked when the registry is opened."""
    work = CarriedWork(1, 1, version=0, base="ab" * 32, encoding="fp32")
    with Registry(tmp_path / REGISTRY_FILE) as registry:
        run, rounds = new_run(registry).id, registry.rounds
        opened = RoundJournal(1, 1, ("pi-1",), "ab" * 32, frozenset({"pi-1"}), carried={"pi-1": work})
        rounds.open(run, opened, BootTime("boot", 1.0, 1.0))
        rounds.add_updates(run, [StoredUpdate(1, "pi-1", "ab" * 32, 99, 40, "fp32")])
        rounds.save_masking(run, 1, [MaskingEntry(1, "shares", "pi-1", b"")])
        assert read(rounds, run)
        driver_of(registry).execute(f"UPDATE {table} SET device = 'pi 1'")
        with pytest.raises(StateError, match=rf"is damaged \(a row of {table} .*device is 'pi 1'"):
            read(rounds, run)


def test_copy_is_not_replaced_by_one_of_a_damaged_registry(path: Path, caplog: pytest.LogCaptureFixture):
    with Registry(path) as registry:
        change(path, "UPDATE rounds SET record = 'x' WHERE round = 2")
        before = copy_of(path).read_bytes()
        with caplog.at_level(logging.WARNING, LOG):
            keep_copy(driver_of(registry), path)
        assert "no new copy could be made: the registry itself is damaged (a row of rounds" in caplog.messages[0]
        assert copy_of(path).read_bytes() == before
        assert not list(path.parent.glob(".*"))


def test_journals_add_what_the_copy_lacks(path: Path, story: Story):
    with Registry(path) as registry:
        registry.rounds.finish(story.run, record_of(6))
        registry.next_epoch(story.run)
        registry.finish_run(story.run, stopped_because="max_rounds", user_accuracy=0.5, model=None)
        wanted = registry.runs(), registry.rounds.records(story.run)
    copy_of(path).write_bytes(story.ended[f"{REGISTRY_FILE}.before"])
    path.write_bytes(b"no database")
    with LogLines() as lines, Registry(path) as registry:
        assert (registry.runs(), registry.rounds.records(story.run)) == wanted
    assert len(lines) == 1


def test_log_left_by_a_power_cut_is_no_damage(story: Story):
    with laid_out(story.cut) as path:
        assert opened(path) == (story.full, [])


@pytest.mark.parametrize("left", ["empty", "absent", "set aside"])
def test_empty_or_absent_file_is_replaced_by_its_copy(story: Story, left: str):
    """An interrupted repair has set the file aside, but not its log."""
    with laid_out(story.cut) as path:
        if left == "set aside":
            path.rename(path.with_name(f"{REGISTRY_FILE}.damaged"))
        else:
            path.write_bytes(b"") if left == "empty" else path.unlink()
        found, (line,) = opened(path)
        assert found == story.copied
        where = "empty; it is now " if left == "empty" else f"not there; its copy {copy_of(path).name} is in its place"
        assert line.startswith(f"{path}: is {where}")


def test_damaged_file_without_a_copy_is_left_alone(story: Story):
    remedy = r"`fedpatch runs --rebuild --state-dir .*` makes it again from its runs"
    for files, wanted in (
        (story.ended, remedy),
        ({REGISTRY_FILE: story.ended[REGISTRY_FILE]}, "move it away, or use another --state-dir"),
    ):
        with laid_out(files) as path:
            copy_of(path).unlink(missing_ok=True)
            path.write_bytes(path.read_bytes()[:5000])
            for readonly in (True, False):
                with pytest.raises(StateError, match=rf"{path}: is damaged .*; {wanted}"):
                    Registry(path, readonly=readonly)
            assert path.read_bytes() == story.ended[REGISTRY_FILE][:5000]


def test_damaged_copy_is_not_used_and_both_are_named(path: Path):
    for one in (path, copy_of(path)):
        one.write_bytes(one.read_bytes()[:5000])
    with pytest.raises(
        StateError, match=rf"{path}: is damaged .* its copy {copy_of(path)} is damaged .*runs --rebuild"
    ):
        Registry(path)
    assert len(path.read_bytes()) == 5000


def test_readonly_open_of_a_damaged_registry_names_the_remedy_and_changes_nothing(path: Path):
    remedy = "`fedpatch run` or `fedpatch resume` puts its copy registry.sqlite3.before in its place"
    damage = r"is damaged \(file is not a database\)"
    for data, why in ((b"?" * 5000, damage), (b"", "is empty"), (None, "is not there")):
        path.unlink() if data is None else path.write_bytes(data)
        before = files_of(path.parent)
        with pytest.raises(StateError, match=rf"^{path}: {why}; {remedy}"):
            Registry(path, readonly=True)
        assert files_of(path.parent) == before
        must_exist(path)
    copy_of(path).unlink()
    must_exist(path)
    rmtree(path.parent / RUNS)
    with pytest.raises(UsageError, match="no runs in"):
        must_exist(path)


@pytest.mark.parametrize("readonly", [False, True])
def test_registry_and_copy_absent_beside_journals_names_the_rebuild(path: Path, readonly: bool):
    path.unlink()
    copy_of(path).unlink()
    with pytest.raises(StateError, match=rf"^{path}: is not there; `fedpatch runs --rebuild"):
        Registry(path, readonly=readonly)


def test_nothing_is_put_in_the_place_of_a_file_that_is_in_use(story: Story):
    """Another fleet's coordinator uses the same directory, and must not write to a file that is set aside."""
    with laid_out(story.ended) as path, Registry(path) as other:
        path.write_bytes(path.read_bytes()[:4096])
        with pytest.raises(StateError, match=f"{path}: is damaged"), Registry(path) as registry:
            registry.devices()
        assert not path.with_name(f"{REGISTRY_FILE}.damaged").exists()
        other.close()
        found, (line,) = opened(path)
        assert found == story.copied
        assert "is in its place" in line


def test_copy_that_cannot_be_made_is_logged_and_the_one_before_stays(path: Path, caplog: pytest.LogCaptureFixture):
    with Registry(path) as registry:
        before = files_of(path.parent)
        with caplog.at_level(logging.WARNING, LOG):
            keep_copy(driver_of(registry), path.parent / "absent" / REGISTRY_FILE)
        assert "no new copy could be made: " in caplog.messages[0]
        assert copy_of(path).read_bytes() == before[copy_of(path).name]


def test_registry_on_a_readonly_or_full_disk_can_be_read(story: Story, tmp_path: Path):
    """On such a disk SQLite cannot create its files beside the registry."""
    with small_disk(tmp_path / "disk", "2m") as disk:
        path = disk.path / REGISTRY_FILE
        for files in (story.ended, story.cut):
            for name in (REGISTRY_FILE, f"{REGISTRY_FILE}-wal"):
                path.with_name(name).unlink(missing_ok=True)
                if name in files:
                    path.with_name(name).write_bytes(files[name])
            path.with_name(f"{REGISTRY_FILE}-shm").unlink(missing_ok=True)
            for hinder, remedy in ((disk.fill, disk.empty), (disk.make_readonly, disk.make_writable)):
                hinder()
                with Registry(path, readonly=True) as registry:
                    assert content_of(driver_of(registry)) == story.full
                    with pytest.raises(StateError, match="readonly"):
                        registry.reopen(registry.run("last").id)
                remedy()


def test_full_or_readonly_disk_is_reported_with_the_remedy(story: Story, tmp_path: Path):
    with small_disk(tmp_path / "disk", "2m") as disk:
        path = disk.path / REGISTRY_FILE
        path.write_bytes(story.ended[REGISTRY_FILE])
        disk.fill()
        with pytest.raises(StateError, match=f"^{path}.*; free some space on this disk"), Registry(path) as registry:
            for number in range(9):
                seen(registry, f"pi-{number}", fleet="lab", now=1.0, online=True)
        disk.empty()
        disk.make_readonly()
        with pytest.raises(StateError, match=f"^{path}.*: Read-only file system; this disk is read-only"):
            Registry(path)
        disk.make_writable()
        assert opened(path) == (story.full, [])


def test_registry_that_another_program_holds_has_its_end_as_remedy_and_no_space(tmp_path: Path):
    path = tmp_path / REGISTRY_FILE
    with Registry(path):
        pass
    with closing(sqlite3.connect(path)) as holder, closing(sqlite3.connect(path, timeout=0)) as waiting:
        holder.execute("BEGIN EXCLUSIVE")
        with (
            pytest.raises(StateError, match="database is locked; end the program that holds it"),
            sqlite_errors(path),
        ):
            waiting.execute("BEGIN IMMEDIATE")


def test_registry_on_a_file_system_without_locks_has_a_local_disk_as_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """SQLite says of it that the database is locked."""

    def refuse(file: object, operation: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "lockf", refuse)
    path = tmp_path / REGISTRY_FILE
    with closing(sqlite3.connect(path)) as holder, closing(sqlite3.connect(path, timeout=0)) as waiting:
        holder.execute("BEGIN EXCLUSIVE")
        with pytest.raises(StateError, match=r"has no locks .*use a directory on a local disk"), sqlite_errors(path):
            waiting.execute("BEGIN IMMEDIATE")


@pytest.mark.parametrize("name", [REGISTRY_FILE, URL_FILE])
def test_registry_of_another_user_has_its_owner_as_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str):
    """As for an operator who asks for the runs of the service."""

    def refuse(path: Path, *_: object, **__: object) -> str:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    with Registry(tmp_path / REGISTRY_FILE):
        pass
    (tmp_path / URL_FILE).touch()
    owner = pwd.getpwuid(os.geteuid()).pw_name
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    monkeypatch.setattr(Path, "read_text", refuse)
    with pytest.raises(
        FedpatchError, match=rf"{name}: .*Permission denied; run as the user that owns it \(sudo -u {owner}"
    ):
        if name == URL_FILE:
            url_of(tmp_path / REGISTRY_FILE)
        else:
            with sqlite_errors(tmp_path / name):
                refuse(tmp_path / name)
