"""Starts a training process: by its program, or forked by a server that has torch loaded."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, Protocol, cast

_WORD = struct.Struct("!i")


class TrainingProcess(Protocol):
    """The part of subprocess.Popen that the supervisor uses; the three streams are pipes."""

    pid: int
    stdin: BinaryIO
    stdout: BinaryIO
    stderr: BinaryIO
    returncode: int

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end, and return the exit code; subprocess.TimeoutExpired after `timeout` seconds."""

    def kill(self) -> None:
        """End the process with SIGKILL."""


Launch = Callable[[], TrainingProcess]


def start_program() -> TrainingProcess:
    """Start the training process as a program; OSError where the system allows none."""
    # It inherits the blocked signal, so that Ctrl-C cannot end it before it ignores that.
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "fedpatch.device_agent.training.training_process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    return cast(TrainingProcess, process)


def launch_through(fork_server: Path | None) -> Launch:
    """Return the function that starts a training process.

    Args:
        fork_server: Unix socket of a fork server (device_agent.training.fork_server); None starts the program.
    """
    if fork_server is None:
        return start_program

    def start() -> TrainingProcess:
        try:
            return ForkedProcess(fork_server)
        except OSError:  # the server is gone; its reason is in its log
            return start_program()

    return start


class ForkedProcess:
    """A training process that a fork server forked.

    Args:
        fork_server: Unix socket of the server.

    Raises:
        OSError: The server does not answer.
    """

    def __init__(self, fork_server: Path) -> None:
        self.returncode = 0
        self._lock = threading.Lock()
        self._ended = False
        self._connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        pipes = [os.pipe() for _ in range(3)]
        theirs = [pipes[0][0], pipes[1][1], pipes[2][1]]
        ours = [pipes[0][1], pipes[1][0], pipes[2][0]]
        try:
            self._connection.connect(str(fork_server))
            socket.send_fds(self._connection, [b"\0"], theirs)
            self.pid = self._receive()
        except OSError:
            self._connection.close()
            for end in ours:
                os.close(end)
            raise
        finally:
            for end in theirs:
                os.close(end)
        self.stdin = cast(BinaryIO, os.fdopen(ours[0], "wb"))
        self.stdout = cast(BinaryIO, os.fdopen(ours[1], "rb"))
        self.stderr = cast(BinaryIO, os.fdopen(ours[2], "rb"))

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end, and return the exit code; subprocess.TimeoutExpired after `timeout` seconds."""
        with self._lock:
            if not self._ended:
                self._connection.settimeout(timeout)
                try:
                    self.returncode = self._receive()
                except TimeoutError:
                    raise subprocess.TimeoutExpired("training process", timeout or 0.0) from None
                except OSError:
                    self.returncode = -signal.SIGKILL  # the server is gone, and with it the exit code
                self._ended = True
                self._connection.close()
        return self.returncode

    def kill(self) -> None:
        """End the process with SIGKILL."""
        if not self._ended:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)

    def _receive(self) -> int:
        word = self._connection.recv(_WORD.size, socket.MSG_WAITALL)
        if len(word) != _WORD.size:
            raise ConnectionResetError("the fork server closed the connection")
        return int(_WORD.unpack(word)[0])
