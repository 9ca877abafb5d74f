"""The journal of a run: its content after any damage, and a registry rebuilt from it."""

from __future__ import annotations

import errno
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpatch.coordinator.rounds.round_journal import MaskingEntry, RoundJournal
from fedpatch.coordinator.rounds.round_record import PhaseSeconds, RoundRecord
from fedpatch.coordinator.rounds.run_summary import RunInfo
from fedpatch.coordinator.storage import run_journal
from fedpatch.coordinator.storage.boot_clock import BootTime
from fedpatch.coordinator.storage.database.registry_files import copy_of, damaged_of
from fedpatch.coordinator.storage.registry_rebuild import rebuild_registry
from fedpatch.coordinator.storage.run_journal import FILE, journals, read_journal
from fedpatch.coordinator.storage.run_registry import REGISTRY_FILE, Registry
from fedpatch.shared.errors import UsageError
from tests.coordinator.registry_builders import change, new_run, seen
from tests.support.examples import examples
from tests.support.failing_reads import FailingReads, reads

__all__ = ["reads"]

ROUNDS = 4
LOSE_RECORD_2 = "UPDATE rounds SET record = '{}' WHERE round = 2"


@pytest.fixture
def tmp_path(memory_path: Path) -> Path:
    return memory_path


def record_of(number: int) -> RoundRecord:
    seconds = PhaseSeconds(train=1.25)
    return RoundRecord(number, "aggregated", 4, 3, 1, 3, 0.5 + number / 100, phase_seconds=seconds, failures={"x": 1})


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A registry with a finished run of four rounds, an unfinished run, a device, and another device in quarantine."""
    path = tmp_path / REGISTRY_FILE
    with Registry(path) as registry:
        for fleet in ("lab", "kitchen"):
            run = new_run(
                registry, 0.0 if fleet == "lab" else 60.0, settings={"rounds": 9, "target_ua": None, "fleet": fleet}
            ).id
            for number in range(1, ROUNDS + 1):
                registry.rounds.finish(run, record_of(number))
            if fleet == "lab":
                registry.finish_run(run, stopped_because="max_rounds", user_accuracy=0.5, model=None)
        registry.next_epoch(run)
        for device in ("pi-1", "pi-2"):
            seen(registry, device, fleet="lab", now=3.5, online=True)
        registry.holds.put("lab", "pi-2", "quarantined", "damaged", 4.0)
        registry.holds.keep()
    return path


@contextmanager
def one_run() -> Iterator[tuple[Path, RunInfo, Path]]:
    """Yield the path of a registry, its only run, and the path of this run's journal."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / REGISTRY_FILE
        with Registry(path) as registry:
            run = new_run(registry)
            for number in range(1, ROUNDS + 1):
                registry.rounds.finish(run.id, record_of(number))
            journal = registry.journal.path(run.id)
        yield path, run, journal


def known(path: Path) -> tuple:
    """Return the runs and records of a registry."""
    with Registry(path, readonly=True) as registry:
        return registry.runs(), [registry.rounds.records(run.id) for run in registry.runs()]


@pytest.fixture
def run(path: Path) -> str:
    """The id of the last run."""
    with Registry(path, readonly=True) as registry:
        return registry.run("last").id


def garble(*paths: Path) -> None:
    """Overwrite files with garbage."""
    for one in paths:
        one.write_bytes(b"garbage " * 1000)


def delete(*paths: Path) -> None:
    for one in paths:
        one.unlink()


@pytest.mark.parametrize("damage", [garble, delete])
def test_damaged_or_absent_registry_is_rebuilt_with_all_runs(path: Path, damage):
    wanted = known(path)
    damage(path, copy_of(path))
    rebuilt = rebuild_registry(path)
    assert known(path) == wanted
    assert rebuilt.set_aside == ((damaged_of(path), damaged_of(copy_of(path))) if damage is garble else ())
    assert (rebuilt.source, rebuilt.devices, rebuilt.holds) == (None, 0, 0)
    assert copy_of(path).is_file()


def test_log_left_behind_by_a_registry_that_is_gone_stays_out_of_the_rebuilt_one(path: Path, run: str):
    """SQLite replays any undamaged log beside a database of the same name."""
    left = path.with_name(f"{path.name}-wal")
    with Registry(path) as registry:
        registry.rounds.finish(run, record_of(ROUNDS + 1))
        log = left.read_bytes()
        for number in range(ROUNDS + 2, 40):
            registry.rounds.finish(run, record_of(number))
    wanted = known(path)
    delete(path, copy_of(path))
    left.write_bytes(log)
    assert rebuild_registry(path).set_aside == ()
    assert known(path) == wanted
    assert damaged_of(path).with_name(f"{damaged_of(path).name}-wal").read_bytes() == log


def test_rebuilt_registry_takes_devices_and_holds_from_the_copy(path: Path):
    wanted = known(path)
    garble(path)
    rebuilt = rebuild_registry(path)
    assert known(path) == wanted
    assert (rebuilt.source, rebuilt.devices, rebuilt.holds) == (copy_of(path), 2, 1)
    with Registry(path) as registry:
        assert registry.holds.held("lab") == {"pi-2": "quarantined"}


def test_rebuilt_registry_leaves_out_impossible_rows(path: Path, run: str):
    for one in (path, copy_of(path)):
        change(one, "UPDATE devices SET reported = -1 WHERE id = 'pi-1'", LOSE_RECORD_2)
    rebuilt = rebuild_registry(path)
    assert (rebuilt.source, rebuilt.devices, rebuilt.holds) == (path, 1, 1)
    with Registry(path) as registry:
        records = registry.rounds.records(run)
        assert [one.user_accuracy for one in records] == [0.51, 0.52, 0.53, 0.54]


def test_open_round_survives_a_rebuild_of_a_registry_that_can_be_read(path: Path, run: str):
    with Registry(path) as registry:
        registry.rounds.open(run, RoundJournal(5, 2, (), "ab"), BootTime("b", 1.0, 1.0))
    rebuild_registry(path)
    with Registry(path) as registry:
        assert registry.open_rounds("kitchen") == {run: 5}


def test_steps_of_an_open_masked_round_survive_a_rebuild_in_their_order(path: Path, run: str):
    """Without its terms the round would start again, and its updates would be lost."""
    steps = [MaskingEntry(0, "terms", "", b"t"), *(MaskingEntry(1, "shares", name, b"s") for name in ("pi-2", "pi-1"))]
    with Registry(path) as registry:
        registry.rounds.open(run, RoundJournal(5, 2, (), "ab"), BootTime("b", 1.0, 1.0))
        registry.rounds.save_masking(run, 5, steps)
    rebuild_registry(path)
    with Registry(path) as registry:
        assert registry.rounds.masking(run, 5) == steps


def test_directory_without_journal_is_named_by_a_rebuild(path: Path):
    stray = path.parent / "runs" / "20200101-000000-abcdef"
    stray.mkdir()
    garble(path, copy_of(path))
    assert rebuild_registry(path).without_journal == (stray,)


def test_rebuild_without_runs_or_in_use_is_refused(path: Path, tmp_path: Path):
    with Registry(path), pytest.raises(UsageError, match="another fedpatch is working with it"):
        rebuild_registry(path)
    with pytest.raises(UsageError, match="no runs in"):
        rebuild_registry(tmp_path / "elsewhere" / REGISTRY_FILE)


def test_deleted_journal_is_written_again(path: Path):
    wanted = {one: read_journal(one) for one in journals(path.parent)}
    delete(*wanted)
    with Registry(path):
        pass
    assert {one: read_journal(one) for one in journals(path.parent)} == wanted


@pytest.mark.medium
@examples(30)
@given(at=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7), cut=st.booleans())
def test_flipped_bit_or_cut_in_a_journal_loses_its_lines_only(at: float, bit: int, cut: bool):
    """Each line is read as written or reported as damaged, unless the end of the file is missing."""
    with one_run() as (path, run, journal):
        data = bytearray(journal.read_bytes())
        place = int(at * len(data))
        if cut:
            del data[place:]
        else:
            data[place] ^= 1 << bit
        journal.write_bytes(data)
        history = read_journal(journal)
        assert history.run in (run, None)
        assert all(record == record_of(number) for number, record in history.records.items())
        lost = ROUNDS + 1 - len(history.records) - (history.run is not None)
        assert cut or bool(lost) == bool(history.damaged_lines) or lost == 0
        with Registry(path) as registry:
            registry.rounds.finish(run.id, record_of(ROUNDS + 1))
        assert read_journal(journal).records[ROUNDS + 1] == record_of(ROUNDS + 1)


def test_rounds_played_again_replace_the_earlier_ones(path: Path, run: str):
    with Registry(path) as registry:
        registry.rounds.roll_back(run, 2)
        registry.rounds.finish(run, record_of(3))
        wanted = registry.rounds.records(run)
        journal = registry.journal.path(run)
    assert journal.name == FILE
    assert list(read_journal(journal).records.values()) == wanted == [record_of(1), record_of(2), record_of(3)]


@contextmanager
def journals_refused() -> Iterator[None]:
    """Simulate a disk that refuses lines of journals."""

    def refuse(path: Path, line: bytes, **_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_journal, "append_line", refuse)
        yield


def play_again_unwritten(path: Path) -> str:
    """Roll the last run back to round 1 and run round 2 with another result; nothing of this is written to the journal."""
    with Registry(path) as registry, journals_refused():
        run = registry.run("last").id
        registry.rounds.roll_back(run, 1)
        registry.rounds.finish(run, replace(record_of(2), user_accuracy=0.9))
    return run


def test_records_as_written_where_the_journal_lags_are_the_registrys(path: Path, caplog: pytest.LogCaptureFixture):
    """The journal still has the first result of the repeated round."""
    run = play_again_unwritten(path)
    caplog.clear()
    with Registry(path, readonly=True) as registry:
        assert [one.user_accuracy for one in registry.records_as_written(run)] == [0.51, 0.9]
    assert caplog.messages == []


def end_unwritten(path: Path) -> None:
    with Registry(path) as registry, journals_refused():
        registry.finish_run(registry.run("last").id, stopped_because="max_rounds", user_accuracy=0.5, model=None)


def play_on_unwritten(path: Path) -> None:
    with Registry(path) as registry, journals_refused():
        registry.rounds.finish(registry.run("last").id, record_of(ROUNDS + 1))


@pytest.mark.parametrize(
    ("lag", "lost"),
    [(play_again_unwritten, ""), (end_unwritten, ""), (play_on_unwritten, LOSE_RECORD_2)],
    ids=["rolled back", "ended", "played on, and the registry lost a record"],
)
def test_rebuild_where_the_journal_lags_keeps_what_either_has(path: Path, lag: Callable[[Path], object], lost: str):
    """Rounds that were rolled back do not return either."""
    lag(path)
    wanted = known(path)
    if lost:
        for one in (path, copy_of(path)):
            change(one, lost)
    assert rebuild_registry(path).source == path
    assert known(path) == wanted


@pytest.mark.parametrize("restarts", [False, True])
def test_journal_that_lags_has_everything_after_the_next_line(path: Path, restarts: bool, run: str):
    with Registry(path) as registry:
        with journals_refused():
            registry.rounds.roll_back(run, 1)
            registry.rounds.finish(run, replace(record_of(2), user_accuracy=0.9))
        if not restarts:
            registry.next_epoch(run)
    if restarts:
        with Registry(path) as registry:
            registry.next_epoch(run)
    with Registry(path, readonly=True) as registry:
        history = read_journal(registry.journal.path(run))
        assert (history.run, list(history.records.values())) == (registry.run(run), registry.rounds.records(run))
        assert history.changes == registry.changes(run)


@pytest.mark.medium
@examples(20)
@given(at=st.floats(0, 1, exclude_max=True))
def test_catching_up_that_is_cut_short_leaves_a_journal_that_lags(at: float):
    """Only the last line has the number of the last change."""
    with one_run() as (path, info, journal):
        run = info.id
        before = journal.stat().st_size
        play_again_unwritten(path)
        with Registry(path) as registry:
            registry.journal.bring_up_to_date(run)
            data = journal.read_bytes()
            journal.write_bytes(data[: before + int(at * (len(data) - 1 - before))])
            assert read_journal(journal).changes < registry.changes(run)
            assert [one.user_accuracy for one in registry.records_as_written(run)] == [0.51, 0.9]


def test_journal_that_cannot_be_read_now_is_left_alone_and_caught_up_later(
    path: Path, reads: FailingReads, caplog: pytest.LogCaptureFixture
):
    with Registry(path) as registry:
        run = registry.run("last").id
        journal = registry.journal.path(run)
        before = journal.read_bytes()
        reads.fail(journal)
        registry.journal.bring_up_to_date(run)
        registry.next_epoch(run)
        assert set(caplog.messages) == {
            f"{journal}: cannot be read now: Input/output error; the run goes on, and the registry alone has its changes until "
            "the journal can be read"
        }
        reads.recover()
        assert journal.read_bytes() == before
        registry.journal.bring_up_to_date(run)
        assert read_journal(journal).run == registry.run(run)


def records_of(path: Path) -> list[int]:
    """Open a registry for writing, and return the rounds of its last run."""
    with Registry(path) as registry:
        return [one.round for one in registry.rounds.records(registry.run("last").id)]


def damage_after_going_back(path: Path, *, unreadable_line: bool = False) -> None:
    """Roll the last run back to round 1 and damage the registry; its copy is older than the rollback."""
    older = copy_of(path).read_bytes()
    with Registry(path) as registry:
        journal = registry.journal.path(registry.run("last").id)
        registry.rounds.roll_back(registry.run("last").id, 1)
    copy_of(path).write_bytes(older)
    garble(path)
    if unreadable_line:
        journal.write_bytes(b"garbage\n" + journal.read_bytes())


@pytest.mark.parametrize("restore", [records_of, rebuild_registry])
def test_rounds_rolled_back_stay_forgotten_where_an_older_copy_is_used(path: Path, restore: Callable):
    damage_after_going_back(path)
    restore(path)
    assert records_of(path) == [1]


def test_rounds_played_again_are_restored_over_an_older_copy(path: Path, run: str):
    older = copy_of(path).read_bytes()
    with Registry(path) as registry:
        registry.rounds.roll_back(run, 1)
        registry.rounds.finish(run, replace(record_of(2), user_accuracy=0.9))
        wanted = registry.rounds.records(run)
    copy_of(path).write_bytes(older)
    garble(path)
    with Registry(path) as registry:
        assert registry.rounds.records(run) == wanted


def test_journal_with_a_damaged_line_makes_no_round_forgotten(path: Path):
    """The damaged line could be the record of a repeated round."""
    damage_after_going_back(path, unreadable_line=True)
    assert records_of(path) == [1, 2, 3, 4]


def test_journal_that_was_deleted_in_mid_run_makes_no_round_forgotten(path: Path, run: str):
    with Registry(path) as registry:
        registry.next_epoch(run)
        delete(registry.journal.path(run))
        registry.finish_run(run, stopped_because="max_rounds", user_accuracy=0.5, model=None)
    garble(path)
    assert records_of(path) == [1, 2, 3, 4]


def test_copy_made_when_rounds_are_rolled_back_lacks_them(path: Path, run: str):
    with Registry(path) as registry:
        registry.rounds.roll_back(run, 1)
    with closing(sqlite3.connect(copy_of(path))) as db:
        assert db.execute("SELECT round FROM rounds WHERE run = ?", (run,)).fetchall() == [(1,)]
