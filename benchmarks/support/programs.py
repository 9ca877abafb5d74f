"""Contestants that are programs of their own: one runs so many rounds for each line that it is sent.

The program prints a line of JSON when it has warmed up. For each line on stdin it does its work and
answers with one line of JSON. It ends when stdin does. Lines that are not JSON are output of its libraries, and are skipped.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.device.clocks import family
from fedpatch.shared.errors import FedpatchError, UsageError

ROOT = Path(__file__).resolve().parents[2]
LEAVE_S = 20.0


def checkout_commit(folder: Path) -> str:
    """Return the commit of a checkout of another program. Raises UsageError where the folder is no checkout of git."""
    head = ["git", "-C", str(folder), "rev-parse", "--verify", "HEAD"]
    done = subprocess.run(head, capture_output=True, text=True, check=False)  # nosec B603
    if done.returncode != 0:
        raise UsageError(f"{folder}: no checkout of git ({' '.join(done.stderr.split())}); clone the program with git")
    return done.stdout.strip()


class Program:
    """`line` is how it is started, in this repository; `what` is its name for people, `remedy` what helps if it fails."""

    def __init__(self, what: str, line: Sequence[str | Path], *, remedy: str = "") -> None:
        self._what = what
        self._remedy = remedy
        self._log = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115  (closed with the rest)
        self._program = subprocess.Popen(
            line,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)]), "OMP_NUM_THREADS": "1"},
            start_new_session=True,
        )
        try:
            self.hello = self.answer()
        except BaseException:
            self.close()
            raise

    @property
    def pid(self) -> int:
        """Process id of the program itself."""
        return self._program.pid

    def ask(self, line: str = "") -> Any:
        """Sends a line; returns the answer."""
        assert self._program.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # the missing answer is reported below
            self._program.stdin.write(f"{line}\n")
            self._program.stdin.flush()
        return self.answer()

    def pids(self) -> list[int]:
        """The program and its child processes."""
        return family(self._program.pid)

    def close(self) -> None:
        """Let the program end; where it does not, end it and what it started."""
        assert self._program.stdin is not None and self._program.stdout is not None
        started = self.pids()
        with contextlib.suppress(BrokenPipeError):
            self._program.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._program.wait(LEAVE_S)
        for pid in set(started) & set(family(os.getpid())):  # never one that has the number of one that is gone
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._program.wait()
        self._program.stdout.close()
        self._log.close()

    def answer(self) -> Any:
        """The next line of JSON. Raises FedpatchError with the program's last words where it has ended."""
        assert self._program.stdout is not None
        for line in self._program.stdout:
            with contextlib.suppress(ValueError):
                return json.loads(line)
        self._log.seek(0)
        last = [line for line in self._log.read().splitlines() if line.strip()][-1:]
        raise FedpatchError(f"{self._what} ended with exit code {self._program.wait()}: {' '.join(last)}{self._remedy}")


def measured_apart(module: str, *arguments: object) -> Any:
    """Run a module of ours in a process with one thread and return its JSON. FedpatchError with its last line if it fails."""
    call = ["-m", module, *map(str, arguments)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *call], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise FedpatchError(f"{' '.join(call)} failed: {' '.join(done.stderr.splitlines()[-1:])}")
    return json.loads(done.stdout)


def end_of(log: Path) -> str:
    """Return the last 2,000 characters of the output of a program."""
    return log.read_text("utf-8", errors="replace")[-2000:].strip() or "no output"


@contextlib.contextmanager
def running(log: Path, line: Sequence[str]) -> Iterator[subprocess.Popen[bytes]]:
    """A process whose output goes to the file `log`; it is asked to end when the block does."""
    with log.open("wb") as out:
        process = subprocess.Popen(line, stdout=out, stderr=out, stdin=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.terminate()
        process.wait()
