"""The least fleet there is: one booted host that is broker, coordinator, monitoring host and device, in a few minutes."""

from __future__ import annotations

import time

import pytest

from tests.hosts import bases
from tests.hosts.bases import BOOKWORM
from tests.hosts.conftest import HUB, PACKAGES, groups, settings
from tests.hosts.control import Control
from tests.hosts.looking import runs_of
from tests.hosts.machines import Machines
from tests.hosts.wheelhouses import require_small_libraries, wheelhouse

pytestmark = [pytest.mark.hosts, pytest.mark.system, pytest.mark.slow, pytest.mark.timeout(1800)]

PATIENCE_S = 300.0


def test_one_play_makes_a_bare_host_a_fleet_that_trains_and_a_second_changes_nothing():
    """Bare Debian, one site.yml over ssh, a run by systemd's services until its target; then site.yml finds nothing to do."""
    bases.require_tools(BOOKWORM)
    require_small_libraries()
    packages = bases.packages(BOOKWORM, PACKAGES)
    house = wheelhouse(BOOKWORM, or_skip=True)
    with Machines({HUB: BOOKWORM}) as machines:
        control = Control(machines, machines.folder / "control")
        control.settings = {**settings(control, house), "fleet_package_archives": {BOOKWORM.suite: str(packages)}}
        control.groups = groups(HUB)
        control.play("site.yml")
        give_up_at = time.monotonic() + PATIENCE_S
        while not (found := runs_of(machines, HUB)) or found[0]["status"] == "running":
            assert time.monotonic() < give_up_at, machines.ssh(HUB, "journalctl --no-pager -n 80 -u 'fedpatch-*'")
            time.sleep(0.5)
        ended = (found[0]["status"], found[0]["stopped_because"])
        assert ended == ("finished", "target_ua"), machines.ssh(HUB, "journalctl --no-pager -n 80 -u 'fedpatch-*'")
        again = control.play("site.yml")
        assert set(again.changed.values()) == {0}, again.out[-6000:]
