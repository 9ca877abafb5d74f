"""One end is cut off in each phase of a round, and reconnected later: the run continues, and its models match its records.

The suite runs each phase once, in one of the three tests. `make faults` runs every phase in every test.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.faults.lab import ON_HOSTS, Cut, Lab
from tests.faults.netem import LineTerms
from tests.faults.scene import NAMES, PATIENT, Scene, make_as_new
from tests.faults.verdict import judge
from tests.faults.watch import Happening, Seen, Watch
from tests.support.brokers import Mosquitto
from tests.system.commands import Command
from tests.system.fleet import AgentProcess, Fleet

pytestmark = ON_HOSTS

DEVICES = NAMES[:3]
VICTIM = "ann"
CUTS = (Cut.SILENT, Cut.CABLE)
# Slow enough that a model is in flight for a second, and that a cut can still stop a message that was just sent.
LINE = LineTerms(delay_s=0.1, rate_bit_s=4e5)
# A round does not wait long for an absent device. An answer takes two seconds over such a line, more if the machine stalls.
LEAVING = {**PATIENT, "rejoin_s": 1, "grace_s": 1, "recruit_deadline_s": 10}
UPLOADS_S = 0.3
"""After this time an upload is in its middle."""
PHASES: Mapping[str, tuple[str, ...]] = {
    "recruit": ("idle",),
    "download": ("downloading",),
    "training": ("training",),
    "upload": ("uploading",),
    "committed": ("uploading",),
    "aggregate": ("idle", "uploading"),
}
"""States of the device in the middle of each phase of its round."""
EVERY_PHASE = "FAULT_SEEDS" in os.environ
"""`make faults` sets FAULT_SEEDS."""
_PORT = 1883
_POLL_S = 0.005
_SETTLING_S = 0.5


@dataclass(frozen=True)
class Town:
    """A lab with a broker and ready agents."""

    lab: Lab
    fleet: Fleet

    def has_reached(self, phase: str, number: int, happened: Collection[Seen]) -> bool:
        """Return whether round `number` has reached or passed a phase, as observed at the device."""
        moments = {
            "recruit": Seen(Happening.SAVED, number - 1),
            "training": Seen(Happening.TRAINING, number, VICTIM),
            "upload": Seen(Happening.TRAINED, number, VICTIM),
            "committed": Seen(Happening.STORED, number, VICTIM),
            "aggregate": Seen(Happening.SAVED, number),
        }
        # A phase may be shorter than a poll: an update that closes its round disappears from the spool at once.
        later = list(PHASES)[list(PHASES).index(phase) :]
        if any(moments[one] in happened for one in later if one in moments):
            return True
        status = self.fleet.agents[VICTIM].status
        return phase == "download" and (status.get("state"), status.get("round")) == ("downloading", number)


@pytest.fixture(scope="module")
def town(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Town]:
    """A town whose agents serve one run after the other."""
    directory = tmp_path_factory.mktemp("town")
    with Lab(["broker", "coordinator", *DEVICES], seed=11) as lab, ExitStack() as stack:
        with lab.inside("broker"):
            stack.enter_context(Mosquitto(f"listener {_PORT} {lab.address('broker')}"))
        fleet = stack.enter_context(Fleet(f"mqtt://{lab.address('broker')}:{_PORT}", directory))
        scene = Scene(fleet, directory, DEVICES)
        for device in DEVICES:
            with lab.inside(device):
                scene.start_agent(device, pause_ms=60)
        fleet.wait_ready()
        for host in ("coordinator", *DEVICES):
            lab.shape(host, LINE)
        yield Town(lab, fleet)


@pytest.fixture
def scene(town: Town, tmp_path: Path) -> Scene:
    make_as_new(town.fleet, on=town.lab.inside)
    return Scene(town.fleet, tmp_path, DEVICES)


@pytest.mark.parametrize("phase", list(PHASES) if EVERY_PHASE else list(PHASES)[0::3])
def test_device_cut_off_and_back_in_time_takes_part(town: Town, scene: Scene, phase: str):
    document, problems = _play(town, scene, VICTIM, phase, PATIENT, for_s=3.0)
    assert problems == []
    assert [one["reported"] for one in document["rounds"]] == [len(DEVICES)] * len(CUTS)


@pytest.mark.parametrize("phase", list(PHASES) if EVERY_PHASE else list(PHASES)[1::3])
def test_device_cut_off_for_longer_holds_nobody_up(town: Town, scene: Scene, phase: str):
    document, problems = _play(
        town, scene, VICTIM, phase, LEAVING, for_s=5.0, to_the_end=True, cuts=[Cut.SILENT], more_rounds=2
    )
    assert problems == []
    assert all(one["outcome"] == "aggregated" for one in document["rounds"])


@pytest.mark.parametrize("phase", list(PHASES) if EVERY_PHASE else list(PHASES)[2::3])
def test_coordinator_cut_off_loses_no_device(town: Town, scene: Scene, phase: str):
    document, problems = _play(town, scene, "coordinator", phase, PATIENT, for_s=3.0)
    assert problems == []
    assert [one["reported"] for one in document["rounds"]] == [len(DEVICES)] * len(CUTS)


def test_round_ends_by_its_deadline_without_a_connection(town: Town, scene: Scene):
    terms = {**LEAVING, "deadline_s": 15}
    document, problems = _play(
        town, scene, "coordinator", "download", terms, for_s=18.0, cuts=[Cut.SILENT], more_rounds=3
    )
    assert problems == []
    outcomes = [one["outcome"] for one in document["rounds"]]
    assert (outcomes[0], outcomes[-1]) == ("failed", "aggregated")


def _play(
    town: Town,
    scene: Scene,
    host: str,
    phase: str,
    terms: Mapping[str, float],
    *,
    for_s: float,
    to_the_end: bool = False,
    cuts: Sequence[Cut] = CUTS,
    more_rounds: int = 0,
) -> tuple[Any, list[str]]:
    """Run with `host` cut off in each of the first rounds; return the printed document and the problems.

    A cut lasts for `for_s`, and with `to_the_end` at least until its round ends.
    """
    watch, rounds = Watch(scene), len(cuts) + more_rounds
    with town.lab.inside("coordinator"), scene.begin(rounds, terms) as coordinator:
        try:
            for number, how in enumerate(cuts, 1):
                _wait_for(town, watch, coordinator, phase, number)
                town.lab.cut(host, how)
                _go_on(watch, coordinator, for_s)
                while to_the_end and coordinator.running and not _is_saved(watch, number):
                    _go_on(watch, coordinator, _POLL_S)
                town.lab.heal(host)
            while coordinator.running:
                _go_on(watch, coordinator, _POLL_S)
            done = coordinator.done()
            assert done.code == 0, done.err
        finally:
            town.lab.heal(host)
    for agent in town.fleet.agents.values():
        agent.wait(partial(_has_settled, agent), "has received the end")
    watch.poll()
    return done.document, judge(scene, watch, done.document, rounds, terms)


def _is_saved(watch: Watch, number: int) -> bool:
    return any(seen.what is Happening.SAVED and seen.round >= number for seen in watch.happened)


def _has_settled(agent: AgentProcess) -> bool:
    return agent.status.get("state") in ("idle", "uploading")


def _wait_for(town: Town, watch: Watch, coordinator: Command, phase: str, number: int) -> None:
    def has_come() -> bool:
        watch.poll()
        return town.has_reached(phase, number, watch.happened)

    coordinator.wait(has_come, f"has come to the phase {phase} of round {number}")
    if phase == "upload":
        _go_on(watch, coordinator, UPLOADS_S)
    # An agent writes its status right after it has begun a phase; if it was quicker than this poll, the cut comes later.
    until = time.monotonic() + _SETTLING_S
    while town.fleet.agents[VICTIM].status.get("state") not in PHASES[phase] and time.monotonic() < until:
        _go_on(watch, coordinator, _POLL_S)


def _go_on(watch: Watch, coordinator: Command, for_s: float) -> None:
    until = time.monotonic() + for_s
    while coordinator.running and time.monotonic() < until:
        watch.poll()
        time.sleep(_POLL_S)
