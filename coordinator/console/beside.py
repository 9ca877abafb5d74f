"""A console beside a coordinator: a process of its own, which gets the status of the run through a pipe.

The coordinator never waits for the console: a status that does not fit into the pipe is dropped, and the next status is
complete. The console ends with the pipe, also after a kill of the coordinator. It needs no connection to the broker and no
password.
"""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import IO

from fedpatch.coordinator.console.listen_terms import ConsoleTerms
from fedpatch.coordinator.observability.status_message import StatusMessage, View, timeless
from fedpatch.shared.config.listen_address import Address, parse_address
from fedpatch.shared.errors import UsageError, WireError
from fedpatch.shared.mqtt.events import LinkEvent, Received
from fedpatch.shared.wire.codec import encode
from fedpatch.shared.wire.messages import Envelope
from fedpatch.shared.wire.run_status import RunStatus
from fedpatch.shared.wire.topics import run_status

LEAST_S = 0.2
"""Shortest time between two statuses."""
REPEAT_S = 5.0
_START_S = 60.0
_END_S = 5.0
_MAX_LINE = 1 << 18

NEEDS_EXTRA = "the console needs the package {}, which is not installed; pip install 'fedpatch[console]'"


class StatusPipe:
    """Writes statuses as lines to a pipe without ever waiting for its reader.

    Args:
        fd: The writing end; it becomes non-blocking.
        task: Name of the task, for the envelope.
        clock: Monotonic seconds.
    """

    def __init__(self, fd: int, task: str, clock: Callable[[], float] = time.monotonic) -> None:
        os.set_blocking(fd, False)
        self._fd, self._clock = fd, clock
        self._task = task
        self._rest = b""
        self._last: tuple[str, int, RunStatus | None] = ("", -1, None)
        self._at = float("-inf")
        self._broken = False

    def write(self, message: StatusMessage) -> None:
        """Write a status if it is new, or unchanged for REPEAT_S; drop it while an earlier one is not yet written."""
        now = self._clock()
        if self._broken or now < self._at + LEAST_S:
            return
        key = (message.run, message.round, timeless(message.status))
        if not self._rest and (key != self._last or now >= self._at + REPEAT_S):
            envelope = Envelope(body=message.status, task=self._task, run=message.run, round=message.round)
            with suppress(WireError):
                self._rest = base64.b64encode(encode(envelope)) + b"\n"
                self._last, self._at = key, now
        self._flush()

    def _flush(self) -> None:
        try:
            while self._rest:
                self._rest = self._rest[os.write(self._fd, self._rest) :]
        except BlockingIOError:
            return
        except OSError:
            self._broken, self._rest = True, b""


class PipedView:
    """A view that also writes each status to a pipe."""

    def __init__(self, view: View, pipe: StatusPipe) -> None:
        self._view, self._pipe = view, pipe

    def show(self, message: StatusMessage) -> None:
        """Show the status and write it to the pipe."""
        self._view.show(message)
        self._pipe.write(message)

    def say(self, line: str) -> None:
        """Print a line of text."""
        self._view.say(line)


def events_of(pipe: IO[bytes], fleet: str) -> Iterator[LinkEvent]:
    """Yield the statuses in a pipe as if the broker had sent them, until it ends."""
    while line := pipe.readline(_MAX_LINE):
        with suppress(ValueError):
            yield Received(run_status(fleet), base64.b64decode(line, validate=False), retained=False)


def local_address(text: str) -> Address:
    """Return the address of a console beside a coordinator. Raises UsageError where it is not on this machine."""
    address = parse_address(text)
    if not ConsoleTerms(listen=address).local:
        raise UsageError(
            f"--console {address} is reached from other machines; this console is for this machine: use 127.0.0.1, or start "
            "`fedpatch console` with --tls-cert and --token-file"
        )
    return address


def need_extra() -> None:
    """Raise UsageError if the packages of the console are not installed."""
    for package in ("uvicorn", "starlette", "jinja2"):
        if find_spec(package) is None:
            raise UsageError(NEEDS_EXTRA.format(package))


@contextmanager
def console_beside(view: View, address: Address, state_dir: Path, fleet: str, task: str) -> Iterator[View]:
    """Start a read-only console for a coordinator; yield the view that feeds it. It ends with the block.

    Args:
        view: The view of the run.
        address: Address on this machine.
        state_dir: The state directory of the run, which may not exist yet.

    Raises:
        UsageError: The extra is not installed, or the address is in use.
    """
    need_extra()
    command = [sys.executable, "-m", "fedpatch", "console", "--listen", str(address), "--state-dir", str(state_dir)]
    command += ["--fleet", fleet, "--status-on-stdin", "--json"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
    assert process.stdin is not None and process.stdout is not None
    try:
        line = process.stdout.readline()
        if not line:
            raise UsageError(f"the console at {address} did not start (exit code {process.wait(_START_S)})")
        view.say(f"console: {json.loads(line)['url']}")
        yield PipedView(view, StatusPipe(process.stdin.fileno(), task))
    finally:
        process.stdin.close()
        process.stdout.close()
        try:
            process.wait(_END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
