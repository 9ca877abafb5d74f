"""What systemd hears, on a real socket."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedpatch.device_agent.runtime.housekeeping import ServiceManager


class Listener:
    """systemd's end."""

    def __init__(self, address: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(address)
        self._socket.setblocking(False)

    def heard(self) -> list[str]:
        """What came since."""
        messages = []
        while True:
            try:
                messages.append(self._socket.recv(4096).decode())
            except BlockingIOError:
                return messages

    def close(self) -> None:
        """Nobody listens any more."""
        self._socket.close()


@pytest.fixture(params=["path", "abstract"])
def listening(request, socket_folder: Path) -> Iterator[tuple[str, Listener]]:
    """An address as $NOTIFY_SOCKET has it, and who listens there."""
    name = str(socket_folder / "notify") if request.param == "path" else f"@fedpatch-{os.getpid()}-{socket_folder.name}"
    listener = Listener(name.replace("@", "\0"))
    yield name, listener
    listener.close()


def test_ready_is_said_once_and_what_it_does_when_that_changes(listening):
    """In the words of sd_notify(3)."""
    address, listener = listening
    manager = ServiceManager(address)
    for now, doing in enumerate(["loading", "idle", "idle", "training"]):
        manager.doing(doing, float(now))
        manager.tick(float(now))
    manager.stopping()
    assert listener.heard() == [
        "READY=1\nSTATUS=loading",
        "STATUS=idle",
        "STATUS=training",
        "STOPPING=1\nSTATUS=stopping",
    ]


def test_the_watchdog_hears_of_it_twice_as_often_as_it_must(listening):
    """And not before it is due: whoever wakes more often has nothing to say."""
    address, listener = listening
    manager = ServiceManager(address, watchdog_s=60.0)
    assert manager.next_deadline() is None
    manager.doing("idle", 100.0)
    assert manager.next_deadline() == 130.0
    for now in (101.0, 129.9, 130.0, 131.0, 160.0):
        manager.tick(now)
    assert listener.heard() == ["READY=1\nSTATUS=idle", "WATCHDOG=1", "WATCHDOG=1"]


def test_a_line_end_in_a_status_is_no_message_of_its_own(listening):
    """Whatever names a run may have, they cannot stop the service."""
    address, listener = listening
    ServiceManager(address).doing("round 1 of run a\nSTOPPING=1", 0.0)
    assert listener.heard() == ["READY=1\nSTATUS=round 1 of run a STOPPING=1"]


def test_the_variables_are_taken_from_the_environment(tmp_path):
    """They are not handed on: a child must not speak for the service."""
    environ = {
        "NOTIFY_SOCKET": str(tmp_path / "n"),
        "WATCHDOG_USEC": "4000000",
        "WATCHDOG_PID": str(os.getpid()),
        "X": "",
    }
    manager = ServiceManager.from_environment(environ)
    manager.doing("idle", 0.0)  # nobody listens there, which is no reason to fail
    assert manager.next_deadline() == 2.0
    assert environ == {"X": ""}


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"WATCHDOG_USEC": "4000000"},
        {"NOTIFY_SOCKET": "/nowhere", "WATCHDOG_USEC": "4000000", "WATCHDOG_PID": "1"},
        {"NOTIFY_SOCKET": "/nowhere", "WATCHDOG_USEC": "soon"},
    ],
    ids=["nothing", "no socket", "another process's", "no number"],
)
def test_without_a_watchdog_of_ours_there_is_nothing_to_wake_for(environ):
    """An agent that somebody starts by hand sleeps until something happens."""
    manager = ServiceManager.from_environment(environ)
    manager.doing("idle", 0.0)
    assert manager.next_deadline() is None
