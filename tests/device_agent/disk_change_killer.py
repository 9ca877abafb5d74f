"""Simulates a kill before any one change to the disk."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from typing import Any

import pytest

CHANGES = ("chmod", "fchmod", "fsync", "mkdir", "rename", "replace", "rmdir", "symlink", "unlink")


class Killed(BaseException):
    """The process has died: no handler of Exception catches this."""


class Guillotine:
    """Kills before the `fatal`-th change to the disk (0: never) and all later ones: a dead process cleans nothing up."""

    def __init__(self, fatal: int) -> None:
        self.fatal = fatal
        self.changes = 0

    def before(self, real: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap `real`, which changes the disk."""

        def change(*args: Any, **given: Any) -> Any:
            self.changes += 1
            if 0 < self.fatal <= self.changes:
                raise Killed
            return real(*args, **given)

        return change

    def run(self, deed: Callable[[], object]) -> int:
        with pytest.MonkeyPatch.context() as patch, contextlib.suppress(Killed):
            for name in CHANGES:
                patch.setattr(os, name, self.before(getattr(os, name)))
            deed()
        return self.changes
