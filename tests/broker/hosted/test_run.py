"""A whole run with light devices at a broker that enforces the limits of a hosted broker."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.device.light_devices import LightDevices
from fedpatch.shared.tasks.bundled import mnist
from tests.broker.hosted.limited_broker import limited_broker
from tests.system.commands import Command

pytestmark = [pytest.mark.broker, pytest.mark.system, pytest.mark.medium, pytest.mark.timeout(600)]

DEVICES = 6


def run_options(url: str, folder: Path, profile: str) -> list[object]:
    """Two rounds in fp32, so that model and updates have several chunks."""
    options = ["--broker", url, "--fleet", "hosted", "--task", "mnist", "--devices", DEVICES, "--rounds", 2]
    options += ["--state-dir", folder / "coordinator", "--broker-profile", profile, "--json", "--encoding", "fp32"]
    options += ["--strategy", "fedavg", "--quorum", 1, "--wait-s", 100, "--recruit-deadline-s", 100, "--grace-s", 100]
    return [*options, "--norm-bound", "off"]


@pytest.mark.parametrize("profile", ["aws", pytest.param("azure", marks=pytest.mark.slow)])
def test_run_under_the_profile_exceeds_no_limit(profile: str, tmp_path: Path):
    fleet = {"fleet": "hosted", "task": mnist.TASK, "count": DEVICES, "processes": 1, "profile": profile}
    with limited_broker(profile) as broker, LightDevices(broker=broker.url, **fleet) as devices:  # type: ignore[arg-type]
        devices.wait_ready()
        with Command("fedpatch", "run", *run_options(broker.url, tmp_path, profile)) as coordinator:
            done = coordinator.done()
        assert done.code == 0, done.err
        assert broker.violations == []
    assert [(one["outcome"], one["reported"]) for one in done.document["rounds"]] == [("aggregated", DEVICES)] * 2


def test_run_without_the_profile_exceeds_limits(tmp_path: Path):
    """The model's chunks are larger than what Azure Event Grid retains."""
    fleet = {"fleet": "hosted", "task": mnist.TASK, "count": DEVICES, "processes": 1}
    with limited_broker("azure") as broker, LightDevices(broker=broker.url, **fleet) as devices:  # type: ignore[arg-type]
        devices.wait_ready()
        with Command("fedpatch", "run", *run_options(broker.url, tmp_path, "none")) as coordinator:
            coordinator.wait(lambda: broker.violations, "exceeds a limit")
