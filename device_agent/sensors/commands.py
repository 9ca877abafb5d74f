"""Runs another program for its output, limited in time and in bytes; afterwards the program and all its children are ended."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass

from fedpatch.device_agent.sensors.timeouts import FactUnavailable

LIMIT_S = 1.5
_MAX_BYTES = 64 * 1024


@dataclass(frozen=True)
class CommandResult:
    """Result of a program: its exit code and what it printed on stdout."""

    code: int
    text: str


def run_program(argv: Sequence[str], limit_s: float | None = None) -> CommandResult:
    """Run a program without a shell, in the C locale, for LIMIT_S at most; its stderr is dropped. Raises FactUnavailable."""
    limit_s = LIMIT_S if limit_s is None else limit_s
    name = os.path.basename(argv[0])
    try:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "LC_ALL": "C"},
            cwd="/",
            start_new_session=True,
        )
    except (OSError, ValueError) as error:  # ValueError: a null byte in an argument
        why = error.strerror if isinstance(error, OSError) else error
        raise FactUnavailable(f"{name} cannot be run: {why}") from error
    deadline = time.monotonic() + limit_s
    try:
        printed = _read(process, deadline, name)
        code = process.wait(max(0.01, deadline - time.monotonic()))
    except subprocess.TimeoutExpired as error:
        raise FactUnavailable(f"{name} has not ended within {limit_s:g} s") from error
    finally:
        _end(process)
    return CommandResult(code, printed.decode("utf-8", "replace"))


def _read(process: subprocess.Popen[bytes], deadline: float, name: str) -> bytes:
    """Read until the program closes its output."""
    assert process.stdout is not None
    printed = bytearray()
    while True:
        ready, _, _ = select.select([process.stdout], [], [], max(0.0, deadline - time.monotonic()))
        if not ready:
            raise subprocess.TimeoutExpired(name, 0.0)
        piece = os.read(process.stdout.fileno(), _MAX_BYTES)
        if not piece:
            return bytes(printed)
        printed += piece
        if len(printed) > _MAX_BYTES:
            raise FactUnavailable(f"{name} prints more than {_MAX_BYTES // 1024} KiB")


def _end(process: subprocess.Popen[bytes]) -> None:
    """Stop the program and all its children, which share its process group."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    if process.stdout is not None:
        process.stdout.close()
