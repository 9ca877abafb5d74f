"""Where runs are looked for."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fedpatch.coordinator.storage.run_registry import REGISTRY_FILE, Registry
from fedpatch.coordinator.storage.state_dirs import MAX_NOTED, find, find_to_resume, remember
from fedpatch.shared.errors import UsageError


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
        info = registry.create_run(
            created_at=0.0, task="digits", strategy="fedavg", private="none", settings={}, schema="0" * 64
        )
    return info.id


def test_a_run_is_found_wherever_it_was_begun(tmp_path):
    """Whoever knows a run's id need not know where it is."""
    runs = {begin_run(tmp_path / name): tmp_path / name for name in ("a", "b", "c")}
    assert {run: find(None, run) for run in runs} == runs


def test_without_a_run_the_latest_directory_is_meant(tmp_path):
    """`fedpatch runs` after a demo shows that demo."""
    for name in ("a", "b", "a"):
        begin_run(tmp_path / name)
    assert find(None) == find(None, "last") == tmp_path / "a"


def test_runs_of_the_current_directory_come_first(tmp_path, here):
    """A directory in which runs were begun is its own world."""
    begin_run(here / "fedpatch-state")
    begin_run(tmp_path / "later")
    assert find(None, "last") == here / "fedpatch-state"


def test_a_named_directory_is_the_only_one_searched(tmp_path):
    """Who names a directory means it."""
    run = begin_run(tmp_path / "a")
    assert find(tmp_path / "b", run) == tmp_path / "b"


def test_a_demo_can_be_named_by_its_own_directory(tmp_path):
    """What was given as --out works as --state-dir."""
    run = begin_run(tmp_path / "demo" / "coordinator")
    assert find(tmp_path / "demo", run) == tmp_path / "demo" / "coordinator"


def test_a_run_that_is_nowhere_is_told_with_the_places_searched(tmp_path):
    """The message shows which directory was not thought of."""
    begin_run(tmp_path / "a")
    with pytest.raises(UsageError, match=f"unknown run 'x1999'.*{tmp_path}/a"):
        find(None, "x1999")


def test_a_damaged_registry_hides_no_run_of_another_directory(tmp_path, here):
    """Wherever in the list it stands; where the run is nowhere, it is told which one could not be read."""
    begin_run(tmp_path / "old")
    run = begin_run(tmp_path / "a")
    begin_run(tmp_path / "new")
    begin_run(here / "fedpatch-state")
    for place in (tmp_path / "old", tmp_path / "new", here / "fedpatch-state"):
        (place / REGISTRY_FILE).write_text("my diary, " * 1000)
    assert find(None, run) == tmp_path / "a"
    with pytest.raises(UsageError, match=f"searched: {tmp_path}/a; cannot be read: .*{tmp_path}/old"):
        find(None, "x1999")


def test_the_beginning_of_an_id_must_mean_one_run_in_all_directories(tmp_path, here):
    """Which of several is shown must not depend on where they are; the whole id always does."""
    runs = [begin_run(here / "fedpatch-state"), begin_run(tmp_path / "a")]
    with pytest.raises(UsageError, match=rf"'1970' could be any of {runs[0]} in .*, {runs[1]} in .*; write more"):
        find(None, "1970")
    assert [find(None, run[:-1]) for run in runs] == [find(None, run) for run in runs]
    with pytest.raises(UsageError, match="unknown run ''"):
        find(None, "")


def test_the_last_run_is_resumed_only_where_one_stands(tmp_path, here):
    """Elsewhere it is asked for by its directory or its id, since resuming changes a run."""
    elsewhere = begin_run(tmp_path / "a")
    with pytest.raises(UsageError, match=f"no runs in {here}/fedpatch-state.*resume last --state-dir {tmp_path}/a`"):
        find_to_resume(None, "last")
    assert find_to_resume(None, elsewhere) == find_to_resume(tmp_path / "a", "last") == tmp_path / "a"
    begin_run(here / "fedpatch-state")
    assert find_to_resume(None, "last") == here / "fedpatch-state"


def test_directories_that_are_gone_are_passed_over(tmp_path, here):
    """Notes outlive what they speak of; there is nothing to find then."""
    remember(tmp_path / "gone")
    assert find(None) == here / "fedpatch-state"


def test_a_home_that_cannot_be_written_costs_the_note_only(tmp_path, monkeypatch):
    """A service user without a home can still begin runs."""
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    remember(tmp_path / "a")


def test_the_notes_do_not_grow_for_ever(tmp_path):
    """Thousands of test runs leave a short file."""
    for index in range(MAX_NOTED + 5):
        remember(tmp_path / str(index))
    assert len((tmp_path / "home" / "fedpatch" / "state-dirs").read_text().splitlines()) == MAX_NOTED


def test_what_is_gone_makes_room_for_what_is_still_there(tmp_path):
    """Many temporary directories, begun in since, do not make a run of weeks ago unknown."""
    run = begin_run(tmp_path / "study")
    for index in range(2 * MAX_NOTED):
        remember(tmp_path / str(index))
    assert find(None, run) == tmp_path / "study"


def test_a_user_without_a_home_costs_the_note_only(tmp_path, monkeypatch):
    """As service users are."""
    monkeypatch.delenv("XDG_STATE_HOME")

    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr("fedpatch.coordinator.storage.state_dirs.Path.home", homeless)
    remember(tmp_path / "a")


def test_noted_directory_of_another_user_is_left_out(tmp_path):
    """On a machine that several people use, `fedpatch runs` lists no one else's runs."""
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
