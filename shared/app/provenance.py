"""Provenance of a measurement: the commit of this code, and the processor."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

_CPU_INFO = Path("/proc/cpuinfo")
_GIT_TIMEOUT_S = 10


def source_commit() -> str | None:
    """Return the commit of this code, with `-dirty` after it where files have changed since.

    Returns:
        The full hash; None where the code is not in a checkout of its own repository, or git is absent.
    """
    folder = Path(__file__).resolve().parent
    # Without this test, a package in a virtual environment would get the commit of the project around it.
    if _git(folder, "ls-files", "--error-unmatch", Path(__file__).name) is None:
        return None
    return _git(folder, "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*")


def processor_name() -> str:
    """Return the processor's model name, or its architecture where the system does not name a model."""
    try:
        lines = _CPU_INFO.read_text("utf-8").splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith(("model name", "Model")))
    return next(named, os.uname().machine)


def _git(folder: Path, *arguments: str) -> str | None:
    """Return git's output without the end of line, or None where git fails."""
    try:
        done = subprocess.run(  # nosec B603 B607
            ["git", "-C", str(folder), *arguments],
            capture_output=True,
            text=True,
            check=False,
            timeout=_GIT_TIMEOUT_S,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
