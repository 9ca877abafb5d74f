"""Simulators of other projects as contestants: each is a program in an environment of its own (`make bench-peers`)."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

from benchmarks.support.programs import ROOT, Program

HOW_TO_GET = "make bench-peers"
PEERS_PYTHON = ROOT / ".venv-peers" / "bin" / "python"


@dataclass(frozen=True)
class Peer:
    """Another project's simulator, and the program that runs rounds in it."""

    name: str
    what: str
    distribution: str
    module: str


PEERS = (
    Peer("pfl", "pfl", "pfl", "benchmarks.peers.pfl_round"),
    Peer("flower", "Flower's simulation", "flwr", "benchmarks.peers.flower_round"),
)


class PeerRounds:
    """A program that runs one round for each line that it receives, as benchmarks.peers.work describes."""

    def __init__(self, peer: Peer, python: Path, work_folder: Path, processes: int) -> None:
        line: list[str | Path] = [python, "-m", peer.module, work_folder, str(processes)]
        self._program = Program(peer.what, line, remedy=f"; is its environment whole ({HOW_TO_GET})?")
        self.pids, self.close = self._program.pids, self._program.close

    def play(self) -> float | None:
        """Run the next round; return its mean training loss."""
        answer = self._program.ask()
        return None if answer is None else float(answer)


def version(distribution: str, python: Path) -> str | None:
    """Return the version of a peer in its environment; None if it is not installed."""
    if not python.exists():
        return None
    code = f"from importlib.metadata import version; print(version({distribution!r}))"
    found = subprocess.run([python, "-c", code], capture_output=True, text=True, check=False)
    return found.stdout.strip() or None
