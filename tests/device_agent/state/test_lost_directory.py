"""An agent at work whose state directory was deleted or replaced, seen from outside."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from fedpatch.device_agent.state.lost_directory import loss_of
from fedpatch.device_agent.state.status_file import StatusFile, lock_state_dir


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "state"


def _write_status(place: Path) -> None:
    StatusFile(place, {"device_id": "pi-1", "fleet": "lab"}).write({"state": "idle"})


def _delete(place: Path) -> None:
    shutil.rmtree(place)


def _replace(place: Path) -> None:
    _delete(place)
    place.mkdir(mode=0o700)


def _move_and_write_again(place: Path) -> None:
    place.rename(place.with_name("moved"))
    place.mkdir(mode=0o700)
    _write_status(place)


@pytest.mark.parametrize("lose", [_delete, _replace, _move_and_write_again])
@pytest.mark.parametrize("linked", [False, True])
def test_agent_of_a_lost_directory_is_named_also_by_a_link_to_it(place, tmp_path, lose: Callable[[Path], None], linked):
    (tmp_path / "link").symlink_to(place)
    with lock_state_dir(place):
        lose(place)
        lost = loss_of(tmp_path / "link" if linked else place)
    assert lost is not None
    assert f"pid {os.getpid()}" in lost[0] and "restart the agent" in lost[1]
    assert loss_of(place) is None


@pytest.mark.parametrize("began_by_link", [False, True])
def test_agent_whose_directory_has_two_names_has_lost_nothing(place, tmp_path, began_by_link):
    """As where systemd links a private state directory, or a folder of /var is on another disk."""
    place.mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(place)
    names = [tmp_path / "link", place]
    with lock_state_dir(names[0 if began_by_link else 1]):
        _write_status(place)
        assert [loss_of(one) for one in names] == [None, None]
