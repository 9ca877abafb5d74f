"""The device's local time, with the rules by which its clocks change."""

from __future__ import annotations

import os
from datetime import UTC, datetime, tzinfo
from pathlib import Path
from zoneinfo import ZoneInfo

LOCALTIME = Path("/etc/localtime")


def local_now(localtime: Path = LOCALTIME) -> datetime:
    """Now, aware. The zone is $TZ or what `localtime` holds; it is read each time, as a device may travel.

    Where neither says it, the offset of this moment stands in, which knows of no changes.
    """
    zone = _zone(os.environ.get("TZ", "").removeprefix(":"), localtime)
    return datetime.now(UTC).astimezone(zone)


def _zone(name: str, localtime: Path) -> tzinfo | None:
    try:
        if name and not name.startswith("/"):
            return ZoneInfo(name)
        with Path(name or localtime).open("rb") as file:
            return ZoneInfo.from_file(file)
    except (OSError, ValueError, KeyError):  # no such zone, or a rule such as CET-1CEST, which only the C library reads
        return None
