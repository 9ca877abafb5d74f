"""Damage to files on a disk, as by a failing SD card."""

from __future__ import annotations

from pathlib import Path


def flip_bit(path: Path, at: int = -1) -> None:
    """Flip one bit of a file, which always changes the file; an overwritten byte may have the same value."""
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)
