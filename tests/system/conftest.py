"""What system tests have in common: a test that fails shows what the agents wrote."""

from __future__ import annotations

from collections.abc import Generator

import pytest

from tests.system.fleet import open_fleets

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
