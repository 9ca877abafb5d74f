"""Shared parts of system tests: a stage whose agents are not started yet, and the agents' logs in reports of failed tests."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from tests.support.brokers import Mosquitto
from tests.system.fleet import Fleet, open_fleets
from tests.system.stage import Stage

_LAST_LINES = 40


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the agents' logs to the report."""
    report = yield
    if report.failed:
        for fleet in open_fleets:
            for device, log in fleet.logs():
                report.sections.append((f"log of agent {device}", "\n".join(log.splitlines()[-_LAST_LINES:])))
    return report


@pytest.fixture
def stage(mosquitto: Mosquitto, tmp_path: Path) -> Iterator[Stage]:
    """A stage on which only the broker runs yet."""
    with Fleet(mosquitto.url, tmp_path) as fleet:
        yield Stage(mosquitto, fleet, tmp_path)
