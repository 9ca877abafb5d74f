"""Personal models on disk: the present model, the kept ones, and read permissions."""

from __future__ import annotations

import hashlib
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpatch.device_agent.models.store import SUMS_FILE, ModelStore, StoredModel
from fedpatch.shared.app.locks import FileLock
from fedpatch.shared.errors import StateError, UsageError
from fedpatch.shared.tasks.model_metadata import METADATA_FILE, MODEL_FILE
from tests.device_agent.exported_models import RUN, describe, present, publish, rounds
from tests.support.disks import small_disk


@pytest.fixture
def store(tmp_path: Path) -> ModelStore:
    return ModelStore(tmp_path / "models", 2)


def test_a_model_is_present_once_its_round_is_committed(store, tmp_path):
    store.stage(b"first", describe(1, b"first"))
    assert (present(tmp_path / "models"), store.tasks(), store.versions("toy")) == (None, [], [])
    version = store.publish("toy", RUN, 1)
    assert (present(tmp_path / "models"), store.tasks()) == (1, ["toy"])
    assert version is not None
    assert version.metadata == describe(1, b"first")
    assert store.current("toy") == version.path


def test_model_of_another_round_is_not_published(store, tmp_path):
    publish(store, 1)
    store.stage(b"x", describe(2, b"x"))
    assert store.publish("toy", RUN, 3) is None
    assert store.publish("toy", "another run", 2) is None
    assert store.publish("other", RUN, 2) is None
    assert present(tmp_path / "models") == 1
    assert store.publish("toy", RUN, 2) is not None
    assert store.publish("toy", RUN, 2) is None
    assert present(tmp_path / "models") == 2


def test_discarded_model_is_never_published(store, tmp_path):
    store.stage(b"x", describe(1, b"x"))
    store.discard_staged("toy")
    assert store.publish("toy", RUN, 1) is None
    assert {path.name for path in (tmp_path / "models" / "toy").iterdir()} == {".lock"}


def test_model_of_a_version_that_also_made_an_int8_file_has_no_problem_until_its_model_is_damaged(store):
    version = publish(store, 1)
    assert version is not None
    file, sums = version.path / METADATA_FILE, version.path / SUMS_FILE
    file.write_bytes(file.read_bytes().replace(b'"kind"', b'"int8": {"size_bytes": 3}, "kind"'))
    of = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in (version.path / MODEL_FILE, file)}
    (version.path / "model.int8.onnx").write_bytes(b"int")
    lines = (f"{of[MODEL_FILE]}  {MODEL_FILE}", f"{'0' * 64}  model.int8.onnx", f"{of[METADATA_FILE]}  {METADATA_FILE}")
    sums.write_text("\n".join(lines) + "\n")
    assert (rounds(store), list(store.problems())) == ([1], [])
    (version.path / MODEL_FILE).write_bytes(b"damaged")
    assert [problem.partition(": ")[2] for problem, _ in store.problems()] == [
        "is damaged (its SHA-256 is not that of its metadata)"
    ]


@given(keep=st.integers(1, 5), count=st.integers(1, 8))
def test_so_many_models_stay(tmp_path_factory, keep, count):
    store = ModelStore(tmp_path_factory.mktemp("models"), keep)
    for round in range(1, count + 1):
        publish(store, round)
    assert rounds(store) == list(range(count, max(0, count - keep), -1))
    assert [one.current for one in store.versions("toy")] == [True] + [False] * (min(keep, count) - 1)


def test_a_rollback_goes_one_back_or_to_a_round(store, tmp_path):
    store = ModelStore(tmp_path / "models", 3)
    for round in (1, 2, 3):
        publish(store, round)
    for wanted, expected in ((None, 2), (None, 1), (3, 3), (1, 1)):
        assert store.roll_back("toy", wanted).metadata.round == present(tmp_path / "models") == expected


def test_rollback_holds_over_rounds_until_it_is_released(tmp_path):
    store = ModelStore(tmp_path / "models", 3)
    for round in (1, 2):
        publish(store, round)
    store.roll_back("toy", 1)
    for round in (3, 4, 5):
        assert publish(store, round) is None
    kept = store.kept("toy")
    assert kept is not None and (kept.round, "rollback --release" in kept.why) == (5, True)
    assert (present(tmp_path / "models"), rounds(store), store.held("toy")) == (1, [5, 4, 3, 1], True)
    assert [store.release("toy"), store.release("toy")] == [True, False]
    assert present(tmp_path / "models") == 1
    publish(store, 6)
    assert present(tmp_path / "models") == 6


def test_a_rollback_stays_where_the_round_is_committed_again(store, tmp_path):
    """An agent that was killed before it cleared its spool publishes the model a second time."""
    publish(store, 1)
    publish(store, 2)
    store.roll_back("toy")
    assert store.publish("toy", RUN, 2) is None
    assert present(tmp_path / "models") == 1
    store.roll_back("toy", 2)
    assert present(tmp_path / "models") == 2
    publish(store, 3)
    assert present(tmp_path / "models") == 2


def test_a_rollback_to_nowhere_changes_nothing(store, tmp_path):
    with pytest.raises(UsageError, match="holds no model of task 'toy'"):
        store.roll_back("toy")
    publish(store, 7)
    with pytest.raises(UsageError, match=r"no model of an earlier round of task 'toy' is kept; .* rounds: 7"):
        store.roll_back("toy")
    with pytest.raises(UsageError, match=r"no model of round 3 .* rounds: 7"):
        store.roll_back("toy", 3)
    assert present(tmp_path / "models") == 7


def test_a_rollback_waits_for_nobody(store, tmp_path):
    publish(store, 1)
    publish(store, 2)
    with FileLock(tmp_path / "models" / "toy" / ".lock", "held"), pytest.raises(UsageError, match="try again"):
        store.roll_back("toy")
    assert present(tmp_path / "models") == 2


def test_model_is_readable_by_the_group_of_the_agent_only(store, tmp_path):
    before = os.umask(0o077)
    try:
        version = publish(store, 1)
    finally:
        os.umask(before)
    root = tmp_path / "models"
    assert version is not None
    for path, mode in (
        (root, 0o750),
        (root / "toy", 0o750),
        (version.path, 0o750),
        (version.path / MODEL_FILE, 0o640),
        (version.path / METADATA_FILE, 0o640),
    ):
        assert stat.S_IMODE(path.stat().st_mode) == mode, path


@pytest.mark.parametrize("task", ["", ".", "..", "../patches", "a/b", "A", "x" * 33])
def test_a_name_that_is_no_tasks_is_no_path(store, task):
    for deed in (store.current, store.roll_back, store.versions, store.discard_staged):
        with pytest.raises(UsageError, match="no task's name"):
            deed(task)


@pytest.mark.parametrize("run", ["../../up", "a/b", "", "." * 64, "r n"])
def test_a_runs_name_from_the_network_is_no_path(store, tmp_path, run):
    store.stage(b"x", describe(1, b"x", run=run))
    version = store.publish("toy", run, 1)
    assert version is not None
    assert version.path.parent == tmp_path / "models" / "toy"
    assert (version.metadata.run, present(tmp_path / "models")) == (run, 1)


def test_damaged_version_is_listed_and_skipped_by_roll_back(store, tmp_path):
    store = ModelStore(tmp_path / "models", 3)
    for round in (1, 2, 3):
        publish(store, round)
    (store.versions("toy")[1].path / METADATA_FILE).write_text("{")
    problems = [one.problem for one in store.versions("toy")]
    assert [bool(one) for one in problems] == [False, True, False]
    assert "does not describe a model" in problems[1]
    assert store.roll_back("toy").metadata.round == 1


def test_why_the_present_model_stays_is_remembered_until_another_comes(store):
    kept = StoredModel(RUN, 2, "accuracy 0.1 is worse")
    store.note_kept("toy", kept)
    assert store.kept("toy") is None
    publish(store, 1)
    store.note_kept("toy", kept)
    assert store.kept("toy") == kept
    publish(store, 3)
    assert store.kept("toy") is None


def test_a_full_disk_costs_the_new_model_alone(tmp_path):
    with small_disk(tmp_path / "disk", "256k") as disk:
        store = ModelStore(disk.path / "models", 2)
        publish(store, 1, bytes(50_000))
        disk.fill()
        with pytest.raises(StateError, match="free some space"):
            store.stage(bytes(50_000), describe(2, bytes(50_000)))
        store.note_kept("toy", StoredModel(RUN, 2, "no space"))
        assert store.publish("toy", RUN, 2) is None
        assert present(disk.path / "models") == 1
        disk.empty()
        publish(store, 3, bytes(50_000))
        assert present(disk.path / "models") == 3


def test_reading_needs_no_torch_no_numpy_and_no_onnxruntime():
    program = "import sys, fedpatch.device_agent.models.store, fedpatch.device_agent.cli.models; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    assert not {"torch", "numpy", "onnx", "onnxruntime"} & set(loaded)


def test_lost_link_to_the_present_model_is_named_and_made_anew_by_a_rollback(store, tmp_path):
    publish(store, 1)
    publish(store, 2)
    (tmp_path / "models" / "toy" / "current").unlink()
    assert store.tasks() == ["toy"]
    assert [problem for problem, _ in store.problems()] == [f"{tmp_path / 'models/toy/current'}: leads to no model"]
    store.roll_back("toy")
    assert (present(tmp_path / "models"), list(store.problems())) == (2, [])
    publish(store, 3)
    assert present(tmp_path / "models") == 3


def test_rollback_without_an_earlier_model_says_that_the_next_round_makes_one(store):
    publish(store, 1)
    with pytest.raises(UsageError, match="the next round makes a new one"):
        store.roll_back("toy")


def test_rollback_after_a_damaged_present_model_holds(store, tmp_path):
    """The link is there: the owner leaves the present model, whatever can be read of it."""
    publish(store, 1)
    publish(store, 2)
    current = store.current("toy")
    assert current is not None
    (current / METADATA_FILE).write_bytes(b"?")
    store.roll_back("toy")
    publish(store, 3)
    assert present(tmp_path / "models") == 1
