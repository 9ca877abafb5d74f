"""Processes of a world: which process acts, and the effect of a kill.

Each write to the disk first checks that its process is alive. So a kill may come before any write, and a killed process
writes nothing more, even in its cleanup code.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import Connection

from fedpatch.coordinator.storage.database.transactions import Tables

_WRITES = ("replace", "unlink", "rmdir", "mkdir", "fsync", "pwrite", "truncate")


class Killed(BaseException):
    """The process was killed: its code never catches this."""


class Process:
    """A process that runs until it is killed; `fuse` counts down the remaining writes (None: no limit)."""

    def __init__(self, name: str, booted_at: float) -> None:
        self.name = name
        self.booted_at = booted_at
        self.dead = False
        self.fuse: int | None = None

    def before_write(self) -> None:
        """Raise Killed if the process is dead before this write."""
        if self.fuse is not None and not self.dead:
            self.dead = self.fuse <= 0
            self.fuse -= 1
        if self.dead:
            raise Killed(self.name)


class Turns:
    """Which process acts now; `replaced` is called with the path of each replaced file."""

    def __init__(self, replaced: Callable[[str], None]) -> None:
        self.acting: Process | None = None
        self._replaced = replaced

    @contextmanager
    def of(self, process: Process | None) -> Iterator[None]:
        """Within the `with`, all writes belong to `process`."""
        before, self.acting = self.acting, process
        try:
            yield
        finally:
            self.acting = before

    def watch(self, patch: pytest.MonkeyPatch) -> None:
        """From now on every write first checks the acting process."""
        for name in _WRITES:
            patch.setattr(os, name, self._asked(name, getattr(os, name)))
        real = Tables._change
        turns = self

        def change(tables: Tables, work: Callable[[Connection], Any]) -> Any:
            turns._ask()

            def asked(db: Connection) -> Any:
                done = work(db)
                turns._ask()
                return done

            return real(tables, asked)

        patch.setattr(Tables, "_change", change)

    def _ask(self) -> None:
        if self.acting is not None:
            self.acting.before_write()

    def _asked(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def write(*args: Any, **given: Any) -> Any:
            self._ask()
            done = real(*args, **given)
            if name == "replace":
                self._replaced(str(args[1]))
            return done

        return write
