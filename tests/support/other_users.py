"""Files of another user, for tests of the messages that name the user."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

NOBODY = 65_534


@contextmanager
def open_directory() -> Iterator[Path]:
    """A directory whose parents are open to every user, unlike tmp_path; skips where this user is not root."""
    if os.geteuid() != 0:
        pytest.skip("only root can act as another user")
    with tempfile.TemporaryDirectory() as directory:
        Path(directory).chmod(0o755)
        yield Path(directory)


@contextmanager
def acting_as_nobody() -> Iterator[None]:
    """Act as a user without rights; import all modules before."""
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)
