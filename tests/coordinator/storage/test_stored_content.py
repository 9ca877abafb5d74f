"""`fedpatch doctor` reads back all stored content and reports each damage."""

from __future__ import annotations

import errno
import hashlib
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpatch.coordinator.aggregation.server_state import ServerState
from fedpatch.coordinator.blobs.blob_store import open_blobs
from fedpatch.coordinator.rounds.round_journal import RoundJournal
from fedpatch.coordinator.rounds.round_record import RoundRecord
from fedpatch.coordinator.rounds.stored_update import StoredUpdate
from fedpatch.coordinator.storage import run_journal
from fedpatch.coordinator.storage.boot_clock import BootTime
from fedpatch.coordinator.storage.checkpoint import export_model, save_checkpoint
from fedpatch.coordinator.storage.content_checks import check_stored
from fedpatch.coordinator.storage.database.registry_files import copy_of
from fedpatch.coordinator.storage.delta_files import ServerDelta, save_step
from fedpatch.coordinator.storage.run_journal import journals
from fedpatch.coordinator.storage.run_registry import REGISTRY_FILE, Registry
from fedpatch.coordinator.storage.update_files import store_update
from fedpatch.shared.diagnostics.checks import Finding
from fedpatch.shared.tensors.arrays import Schema, TensorSpec
from fedpatch.shared.tensors.packing import Packed
from tests.coordinator.registry_builders import change, new_run, seen
from tests.support.checkups import quiet_checkup
from tests.support.examples import examples

SCHEMA = Schema((TensorSpec("w", (8,), "float32", "weight"),))
BLOB = b"an update" * 10
BETTER = "UPDATE rounds SET record = json_set(record, '$.user_accuracy', 0.9) WHERE round = {}"


def record_of(number: int) -> RoundRecord:
    return RoundRecord(number, "aggregated", 2, 2, 0, 2, 0.5)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A state directory with each kind of stored content; the third round is open."""
    state_dir = tmp_path_factory.mktemp("state")
    with Registry(state_dir / REGISTRY_FILE) as registry:
        run = new_run(registry, settings={"rounds": 9}).id
        directory = state_dir / "runs" / run
        for number in (1, 2):
            state = ServerState(number, {"w": np.full(8, number, np.float32)}, {})
            save_checkpoint(directory, state, SCHEMA, {"record": record_of(number).to_dict()})
            registry.rounds.finish(run, record_of(number))
        digest = hashlib.sha256(BLOB).hexdigest()
        seen(registry, "pi-1", fleet="lab", now=1.0, online=True)
        registry.holds.put("lab", "pi-1", "drained", "battery", 1.0)
        registry.rounds.open(run, RoundJournal(3, 2, ("pi-1",), "ab" * 32, encoding="fp32"), BootTime("boot", 1.0, 1.0))
        store_update(directory, 3, "pi-1", BLOB, digest)
        registry.rounds.add_updates(run, [StoredUpdate(3, "pi-1", digest, 99, 40, "fp32")])
        save_step(directory, ServerDelta(2, "a", "b", "c", Packed(b"x" * 50, 99, "delta-int8")), ())
        export_model(directory, {"w": np.full(8, 2, np.float32)})
        registry.finish_run(run, stopped_because="max_rounds", user_accuracy=0.5, model=str(directory / "model.npz"))
    return state_dir


@pytest.fixture
def state_dir(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "state"))


def found(state_dir: Path) -> list[Finding]:
    """Return the doctor's findings on the stored content."""
    checkup = quiet_checkup()
    check_stored(state_dir, checkup)
    return checkup.findings


def bad(state_dir: Path) -> list[Finding]:
    return [one for one in found(state_dir) if one.verdict != "ok"]


def test_whole_state_directory_is_good_with_and_without_a_copy(state_dir: Path):
    assert [(one.name, one.verdict) for one in found(state_dir)] == [("registry", "ok"), ("runs", "ok")]
    assert "and so can its copy" in found(state_dir)[0].detail
    assert found(state_dir.parent / "elsewhere") == []
    copy_of(state_dir / REGISTRY_FILE).unlink()
    registry = found(state_dir)[0]
    assert (registry.verdict, "so can its copy" in registry.detail) == ("ok", False)
    assert f"its copy {REGISTRY_FILE}.before is not there yet" in registry.detail


@pytest.mark.parametrize(
    ("statement", "verdict", "word"),
    [
        (BETTER.format(1), "fail", "record of round 1 is not what was written"),
        ("DELETE FROM rounds WHERE round = 1", "fail", "record of round 1 is not what was written"),
        ("UPDATE runs SET private = 'all'", "warn", "private in the registry differs"),
        ("UPDATE holds SET id = 'pi-3'", "warn", "never seen: pi-3"),
        ("UPDATE updates SET digest = replace(digest, 'a', 'b')", "warn", "is not the one that was committed"),
        ("UPDATE rounds SET record = 'x' WHERE round = 1", "fail", "a row of rounds does not hold"),
    ],
)
def test_changed_row_is_reported(state_dir: Path, statement: str, verdict: str, word: str):
    change(state_dir / REGISTRY_FILE, statement)
    assert any(one.verdict == verdict and word in one.detail and one.remedy for one in bad(state_dir))


def test_record_that_the_journal_lost_is_compared_with_the_checkpoint(state_dir: Path):
    (journal,) = journals(state_dir)
    journal.write_bytes(b"")
    change(state_dir / REGISTRY_FILE, BETTER.format(2))
    assert any("differs from the record in checkpoint-000002.fp" in one.detail for one in bad(state_dir))


def test_failed_and_evaluate_rounds_before_the_last_one_are_no_fault(tmp_path: Path):
    """They have numbers, and no checkpoint."""
    last = RoundRecord(4, "aggregated", 2, 2, 0, 2, 0.5)
    with Registry(tmp_path / REGISTRY_FILE) as registry:
        run = new_run(registry, settings={"rounds": 9}).id
        for number, outcome in ((1, "aggregated"), (2, "failed"), (3, "evaluated")):
            registry.rounds.finish(run, RoundRecord(number, outcome, 2, 2, 0, 2, 0.5))
        registry.rounds.finish(run, last)
        state = ServerState(2, {"w": np.zeros(8, np.float32)}, {})
        save_checkpoint(tmp_path / "runs" / run, state, SCHEMA, {"record": last.to_dict()})
    assert bad(tmp_path) == []


def test_damaged_newest_checkpoint_fails_and_the_one_before_warns(state_dir: Path):
    newest, before = sorted(state_dir.glob("runs/*/checkpoint-*.fp"), reverse=True)
    for path, verdict, back in ((newest, "fail", "go back to the model after round 1"), (before, "warn", "nothing")):
        data = path.read_bytes()
        path.write_bytes(data[:-1])
        (one,) = bad(state_dir)
        assert one.verdict == verdict
        assert str(path) in one.detail
        assert back in one.remedy
        path.write_bytes(data)


def test_blobs_in_an_object_store_are_read_back(tmp_path: Path, s3: str):
    with Registry(tmp_path / REGISTRY_FILE) as registry:
        run = new_run(registry, settings={"blobs": s3}).id
        blobs = open_blobs(s3, tmp_path / "runs" / run)
        record = record_of(1)
        state = ServerState(1, {"w": np.full(8, 1, np.float32)}, {})
        key = save_checkpoint(blobs, state, SCHEMA, {"record": record.to_dict()})
        registry.rounds.finish(run, record)
    assert bad(tmp_path) == []
    blobs.put(key, b"other bytes")
    (damaged,) = bad(tmp_path)
    assert damaged.verdict == "fail" and f"{s3}/{run}/{key}: is not a checkpoint" in damaged.detail
    change(tmp_path / REGISTRY_FILE, f"UPDATE runs SET settings = replace(settings, '{s3}', 's3://nowhere/p')")
    assert any("s3://nowhere/p" in one.detail and "NoSuchBucket" in one.detail for one in bad(tmp_path))


def test_journal_that_could_not_be_written_warns_and_the_registry_is_right(
    state_dir: Path, monkeypatch: pytest.MonkeyPatch
):

    def refuse(path: Path, line: bytes, **_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    with Registry(state_dir / REGISTRY_FILE) as registry:
        monkeypatch.setattr(run_journal, "append_line", refuse)
        registry.rounds.finish(registry.run("last").id, RoundRecord(2, "aggregated", 2, 2, 0, 2, 0.9))
    warnings = [one for one in bad(state_dir) if "checkpoint-000002" not in one.detail]
    assert [(one.verdict, "lags behind the registry" in one.detail) for one in warnings] == [("warn", True)]
    assert "fedpatch resume" in warnings[0].remedy and "--rebuild" not in warnings[0].remedy


def test_run_missing_in_the_registry_fails_with_the_rebuild_command(state_dir: Path):
    for one in (state_dir / REGISTRY_FILE, copy_of(state_dir / REGISTRY_FILE)):
        for statement in ("DELETE FROM updates", "DELETE FROM open_rounds", "DELETE FROM rounds", "DELETE FROM runs"):
            change(one, statement)
    assert any("is not in the registry" in one.detail and "--rebuild" in one.remedy for one in bad(state_dir))


@pytest.mark.medium
@examples(50)
@given(which=st.integers(0, 20), at=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
def test_flipped_bit_in_any_file_of_a_run_is_found(whole: Path, which: int, at: float, bit: int):
    files = sorted(one for one in whole.glob("runs/**/*") if one.is_file())
    path = files[which % len(files)]
    data = path.read_bytes()
    place = int(at * len(data))
    try:
        path.write_bytes(data[:place] + bytes([data[place] ^ (1 << bit)]) + data[place + 1 :])
        assert bad(whole), (path.name, place)
    finally:
        path.write_bytes(data)
    assert not bad(whole)


def test_show_prints_the_written_number_where_the_registry_has_another(fedpatch, state_dir: Path):
    change(state_dir / REGISTRY_FILE, BETTER.format(1))
    done = fedpatch("show", "last", "--json", "--state-dir", state_dir)
    assert json.loads(done.out)["rounds"][0]["user_accuracy"] == 0.5
    assert "the record of round 1 is not what was written" in done.err
    assert "fedpatch runs --rebuild" in done.err
    done = fedpatch("runs", "--rebuild", "--json", "--state-dir", state_dir)
    assert len(json.loads(done.out)) == 1
    assert not bad(state_dir)
    assert "not what was written" not in fedpatch("show", "last", "--state-dir", state_dir).err


def test_show_works_again_after_a_rebuild(fedpatch, state_dir: Path):
    wanted = fedpatch("show", "last", "--json", "--state-dir", state_dir).out
    for one in (state_dir / REGISTRY_FILE, copy_of(state_dir / REGISTRY_FILE)):
        one.write_bytes(b"garbage" * 100)
    stopped = fedpatch("show", "last", "--state-dir", state_dir)
    assert stopped.code == 1
    assert f"`fedpatch runs --rebuild --state-dir {state_dir}`" in stopped.err
    assert fedpatch("runs", "--rebuild", "--state-dir", state_dir).code == 0
    assert fedpatch("show", "last", "--json", "--state-dir", state_dir).out == wanted
