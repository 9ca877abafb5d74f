"""Small disks for tests: a separate tmpfs, which can be filled and made read-only; unmounted when its `with` ends."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest


class SmallDisk:
    """A file system at `path`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._filler = path / "filler"

    def fill(self, but_bytes: int = 0) -> None:
        """Fill the disk, except for `but_bytes` (whole pages) of the space that is free now."""
        with suppress(OSError), self._filler.open("ab", buffering=0) as file:
            for size in (2**16, 2**12, 1):
                with suppress(OSError):
                    while file.write(bytes(size)):
                        pass
        if but_bytes:
            os.truncate(self._filler, self._filler.stat().st_size - but_bytes)

    def empty(self) -> None:
        self._filler.unlink()

    def make_readonly(self) -> None:
        """Remount it read-only. Unlike an error of a real disk, this fails while a file is open for writing."""
        _mount("-o", "remount,ro", self.path)

    def make_writable(self) -> None:
        _mount("-o", "remount,rw", self.path)


@contextmanager
def small_disk(path: Path, size: str) -> Iterator[SmallDisk]:
    """A disk of `size` (in mount's notation) at `path`, which is created; skips if this user may not mount."""
    if os.geteuid() != 0:
        pytest.skip("only root may mount a disk")
    path.mkdir(parents=True, exist_ok=True)
    try:
        _mount("-t", "tmpfs", "-o", f"size={size},mode=755", "fedpatch-test", path)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"cannot mount a tmpfs here: {error}")
    try:
        yield SmallDisk(path)
    finally:
        subprocess.run(["umount", "-l", path], check=True)


def _mount(*arguments: str | Path) -> None:
    subprocess.run(["mount", *arguments], check=True, capture_output=True)
