"""The paths that a test has synced, in order: what a power cut after the call is sure to leave."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


def record_syncs(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Return a list to which each later fsync or fdatasync adds the path of its file or directory."""
    synced: list[Path] = []

    def noting(name: str) -> None:
        real = getattr(os, name)

        def call(fd: int) -> None:
            synced.append(Path(os.readlink(f"/proc/self/fd/{fd}")))
            real(fd)

        monkeypatch.setattr(os, name, call)

    for name in ("fsync", "fdatasync"):
        noting(name)
    return synced
