"""The state directory that a command reads."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedpatch.coordinator.storage.run_registry import REGISTRY_FILE, Registry
from fedpatch.coordinator.storage.state_dirs import as_it_is, find, find_to_resume, fleet_lock_file, is_locked_here
from fedpatch.shared.app.locks import FileLock
from fedpatch.shared.errors import StateError, UsageError
from tests.coordinator.registry_builders import new_run


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "here"


@pytest.fixture
def usual(here: Path) -> Path:
    return here / "fedpatch-state"


@pytest.fixture(params=["demo-out", "fedpatch-demo"])
def demo(here: Path, request: pytest.FixtureRequest) -> Path:
    return here / str(request.param) / "coordinator"


def begin_run(state_dir: Path) -> str:
    """Create a run in `state_dir`, and return its id."""
    state_dir.mkdir(parents=True, exist_ok=True)
    with Registry(state_dir / REGISTRY_FILE) as registry:
        return new_run(registry).id


def test_run_of_demo_is_found_beside_runs_of_default_directory(usual, demo):
    runs = {begin_run(place): place for place in (usual, demo)}
    assert {run: find(None, run) for run in runs} == runs


def test_last_run_without_default_directory_is_the_demos(demo):
    begin_run(demo)
    assert find(None) == find(None, "last") == demo


def test_last_run_with_default_directory_is_not_the_demos(usual, demo):
    begin_run(usual)
    begin_run(demo)
    assert find(None, "last") == usual


def test_no_runs_anywhere_gives_default_directory(usual):
    assert find(None) == find(None, "x1999") == usual


def test_named_directory_is_the_only_one_searched(tmp_path, usual):
    run = begin_run(usual)
    assert find(tmp_path / "b", run) == tmp_path / "b"


def test_demo_named_by_its_out_directory_gives_its_state_directory(tmp_path):
    run = begin_run(tmp_path / "demo" / "coordinator")
    assert find(tmp_path / "demo", run) == tmp_path / "demo" / "coordinator"


def test_unknown_run_names_searched_directories(usual, demo):
    begin_run(usual)
    begin_run(demo)
    with pytest.raises(UsageError, match=f"unknown run 'x1999'.*{usual}, {demo}"):
        find(None, "x1999")


def test_damaged_registry_hides_no_run_of_another_directory(usual, demo):
    begin_run(usual)
    (usual / REGISTRY_FILE).write_text("my diary, " * 1000)
    run = begin_run(demo)
    assert find(None, run) == demo


def test_beginning_of_id_that_means_two_runs_is_refused(usual, demo):
    runs = [begin_run(usual), begin_run(demo)]
    with pytest.raises(UsageError, match=rf"'1970' could be any of {runs[0]} in .*, {runs[1]} in .*; write more"):
        find(None, "1970")
    assert [find(None, run[:-1]) for run in runs] == [find(None, run) for run in runs]
    with pytest.raises(UsageError, match="unknown run ''"):
        find(None, "")


def test_last_run_is_resumed_in_default_directory_only(usual, demo):
    of_demo = begin_run(demo)
    with pytest.raises(UsageError, match=f"no runs in {usual}.*name its directory: --state-dir {demo}"):
        find_to_resume(None, "last")
    assert find_to_resume(None, of_demo) == find_to_resume(demo, "last") == demo
    begin_run(usual)
    assert find_to_resume(None, "last") == usual


def test_named_directory_that_cannot_be_read_is_an_error_with_the_remedy(tmp_path, monkeypatch):
    def refuse(place: Path) -> bool:
        raise PermissionError(13, "Permission denied", str(place))

    monkeypatch.setattr("fedpatch.coordinator.storage.state_dirs._has_runs", refuse)
    with pytest.raises(StateError, match="Permission denied; "):
        find(tmp_path)


def test_fleet_is_locked_here_only_while_a_process_has_its_lock(tmp_path):
    assert not is_locked_here(tmp_path, "lab", unreadable=True)
    with FileLock(fleet_lock_file(tmp_path, "lab"), "held"):
        assert is_locked_here(tmp_path, "lab") and not is_locked_here(tmp_path, "other")
    assert not is_locked_here(tmp_path, "lab", unreadable=True)


@pytest.mark.parametrize("unreadable", [True, False])
def test_lock_that_cannot_be_read_has_the_answer_of_the_caller(tmp_path, monkeypatch, unreadable):
    def refuse(path: Path) -> bool:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("fedpatch.coordinator.storage.state_dirs.is_held", refuse)
    assert is_locked_here(tmp_path, "lab", unreadable=unreadable) is unreadable


def test_file_system_without_locks_has_no_fleet_at_work(tmp_path, monkeypatch):
    def refuse(path: Path) -> bool:
        raise StateError(f"{path}: this file system has no locks; use a local disk")

    monkeypatch.setattr("fedpatch.coordinator.storage.state_dirs.is_held", refuse)
    assert not is_locked_here(tmp_path, "lab", unreadable=True)


@pytest.mark.parametrize("is_there", [True, False])
def test_model_of_a_moved_state_directory_has_its_present_path_if_it_is_there(tmp_path, is_there):
    former, now = tmp_path / "former", tmp_path / "now"
    run = begin_run(former)
    model = former / "runs" / run / "model.npz"
    model.parent.mkdir(parents=True, exist_ok=True)
    model.touch()
    with Registry(former / REGISTRY_FILE) as registry:
        registry.finish_run(run, stopped_because="max_rounds", user_accuracy=None, model=str(model))
    former.rename(now)
    moved = now / "runs" / run / "model.npz"
    if not is_there:
        moved.unlink()
    with Registry(now / REGISTRY_FILE, readonly=True) as registry:
        assert as_it_is(registry.run(run), now, registry).model == str(moved if is_there else model)


@pytest.mark.parametrize("model", ["s3://fleet/runs/1/model.npz", ""])
def test_model_elsewhere_or_absent_stays_as_it_is_in_the_registry(tmp_path, model):
    run = begin_run(tmp_path)
    with Registry(tmp_path / REGISTRY_FILE) as registry:
        registry.finish_run(run, stopped_because="max_rounds", user_accuracy=None, model=model)
        assert as_it_is(registry.run(run), tmp_path, registry).model == registry.run(run).model
