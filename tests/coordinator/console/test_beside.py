"""A console beside a coordinator: the pipe never blocks the coordinator, and the console ends with the coordinator."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

pytest.importorskip("uvicorn", reason="the console is not installed (pip install 'fedpatch[console]')")

from fedpatch.coordinator.console.beside import LEAST_S, REPEAT_S, StatusPipe, console_beside, events_of
from fedpatch.coordinator.observability.status_message import StatusMessage
from fedpatch.shared.config.listen_address import Address
from fedpatch.shared.errors import UsageError
from fedpatch.shared.mqtt.events import Received
from tests.coordinator.console.consoles import FLEET, filled, served, wait_until
from tests.coordinator.observability.statuses import collecting, fleet


class _View:
    """Records the messages and lines that it is shown."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.shown: list[StatusMessage] = []

    def show(self, message: StatusMessage) -> None:
        self.shown.append(message)

    def say(self, line: str) -> None:
        self.lines.append(line)


def test_status_comes_out_of_the_pipe_as_it_went_in():
    reading, writing = os.pipe()
    now = [0.0]
    pipe = StatusPipe(writing, "digits", clock=lambda: now[0])
    pipe.write(collecting(*fleet(9)))
    pipe.write(collecting(*fleet(8)))  # too early
    now[0] = LEAST_S
    pipe.write(collecting(*fleet(9), elapsed_s=9.0))  # only the time has changed
    now[0] = REPEAT_S
    pipe.write(collecting(*fleet(9)))
    os.close(writing)
    with os.fdopen(reading, "rb") as end:
        assert len([one for one in events_of(end, FLEET) if isinstance(one, Received)]) == 2


def test_full_pipe_drops_statuses_and_waits_for_nobody():
    reading, writing = os.pipe()
    now = [0.0]
    pipe = StatusPipe(writing, "digits", clock=lambda: now[0])
    for number in range(200):
        now[0] += LEAST_S
        pipe.write(collecting(*fleet(50), round=number + 1))
    os.close(writing)
    with os.fdopen(reading, "rb") as end:
        assert 1 <= len(list(events_of(end, FLEET))) < 100


def test_closed_pipe_is_left_alone():
    reading, writing = os.pipe()
    os.close(reading)
    now = [0.0]
    pipe = StatusPipe(writing, "digits", clock=lambda: now[0])
    for _ in range(3):
        now[0] += LEAST_S
        pipe.write(collecting(*fleet(9)))
    os.close(writing)


def _first_event(url: str, name: str) -> dict:
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(f"{url}events", timeout=60) as stream:
        for line in stream:
            if line == f"event: {name}\n".encode():
                found = json.loads(stream.readline().removeprefix(b"data: "))
                if name != "live" or found["status"] is not None:
                    return dict(found)
    raise AssertionError("the stream ended")


@pytest.mark.medium
def test_console_shows_the_status_of_its_coordinator_and_ends_with_it(tmp_path):
    view = _View()
    with (
        filled(tmp_path) as registry,
        console_beside(view, Address("127.0.0.1", 0), tmp_path, FLEET, "digits") as piped,
    ):
        url = view.lines[0].removeprefix("console: ")
        message = collecting(*fleet(9), run=registry.run("last").id)
        piped.show(message)
        piped.say("a line")
        assert _first_event(url, "live")["status"]["round"] == 3
        assert len(_first_event(url, "rounds")["rows"]) == 3
    assert view.shown == [message] and view.lines[1:] == ["a line"]
    with pytest.raises(OSError):
        urllib.request.build_opener(urllib.request.ProxyHandler({})).open(url, timeout=10)


@pytest.mark.medium
def test_console_ends_when_its_coordinator_is_killed(tmp_path):
    program = (
        "import os, pathlib, signal, sys; from fedpatch.coordinator.console import beside;"
        "from fedpatch.shared.config.listen_address import Address;"
        "view = type('View', (), {'say': lambda self, line: print(line, flush=True), 'show': None})();"
        "console = beside.console_beside(view, Address('127.0.0.1', 0), pathlib.Path(sys.argv[1]), 'lab', 'digits');"
        "console.__enter__(); os.kill(os.getpid(), signal.SIGKILL)"
    )
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=False)
    port = int(done.stdout.rpartition(":")[2].strip().rstrip("/"))
    wait_until(lambda: not _listens(port))


def _listens(port: int) -> bool:
    return any(f":{port:04X} " in line and " 0A " in line for line in Path("/proc/net/tcp").read_text().splitlines())


@pytest.mark.medium
def test_console_that_gets_sigterm_before_its_coordinator_ends_without_a_crash(tmp_path):
    command = [sys.executable, "-m", "fedpatch", "console", "--listen", "127.0.0.1:0", "--state-dir", str(tmp_path)]
    command += ["--fleet", FLEET, "--status-on-stdin", "--json"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as console:
        assert console.stdout is not None and console.stderr is not None
        assert console.stdout.readline()
        console.terminate()
        assert "Fatal" not in console.stderr.read()
        assert console.wait() == 0


@pytest.mark.medium
def test_address_in_use_is_a_usage_error_before_the_run(tmp_path):
    with filled(tmp_path), served(tmp_path) as other:
        beside = console_beside(_View(), Address("127.0.0.1", other.port), tmp_path, FLEET, "digits")
        with pytest.raises(UsageError, match="did not start"):
            beside.__enter__()
