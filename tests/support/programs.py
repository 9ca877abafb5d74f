"""Runs a command of fedpatch, as its entry point would, and installs distributions that it can find."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest


@dataclass(frozen=True)
class Ended:
    """The exit code and the output of a program."""

    code: int
    out: str
    err: str


class Program:
    """A command line, in this process."""

    def __init__(
        self, main: Callable[[], object], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        self._main = main
        self._monkeypatch = monkeypatch
        self._capsys = capsys

    def __call__(self, *argv: object) -> Ended:
        """Run it with these arguments, to its end."""
        self._capsys.readouterr()
        self._monkeypatch.setattr("sys.argv", ["program", *map(str, argv)])
        with pytest.raises(SystemExit) as end:
            self._main()
        written = self._capsys.readouterr()
        assert isinstance(end.value.code, int)
        return Ended(end.value.code, written.out, written.err)


def agent_leaves(expression: str, *argv: object) -> str:
    """Return the value of an expression, printed by a new process after it ran `fedpatch-agent` with these arguments."""
    program = (
        "import sys; from fedpatch.device_agent.cli import main as cli\n"
        f"sys.argv = {['fedpatch-agent', *map(str, argv)]}\n"
        "try: cli.main()\n"
        f"finally: print({expression})"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return done.stdout.splitlines()[-1]


def install(entry_points: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Install a distribution with these entry points, whose modules are in `tmp_path`."""
    info = tmp_path / "lamp-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: lamp\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(entry_points)
    monkeypatch.syspath_prepend(str(tmp_path))
