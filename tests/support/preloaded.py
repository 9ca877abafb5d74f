"""Processes of fedpatch's commands that are forked from one process in which their modules are loaded.

The import of torch and SQLAlchemy takes two seconds of a processor, and a test of whole rounds starts two or three commands.
A forked command runs the same code with the arguments, environment, directory and streams of its own, in a session of its
own, and ends as any Python program does. Tests that measure, trace or wrap a start use `subprocess.Popen`.

    python -m tests.support.preloaded FD     serve requests on a listening Unix socket, until standard input ends
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from tests.support.paths import ROOT

_PRELOADED = (
    "fedpatch.cli",
    "fedpatch.coordinator.demo.devices",
    "fedpatch.coordinator.runtime.run_or_resume",
    "fedpatch.coordinator.runtime.run_preparation",
    "fedpatch.coordinator.storage.run_registry",
    "fedpatch.shared.tasks.torch_model",
    "torch",
)
_WORD = struct.Struct("!i")


def network_namespace() -> int:
    """Return the number of this thread's network namespace."""
    return os.stat("/proc/thread-self/ns/net").st_ino


NAMESPACE = network_namespace()
"""The namespace of the forked commands. A command that a test starts in another one needs a process of its own."""


class PreloadedProcess:
    """A forked command, with the methods of `subprocess.Popen` that tests use.

    Args:
        module: Module of the command, such as `fedpatch`.
        arguments: The command line after the program.
        cwd: Working directory.
        environment: All environment variables.
        stdout: File for standard output.
        stderr: File for standard error.
    """

    def __init__(
        self,
        module: str,
        arguments: Sequence[str],
        *,
        cwd: Path,
        environment: Mapping[str, str],
        stdout: IO[bytes],
        stderr: IO[bytes],
    ) -> None:
        self.returncode: int | None = None
        self._link = socket.socket(socket.AF_UNIX)
        self._link.connect(str(_server()))
        request = {"module": module, "arguments": list(arguments), "cwd": str(cwd), "environment": dict(environment)}
        text = json.dumps(request).encode()
        with open(os.devnull, "rb") as nothing:
            socket.send_fds(self._link, [_WORD.pack(len(text))], [one.fileno() for one in (nothing, stdout, stderr)])
        self._link.sendall(text)
        self.pid: int = _WORD.unpack(_received(self._link, _WORD.size))[0]

    def poll(self) -> int | None:
        """Return the exit code, minus the signal's number for a signal, or None while the command runs."""
        if self.returncode is None and select.select([self._link], [], [], 0)[0]:
            self.returncode = _WORD.unpack(_received(self._link, _WORD.size))[0]
            self._link.close()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit code; subprocess.TimeoutExpired after `timeout` seconds."""
        give_up_at = None if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            left = None if give_up_at is None else give_up_at - time.monotonic()
            if left is not None and left <= 0:
                raise subprocess.TimeoutExpired("a preloaded command", timeout or 0.0)
            select.select([self._link], [], [], left)
        return code

    def send_signal(self, number: int) -> None:
        """Send a signal if the command still runs."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        """Send SIGTERM if the command still runs."""
        self.send_signal(signal.SIGTERM)


@functools.cache
def _server() -> Path:
    """Start the server of this process's tests; return its socket."""
    until_exit = contextlib.ExitStack()
    atexit.register(until_exit.close)
    place = Path(until_exit.enter_context(tempfile.TemporaryDirectory(prefix="fedpatch-preloaded-"))) / "socket"
    listener = until_exit.enter_context(socket.socket(socket.AF_UNIX))
    listener.bind(str(place))
    listener.listen(64)
    command = [sys.executable, "-m", "tests.support.preloaded", str(listener.fileno())]
    server = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, pass_fds=[listener.fileno()])

    def end() -> None:
        assert server.stdin is not None
        server.stdin.close()
        server.wait()

    until_exit.callback(end)
    return place


def _received(link: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = link.recv(size - len(data))
        if not more:
            raise ConnectionError("the server of preloaded commands has ended")
        data += more
    return data


def _serve(listener: socket.socket) -> dict[str, Any] | None:
    """Answer requests until standard input ends; return a request in the process that is to run it."""
    while True:
        ready, _, _ = select.select([listener.fileno(), 0], [], [], 1.0)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        if 0 in ready and not os.read(0, 4096):
            return None
        if listener.fileno() in ready:
            link, _ = listener.accept()
            if os.fork() == 0:
                listener.close()
                return _answer(link)
            link.close()


def _answer(link: socket.socket) -> dict[str, Any]:
    """Fork the command and send its process id and exit code; only the command's process returns from here."""
    head, streams, _, _ = socket.recv_fds(link, _WORD.size, 3)
    request: dict[str, Any] = json.loads(_received(link, _WORD.unpack(head)[0]))
    begun, not_begun = os.pipe()
    pid = os.fork()
    if pid == 0:
        link.close()
        os.setsid()
        for target, stream in enumerate(streams):
            os.dup2(stream, target)
            os.close(stream)
        os.close(begun)
        os.close(not_begun)
        return request
    for stream in (*streams, not_begun):
        os.close(stream)
    os.read(begun, 1)  # a test that kills the process's group needs the group
    link.sendall(_WORD.pack(pid))
    _, status = os.waitpid(pid, 0)
    with contextlib.suppress(OSError):  # the test has ended
        link.sendall(_WORD.pack(os.waitstatus_to_exitcode(status)))
    os._exit(0)


def main() -> None:
    """Load the modules, then serve; in a forked process run the command that was asked for."""
    for module in _PRELOADED:
        importlib.import_module(module)
    gc.collect()
    gc.freeze()
    listener = socket.socket(fileno=int(sys.argv[1]))
    request = _serve(listener)
    if request is None:
        return
    os.environ.clear()
    os.environ.update(request["environment"])
    time.tzset()
    os.chdir(request["cwd"])
    sys.path[0] = request["cwd"]
    sys.argv[1:] = request["arguments"]
    runpy.run_module(request["module"], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
