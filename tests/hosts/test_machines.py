"""Booted hosts themselves: whatever becomes of the tests, nothing of them stays."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.hosts import bases
from tests.hosts.warden import CGROUPS
from tests.support.paths import ROOT

pytestmark = [pytest.mark.hosts, pytest.mark.slow, pytest.mark.timeout(1800)]

PATIENCE_S = 120.0
PROGRAM = """
import time
from tests.hosts.bases import BOOKWORM
from tests.hosts.machines import Machines
with Machines({"one": BOOKWORM}) as machines:
    print(machines.lab, machines.folder, flush=True)
    time.sleep(3600)
"""


def _left(lab: str, folder: Path) -> list[str]:
    namespaces = subprocess.run(["ip", "netns"], capture_output=True, text=True, check=True).stdout
    left = [line for line in namespaces.splitlines() if line.startswith(lab)]
    left += [str(tree / lab) for tree in CGROUPS if (tree / lab).exists()]
    left += [line for line in Path("/proc/mounts").read_text().splitlines() if lab in line]
    return left + ([str(folder)] if folder.exists() else [])


def test_nothing_is_left_of_hosts_whose_tests_were_killed():
    """After `kill -9` of the process that made them, all of it goes: processes, namespaces, mounts, control groups, files."""
    bases.require_tools()
    bases.base(bases.BOOKWORM)
    with subprocess.Popen([sys.executable, "-c", PROGRAM], cwd=ROOT, stdout=subprocess.PIPE, text=True) as maker:
        assert maker.stdout is not None
        lab, folder = maker.stdout.readline().split()
        assert len(_left(lab, Path(folder))) > 3
        maker.kill()
    give_up_at = time.monotonic() + PATIENCE_S
    while left := _left(lab, Path(folder)):
        assert time.monotonic() < give_up_at, left
        time.sleep(0.2)
