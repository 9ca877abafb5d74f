"""Clocks that are years off: a Pi has no battery clock, so its time is arbitrary until it is set.

No message has a point in time, and no wait depends on the wall clock.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.brokers import Mosquitto
from tests.system.fleet import Fleet
from tests.system.stage import Stage, assert_complete

LIBRARIES = sorted(Path("/usr/lib").glob("**/libfaketime.so.1"))

pytestmark = [
    pytest.mark.system,
    pytest.mark.broker,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not LIBRARIES, reason="libfaketime is missing; install Debian's package faketime"),
]


@contextmanager
def clock(offset: str) -> Iterator[None]:
    """Processes started within the `with` have a wall clock shifted by `offset`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LD_PRELOAD", str(LIBRARIES[0]))
        patch.setenv("FAKETIME", offset)
        patch.setenv("FAKETIME_DONT_FAKE_MONOTONIC", "1")
        yield


@pytest.mark.parametrize(
    ("ann", "bob", "coordinator"),
    [
        pytest.param("-10y", "+15y", "+0", id="devices"),
        pytest.param("+0", "+0", "-20y", id="coordinator", marks=pytest.mark.faults),
    ],
)
def test_run_with_clocks_years_off_is_complete(
    mosquitto: Mosquitto, tmp_path: Path, ann: str, bob: str, coordinator: str
):
    with Fleet(mosquitto.url, tmp_path) as fleet:
        stage = Stage(mosquitto, fleet, tmp_path)
        stage.start_agents()
        for device, offset in (("ann", ann), ("bob", bob)):
            fleet.agents[device].kill()
            with clock(offset):
                fleet.agents[device].start()
        fleet.wait_ready()
        with clock(coordinator), stage.begin() as command:
            done = command.done()
        assert_complete(stage, done)
        assert all(0 <= sum(one["phase_seconds"].values()) < 300 for one in done.document["rounds"])
