"""Notifications to systemd: readiness, status, the watchdog, and the variables of the environment."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedpatch.device_agent.runtime.systemd_notify import ServiceManager


class Listener:
    """systemd's end of the socket."""

    def __init__(self, address: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(address)
        self._socket.setblocking(False)

    def received(self) -> list[str]:
        messages = []
        while True:
            try:
                messages.append(self._socket.recv(4096).decode())
            except BlockingIOError:
                return messages

    def close(self) -> None:
        self._socket.close()


@pytest.fixture(params=["path", "abstract"])
def listening(request, socket_folder: Path) -> Iterator[tuple[str, Listener]]:
    """An address as in $NOTIFY_SOCKET, and the listener there."""
    name = str(socket_folder / "notify") if request.param == "path" else f"@fedpatch-{os.getpid()}-{socket_folder.name}"
    listener = Listener(name.replace("@", "\0"))
    yield name, listener
    listener.close()


def test_ready_is_sent_once_and_status_at_each_change(listening):
    address, listener = listening
    manager = ServiceManager(address)
    for now, doing in enumerate(["loading", "idle", "idle", "training"]):
        manager.doing(doing, float(now))
        manager.tick(float(now))
    manager.stopping()
    assert listener.received() == [
        "READY=1\nSTATUS=loading",
        "STATUS=idle",
        "STATUS=training",
        "STOPPING=1\nSTATUS=stopping",
    ]


def test_watchdog_is_notified_twice_per_interval(listening):
    address, listener = listening
    manager = ServiceManager(address, watchdog_s=60.0)
    assert manager.next_deadline() is None
    manager.doing("idle", 100.0)
    assert manager.next_deadline() == 130.0
    for now in (101.0, 129.9, 130.0, 131.0, 160.0):
        manager.tick(now)
    assert listener.received() == ["READY=1\nSTATUS=idle", "WATCHDOG=1", "WATCHDOG=1"]


def test_a_line_end_in_a_status_is_no_message_of_its_own(listening):
    address, listener = listening
    ServiceManager(address).doing("round 1 of run a\nSTOPPING=1", 0.0)
    assert listener.received() == ["READY=1\nSTATUS=round 1 of run a STOPPING=1"]


def test_the_variables_are_taken_from_the_environment(tmp_path):
    environ = {
        "NOTIFY_SOCKET": str(tmp_path / "n"),
        "WATCHDOG_USEC": "4000000",
        "WATCHDOG_PID": str(os.getpid()),
        "X": "",
    }
    manager = ServiceManager.from_environment(environ)
    manager.doing("idle", 0.0)  # no listener there, which is no error
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
    manager = ServiceManager.from_environment(environ)
    manager.doing("idle", 0.0)
    assert manager.next_deadline() is None
