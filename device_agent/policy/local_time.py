"""The local time of the device, by which days begin and quiet hours are meant."""

from __future__ import annotations

import os
from datetime import UTC, datetime, tzinfo
from pathlib import Path
from zoneinfo import ZoneInfo

LOCALTIME = Path("/etc/localtime")


def local_now(localtime: Path = LOCALTIME) -> datetime:
    """Return the aware local time. The zone is $TZ or that in `localtime`; each call reads it, as a device may travel.

    If neither names a zone, the present offset is used, without changes to or from summer time.
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
