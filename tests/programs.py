"""Runs a command line of ours in this process, as its entry point would."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest


@dataclass(frozen=True)
class Ended:
    """What a program left behind."""

    code: int
    out: str
    err: str


class Program:
    """A command line."""

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
