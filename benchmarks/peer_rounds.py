"""Other people's simulators as contestants: each is a program in an environment of its own (`make bench-peers`)."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from benchmarks.clocks import family
from shared.errors import FedpatchError

ROOT = Path(__file__).resolve().parent.parent
HOW_TO_GET = "make bench-peers"
LEAVE_S = 20.0


@dataclass(frozen=True)
class Peer:
    """A simulator of somebody else's, and the program that plays rounds in it."""

    name: str
    what: str
    distribution: str
    module: str


PEERS = (
    Peer("pfl", "pfl", "pfl", "benchmarks.peers.pfl_round"),
    Peer("flower", "Flower's simulation", "flwr", "benchmarks.peers.flower_round"),
)


class PeerRounds:
    """A program that plays one round for each line that it is sent (benchmarks.peers.work says how)."""

    def __init__(self, peer: Peer, python: Path, work_folder: Path, processes: int) -> None:
        self._peer = peer
        self._log = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115  (closed with the rest)
        self._program = subprocess.Popen(
            [python, "-m", peer.module, str(work_folder), str(processes)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
            start_new_session=True,
        )
        try:
            self._answer()
        except BaseException:
            self.close()
            raise

    def play(self) -> float | None:
        """The next round; its mean training loss."""
        assert self._program.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # the answer, which does not come, tells why
            self._program.stdin.write("\n")
            self._program.stdin.flush()
        answer = self._answer()
        return None if answer is None else float(answer)

    def pids(self) -> list[int]:
        """The program and whatever it started."""
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

    def _answer(self) -> str | float | None:
        """Lines that are not JSON are somebody's chatter."""
        assert self._program.stdout is not None
        for line in self._program.stdout:
            with contextlib.suppress(ValueError):
                answer: str | float | None = json.loads(line)
                return answer
        self._log.seek(0)
        last = [line for line in self._log.read().splitlines() if line.strip()][-1:]
        raise FedpatchError(
            f"{self._peer.what} ended with exit code {self._program.wait()}: {' '.join(last)}; "
            f"is its environment whole ({HOW_TO_GET})?"
        )


def version(peer: Peer, python: Path) -> str | None:
    """Of the peer in that environment; None where it is not installed there."""
    if not python.exists():
        return None
    code = f"from importlib.metadata import version; print(version({peer.distribution!r}))"
    found = subprocess.run([python, "-c", code], capture_output=True, text=True, check=False)
    return found.stdout.strip() or None
