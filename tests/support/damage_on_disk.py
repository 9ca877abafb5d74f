"""Damage to what is on a disk, as a failing SD card does it."""

from __future__ import annotations

from pathlib import Path


def flip_bit(path: Path, at: int = -1) -> None:
    """Turn one bit of a file over, whatever stands there: another byte written over it may be the same one."""
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)
