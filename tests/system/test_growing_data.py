"""Devices whose data change between rounds while their agents run on."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedpatch.coordinator.runtime.start_run import start_run
from tests.device_agent import folder_task
from tests.device_agent.growing_task import REFERENCE
from tests.support.brokers import Mosquitto
from tests.system.fleet import Fleet
from tests.system.views import Silent

pytestmark = [pytest.mark.system, pytest.mark.broker]


class Growing:
    """Two agents, ann and bob, each with a file that has its number of examples."""

    def __init__(self, broker: Mosquitto, folder: Path) -> None:
        self.folder = folder
        self.broker = broker
        self.fleet = Fleet(broker.url, folder / "fleet")
        for device in ("ann", "bob"):
            self.write(device, "20")

    def write(self, device: str, text: str) -> None:
        """Write `text` to the device's file."""
        (self.folder / device).write_text(text)

    def round(self, quorum: float = 1.0) -> tuple[int, int]:
        """Run one round with this quorum; return the number of reporters and the sum of their examples."""
        terms = {"strategy": "fedavg", "learning_rate": 0.1, "rounds": 1, "quorum": quorum, "wait_s": 60}
        settings = self.fleet.settings(self.folder / "state", REFERENCE, **terms)
        (record,) = start_run(settings, Silent()).rounds
        return record.reported, record.num_examples


@pytest.fixture
def growing(mosquitto: Mosquitto, tmp_path: Path) -> Iterator[Growing]:
    growing = Growing(mosquitto, tmp_path)
    with growing.fleet as fleet:
        for device in ("ann", "bob"):
            fleet.start(device, REFERENCE, device, options=["--data-root", str(tmp_path)])
        fleet.wait_ready()
        yield growing


@pytest.mark.medium
def test_new_data_count_in_the_next_round_and_unreadable_data_cost_one_device(growing):
    """20 and 20 examples, then 35 and 20; then ann's file cannot be read, and bob reports alone; then both report again."""
    agents = growing.fleet.agents
    pids = [agent.pid for agent in agents.values()]
    assert growing.round() == (2, 40)
    growing.write("ann", "35")
    assert growing.round() == (2, 55)
    agents["ann"].wait(lambda: agents["ann"].status["tasks"][0]["num_examples"] == 35, "publishes 35 examples")
    growing.write("ann", "36 or")
    assert growing.round(quorum=0.5) == (1, 20)
    agents["ann"].wait(lambda: "toy: '36 or' is no number of examples" in agents["ann"].log, "logs the reason")
    growing.write("ann", "36")
    assert growing.round() == (2, 56)
    assert [agent.pid for agent in agents.values() if agent.running] == pids


@pytest.mark.medium
def test_bad_file_whose_name_is_no_text_is_named_and_costs_no_round(mosquitto, tmp_path):
    """The name is in Latin-1; the file is there at the start for bob, and comes in mid-run for ann."""
    bad = os.fsdecode(b"caf\xe9.csv")
    for device in ("ann", "bob"):
        (tmp_path / device).mkdir()
        (tmp_path / device / "monday.csv").write_text(folder_task.lines(60))
    (tmp_path / "bob" / bad).write_text(folder_task.lines(2, "zz"))
    words = "file left out: .*caf\\?\\.csv, line 2, column state: 'zz' is none of the classes a, b, c"
    with Fleet(mosquitto.url, tmp_path / "fleet") as fleet:
        for device in ("ann", "bob"):
            fleet.start(device, folder_task.REFERENCE, device, options=["--data-root", str(tmp_path)])
        fleet.wait_ready()
        ann, bob = fleet.agents.values()
        assert re.search(words, bob.log) and not re.search(words, ann.log)
        for turn in ("before", "after"):
            terms = {"strategy": "fedavg", "learning_rate": 0.1, "rounds": 1, "quorum": 1.0, "wait_s": 60}
            (record,) = start_run(fleet.settings(tmp_path / turn, folder_task.REFERENCE, **terms), Silent()).rounds
            assert record.reported == 2
            (tmp_path / "ann" / bad).write_text(folder_task.lines(2, "zz"))
        assert re.search(words, ann.log)
        assert "Traceback" not in ann.log + bob.log
