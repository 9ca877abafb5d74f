"""The numbered backups of a device in a directory: the name of the next one, and the old ones that are deleted (`--keep`)."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import date


def next_name(names: Iterable[str], device: str, day: date) -> str:
    """Return the name of the next backup in a directory: "pi-1-000012-2026-11-29.backup".

    Numbers order the backups, because the clock of a device may be wrong.
    """
    newest = max((number for number, _ in _numbered(names, device)), default=0)
    return f"{device}-{newest + 1:06}-{day}.backup"


def outdated(names: Iterable[str], device: str, keep: int) -> list[str]:
    """Return the names of the backups of a device that are not among the `keep` newest ones; no other file."""
    found = sorted(_numbered(names, device))
    return [name for _, name in found[: max(0, len(found) - keep)]]


def _numbered(names: Iterable[str], device: str) -> list[tuple[int, str]]:
    form = re.compile(re.escape(device) + r"-([0-9]{6,9})-[0-9]{4}-[0-9]{2}-[0-9]{2}\.backup")
    return [(int(found[1]), name) for name in names if (found := form.fullmatch(name))]
