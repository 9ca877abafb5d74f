"""The request to stop a run after its open round: the file, and refused requests."""

from __future__ import annotations

import pytest

from fedpatch.coordinator.guard.stop_request import STOP_FILE, StopRequest, forget_stop, request_stop
from fedpatch.coordinator.storage.run_registry import REGISTRY_FILE, Registry
from fedpatch.coordinator.storage.state_dirs import fleet_lock_file
from fedpatch.shared.app.locks import FileLock
from fedpatch.shared.errors import StateError, UsageError
from tests.coordinator.registry_builders import new_run


def test_request_is_seen_once(tmp_path):
    request = StopRequest(tmp_path)
    assert not request.poll()
    (tmp_path / STOP_FILE).touch()
    assert request.poll()
    assert not request.poll()


def test_request_from_before_the_start_is_deleted(tmp_path):
    (tmp_path / STOP_FILE).touch()
    forget_stop(tmp_path)
    assert not StopRequest(tmp_path).poll()


def test_running_run_is_asked_and_the_answer_names_the_resume(tmp_path):
    with Registry(tmp_path / REGISTRY_FILE) as registry:
        run = new_run(registry, settings={"fleet": "lab"}).id
    (tmp_path / "runs" / run).mkdir(parents=True, exist_ok=True)
    with FileLock(fleet_lock_file(tmp_path, "lab"), "held"):
        assert f"fedpatch resume {run}" in request_stop(tmp_path, "last")
    assert (tmp_path / "runs" / run / STOP_FILE).exists()


@pytest.mark.parametrize("killed", [True, False], ids=["killed", "elsewhere"])
def test_run_without_a_coordinator_at_work_here_is_refused(tmp_path, killed):
    with Registry(tmp_path / REGISTRY_FILE) as registry:
        run = new_run(registry, settings={"fleet": "lab"}).id
    (tmp_path / "runs" / run).mkdir(parents=True, exist_ok=True)
    if killed:
        FileLock(fleet_lock_file(tmp_path, "lab"), "held").release()
    with pytest.raises(UsageError, match=f"no coordinator is at work in {tmp_path}, .*`fedpatch resume {run}`"):
        request_stop(tmp_path, run)
    assert not (tmp_path / "runs" / run / STOP_FILE).exists()


def test_run_of_a_hub_in_the_directory_of_a_relay_is_refused(tmp_path):
    """A relay reads no such request: the hub decides how long its run lasts."""
    with Registry(tmp_path / REGISTRY_FILE) as registry:
        run = new_run(registry, settings={"fleet": "site-7", "parent": "world"}).id
    (tmp_path / "runs" / run).mkdir(parents=True, exist_ok=True)
    with (
        FileLock(fleet_lock_file(tmp_path, "site-7"), "held"),
        pytest.raises(UsageError, match=r"is a run of the fleet world, .*--state-dir"),
    ):
        request_stop(tmp_path, run)
    assert not (tmp_path / "runs" / run / STOP_FILE).exists()


def test_run_that_has_ended_is_refused(tmp_path):
    with Registry(tmp_path / REGISTRY_FILE) as registry:
        run = new_run(registry).id
        registry.finish_run(run, stopped_because="failed", user_accuracy=None, model=None)
    with pytest.raises(UsageError, match="is not at work"):
        request_stop(tmp_path, run)


def test_request_that_cannot_be_written_is_a_state_error(tmp_path):
    with Registry(tmp_path / REGISTRY_FILE) as registry:
        run = new_run(registry, settings={"fleet": "lab"}).id
    place = tmp_path / "runs" / run
    for path in sorted(place.rglob("*")):
        path.unlink()
    place.rmdir()
    with FileLock(fleet_lock_file(tmp_path, "lab"), "held"), pytest.raises(StateError):
        request_stop(tmp_path, run)
