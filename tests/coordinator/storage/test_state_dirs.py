"""The state directories in which runs are searched."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fedpatch.coordinator.storage.run_registry import REGISTRY_FILE, Registry
from fedpatch.coordinator.storage.state_dirs import MAX_NOTED, find, find_to_resume, remember
from fedpatch.shared.errors import UsageError
from tests.coordinator.registry_builders import new_run


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty current directory and an empty home."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "home"))
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "here"


def begin_run(state_dir: Path) -> str:
    """A run in `state_dir`, noted as the product does it; its id."""
    state_dir.mkdir(parents=True, exist_ok=True)
    remember(state_dir)
    with Registry(state_dir / REGISTRY_FILE) as registry:
        return new_run(registry).id


def test_run_is_found_in_any_noted_directory(tmp_path):
    runs = {begin_run(tmp_path / name): tmp_path / name for name in ("a", "b", "c")}
    assert {run: find(None, run) for run in runs} == runs


def test_find_without_a_run_is_the_latest_directory(tmp_path):
    for name in ("a", "b", "a"):
        begin_run(tmp_path / name)
    assert find(None) == find(None, "last") == tmp_path / "a"


def test_runs_of_the_current_directory_come_first(tmp_path, here):
    begin_run(here / "fedpatch-state")
    begin_run(tmp_path / "later")
    assert find(None, "last") == here / "fedpatch-state"


def test_named_directory_is_the_only_one_searched(tmp_path):
    run = begin_run(tmp_path / "demo" / "coordinator")
    assert find(tmp_path / "other", run) == tmp_path / "other"
    assert find(tmp_path / "demo", run) == tmp_path / "demo" / "coordinator"  # as `fedpatch demo --out` has it


def test_unknown_run_raises_with_the_places_searched(tmp_path):
    begin_run(tmp_path / "a")
    with pytest.raises(UsageError, match=f"unknown run 'x1999'.*{tmp_path}/a"):
        find(None, "x1999")


def test_damaged_registry_hides_no_run_of_another_directory(tmp_path, here):
    begin_run(tmp_path / "old")
    run = begin_run(tmp_path / "a")
    begin_run(tmp_path / "new")
    begin_run(here / "fedpatch-state")
    for place in (tmp_path / "old", tmp_path / "new", here / "fedpatch-state"):
        (place / REGISTRY_FILE).write_text("my diary, " * 1000)
    assert find(None, run) == tmp_path / "a"
    with pytest.raises(UsageError, match=f"searched: {tmp_path}/a; cannot be read: .*{tmp_path}/old"):
        find(None, "x1999")


def test_ambiguous_id_prefix_raises(tmp_path, here):
    runs = [begin_run(here / "fedpatch-state"), begin_run(tmp_path / "a")]
    with pytest.raises(UsageError, match=rf"'1970' could be any of {runs[0]} in .*, {runs[1]} in .*; write more"):
        find(None, "1970")
    assert [find(None, run[:-1]) for run in runs] == [find(None, run) for run in runs]
    with pytest.raises(UsageError, match="unknown run ''"):
        find(None, "")


def test_last_run_is_resumed_in_the_current_directory_only(tmp_path, here):
    elsewhere = begin_run(tmp_path / "a")
    with pytest.raises(UsageError, match=f"no runs in {here}/fedpatch-state.*resume last --state-dir {tmp_path}/a`"):
        find_to_resume(None, "last")
    assert find_to_resume(None, elsewhere) == find_to_resume(tmp_path / "a", "last") == tmp_path / "a"
    begin_run(here / "fedpatch-state")
    assert find_to_resume(None, "last") == here / "fedpatch-state"


def test_noted_directories_that_are_gone_are_skipped(tmp_path, here):
    remember(tmp_path / "gone")
    assert find(None) == here / "fedpatch-state"


@pytest.mark.parametrize("home", ["unwritable", "none"])
def test_unwritable_or_missing_home_loses_the_note_only(tmp_path, monkeypatch, home):
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    if home == "none":
        monkeypatch.delenv("XDG_STATE_HOME")
        monkeypatch.setattr("fedpatch.coordinator.storage.state_dirs.Path.home", homeless)
    remember(tmp_path / "a")


def test_noted_directories_that_are_gone_make_room(tmp_path):
    run = begin_run(tmp_path / "study")
    for index in range(2 * MAX_NOTED):
        remember(tmp_path / str(index))
    assert find(None, run) == tmp_path / "study"
    assert len((tmp_path / "home" / "fedpatch" / "state-dirs").read_text().splitlines()) == MAX_NOTED


def test_noted_directory_of_another_user_is_left_out(tmp_path):
    theirs = begin_run(tmp_path / "theirs")
    begin_run(tmp_path / "own")
    begin_run(tmp_path / "theirs")
    try:
        os.chown(tmp_path / "theirs", os.getuid() + 1, -1)
    except PermissionError:
        pytest.skip("only root can give a directory to another user")
    assert find(None) == tmp_path / "own"
    with pytest.raises(UsageError, match="unknown run"):
        find(None, theirs)
