"""The local time: whose rules it follows."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from zoneinfo import TZPATH

import pytest

from fedpatch.device_agent.policy.quiet_hours import local_now

WINTER, SUMMER = datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 7, 1, tzinfo=UTC)


def zone_file(name: str) -> Path:
    """As a link at /etc/localtime leads to."""
    found = next((Path(folder) / name for folder in TZPATH if (Path(folder) / name).exists()), None)
    if found is None:
        pytest.skip("no files of time zones here: no tzdata is installed")
    return found


def offsets(local: datetime) -> list[timedelta | None]:
    """Of its zone in winter and in summer."""
    return [moment.astimezone(local.tzinfo).utcoffset() for moment in (WINTER, SUMMER)]


BERLIN = [timedelta(hours=1), timedelta(hours=2)]


def test_the_zone_of_the_system_knows_when_its_clocks_change(monkeypatch):
    """The file is read as it is, whatever it is called."""
    monkeypatch.delenv("TZ", raising=False)
    assert offsets(local_now(zone_file("Europe/Berlin"))) == BERLIN


@pytest.mark.parametrize("prefix", ["", ":"])
def test_the_zone_of_the_environment_wins(monkeypatch, prefix):
    """By name, as the C library takes it."""
    zone_file("Europe/Berlin")
    monkeypatch.setenv("TZ", f"{prefix}Europe/Berlin")
    assert offsets(local_now(Path("/nonexistent"))) == BERLIN


def test_the_environment_may_name_a_file(monkeypatch):
    """With its full path."""
    monkeypatch.setenv("TZ", f":{zone_file('Europe/Berlin')}")
    assert offsets(local_now(Path("/nonexistent"))) == BERLIN


@pytest.mark.parametrize("name", ["", "Nowhere/Atall", "CET-1CEST", "../../etc/passwd"])
def test_without_a_zone_the_offset_of_this_moment_stands_in(monkeypatch, tmp_path, name):
    """No zone, one that does not exist, and a file that holds none: the time is aware, and it is now."""
    (tmp_path / "localtime").write_bytes(b"no zone")
    monkeypatch.setenv("TZ", name)
    local = local_now(tmp_path / "localtime")
    assert local.utcoffset() is not None
    assert abs(datetime.now(UTC) - local) < timedelta(minutes=2)
