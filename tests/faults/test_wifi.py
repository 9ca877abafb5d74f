"""Rounds over links like those of a house: low rate, high delay, and a loss of one frame in twenty."""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path

from tests.faults.lab import ON_HOSTS, Lab
from tests.faults.netem import WIFI
from tests.faults.scene import NAMES, PATIENT, Scene
from tests.faults.verdict import judge
from tests.faults.watch import Watch
from tests.support.brokers import Mosquitto
from tests.system.fleet import Fleet

pytestmark = ON_HOSTS

ROUNDS = 3
_PORT = 1883


def test_run_over_wifi_equals_one_over_a_cable(tmp_path: Path):
    """Four agents, each on its own link of this kind, take part in every round, and the models are the oracle's."""
    with Lab(["broker", "coordinator", *NAMES], seed=5) as lab, ExitStack() as stack:
        with lab.inside("broker"):
            stack.enter_context(Mosquitto(f"listener {_PORT} {lab.address('broker')}"))
        fleet = stack.enter_context(Fleet(f"mqtt://{lab.address('broker')}:{_PORT}", tmp_path))
        scene = Scene(fleet, tmp_path, NAMES)
        for device in NAMES:
            lab.shape(device, WIFI)
            with lab.inside(device):
                scene.start_agent(device, pause_ms=20)
        watch = Watch(scene)
        coordinator = scene.begin(ROUNDS, PATIENT)
        with lab.inside("coordinator"):
            stack.enter_context(coordinator)
        while coordinator.running:
            watch.poll()
            time.sleep(0.01)
        done = coordinator.done()
        watch.poll()
    assert done.code == 0, done.err
    assert judge(scene, watch, done.document, ROUNDS, PATIENT) == []
    assert sorted(watch.models) == list(range(ROUNDS + 1))
    assert [one["reported"] for one in done.document["rounds"]] == [len(NAMES)] * ROUNDS
