"""Fixtures of the tests of power cuts."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def disks() -> Iterator[Path]:
    """The folder in which disks are built, in memory if possible."""
    shared = Path("/dev/shm")
    folder = Path(tempfile.mkdtemp(prefix="fedpatch-power-", dir=shared if os.access(shared, os.W_OK) else None))
    yield folder
    shutil.rmtree(folder)
