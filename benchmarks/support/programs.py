"""Contestants that are programs of their own: each runs rounds for every line that it receives.

The program prints a line of JSON when it has warmed up. For each line on stdin it does its work and answers with one line of
JSON. It ends when stdin ends. Lines that are not JSON are output of its libraries, and are skipped.
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
    """Return the commit of a checkout of another program. Raises UsageError if the folder is not a git checkout."""
    head = ["git", "-C", str(folder), "rev-parse", "--verify", "HEAD"]
    done = subprocess.run(head, capture_output=True, text=True, check=False)  # nosec B603
    if done.returncode != 0:
        raise UsageError(f"{folder}: no checkout of git ({' '.join(done.stderr.split())}); clone the program with git")
    return done.stdout.strip()


class Program:
    """A program: `line` is its command in this repository, `what` its name in messages, `remedy` the hint of an error."""

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
        """Process id of the program, without children."""
        return self._program.pid

    def ask(self, line: str = "") -> Any:
        """Send a line; return the answer."""
        assert self._program.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # the missing answer is reported by `answer`
            self._program.stdin.write(f"{line}\n")
            self._program.stdin.flush()
        return self.answer()

    def pids(self) -> list[int]:
        """Return the program and its descendants."""
        return family(self._program.pid)

    def close(self) -> None:
        """Let the program end; if it does not, kill it and its descendants."""
        assert self._program.stdin is not None and self._program.stdout is not None
        started = self.pids()
        with contextlib.suppress(BrokenPipeError):
            self._program.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._program.wait(LEAVE_S)
        for pid in set(started) & set(family(os.getpid())):  # never a new process that has the id of an ended one
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._program.wait()
        self._program.stdout.close()
        self._log.close()

    def answer(self) -> Any:
        """Return the next line of JSON. Raises FedpatchError with the program's last line if it has ended."""
        assert self._program.stdout is not None
        for line in self._program.stdout:
            with contextlib.suppress(ValueError):
                return json.loads(line)
        self._log.seek(0)
        last = [line for line in self._log.read().splitlines() if line.strip()][-1:]
        raise FedpatchError(f"{self._what} ended with exit code {self._program.wait()}: {' '.join(last)}{self._remedy}")


def measured_apart(module: str, *arguments: object) -> Any:
    """Run our `module` in a process with one thread, return its JSON. Raises FedpatchError with its last line if it fails."""
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
    """Run a process whose output goes to the file `log`; it is terminated at the end of the block."""
    with log.open("wb") as out:
        process = subprocess.Popen(line, stdout=out, stderr=out, stdin=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.terminate()
        process.wait()
