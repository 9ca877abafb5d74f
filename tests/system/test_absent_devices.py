"""Real agents over a real broker: one device of four is mute; in another test devices need long to load their task."""

from __future__ import annotations

import os
import re
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from fedpatch.shared.mqtt.client import Received
from fedpatch.shared.tasks.torch_model import schema_of
from fedpatch.shared.wire import topics
from fedpatch.shared.wire.codec import decode, encode
from fedpatch.shared.wire.messages import ENCODINGS, Accept, DeviceState, Envelope, TaskCapability, WorkRequest
from tests.support.brokers import Client, Mosquitto, client
from tests.system.fleet import Fleet
from tests.system.held_task import SLOW_START_REFERENCE
from tests.system.oracle_task import REFERENCE, TASK, build_model

pytestmark = [pytest.mark.system, pytest.mark.broker, pytest.mark.timeout(900)]


@contextmanager
def mute(broker: Mosquitto, fleet: str, device: str) -> Iterator[list[int]]:
    """A device that accepts each request once and sends nothing else; yields the accepted rounds."""
    accepted: list[int] = []
    over = threading.Event()
    with client(broker.url, device, topics.down(fleet, device)) as voice:
        state = DeviceState(
            True, "1", tasks=(TaskCapability(TASK.name, schema_of(build_model()).digest, 10),), encodings=ENCODINGS
        )
        voice.settle()
        voice.link.publish(topics.device_state(fleet, device), encode(Envelope(state)), retain=True)
        thread = threading.Thread(target=_accept, args=(voice, fleet, device, accepted, over))
        thread.start()
        try:
            yield accepted
        finally:
            over.set()
            thread.join()


def _accept(voice: Client, fleet: str, device: str, accepted: list[int], over: threading.Event) -> None:
    while not over.is_set():
        try:
            event = voice.wait(Received, lambda event: event.topic == topics.down(fleet, device), patience_s=0.5)
        except TimeoutError:
            continue
        asked = decode(event.payload)
        if isinstance(asked.body, WorkRequest) and asked.round not in accepted:
            accepted.append(asked.round)
            voice.link.publish(topics.up(fleet, device), encode(replace(asked, body=Accept(10))))


@contextmanager
def three_agents(broker: Mosquitto, folder: Path) -> Iterator[Fleet]:
    with Fleet(broker.url, folder / "devices") as fleet:
        for number, device in enumerate(("ann", "bob", "cyd")):
            fleet.start(device, REFERENCE, f"n=20,test=10,seed={number}")
        fleet.wait_ready()
        yield fleet


@pytest.mark.slow
def test_mute_device_among_four_with_default_settings_holds_no_round_for_its_deadline(tmp_path):
    """It costs one round over a minute, the others at most the grace period; it is asked less often, and named absent."""
    with Mosquitto() as broker, three_agents(broker, tmp_path) as fleet:
        coordinator = fleet.coordinator(tmp_path / "c", task=REFERENCE, devices=4, rounds=7)
        with mute(broker, fleet.name, "mute") as accepted, coordinator as run:
            done = run.done(600.0)
    rounds = done.document["rounds"]
    assert done.code == 0
    assert [one["outcome"] for one in rounds] == ["failed", *["aggregated"] * 6]
    assert accepted == [1, 2, 4]
    assert rounds[0]["failures"] == {"silent": 1}
    assert rounds[-1]["absent"] == {"mute": 3}
    assert rounds[0]["deadline_s"] == 600.0
    for one in rounds:
        assert sum(one["phase_seconds"].values()) < one["deadline_s"] / 2
    assert rounds[-1]["deadline_s"] < 600.0
    assert "absent: mute (3 in a row)" in done.err


@pytest.mark.slow
def test_agent_that_is_stopped_between_two_rounds_costs_one_round_and_is_named(tmp_path):
    """Its connection stays open, so that the broker shows it as online, as with one that a router has forgotten."""
    with Mosquitto() as broker, three_agents(broker, tmp_path) as fleet:
        terms = {"devices": 3, "rounds": 5, "round_interval_s": 3, "recruit_deadline_s": 3}
        with fleet.coordinator(tmp_path / "c", task=REFERENCE, **terms) as run:
            run.wait(lambda: "round 1/5" in run.err, "plays a round")
            os.kill(fleet.agents["cyd"].pid, signal.SIGSTOP)
            try:
                done = run.done()
            finally:
                os.kill(fleet.agents["cyd"].pid, signal.SIGCONT)
    assert done.code == 0, done.err
    rounds = done.document["rounds"]
    assert [one["outcome"] for one in rounds] == ["aggregated", "failed", *["aggregated"] * 3]
    assert [one["reported"] for one in rounds[2:]] == [2] * 3
    assert "cyd" in rounds[1]["absent"]
    assert "shown online without any answer: cyd" in done.err


def test_run_waits_for_starting_agents(tmp_path):
    """Also if `wait_s` is short: agents publish that they are starting once connected, long before their task is loaded."""
    go = tmp_path / "go"
    with Mosquitto() as broker, Fleet(broker.url, tmp_path / "devices") as fleet:
        for device in ("ann", "bob"):
            fleet.start(device, SLOW_START_REFERENCE, f"n=20,test=10,seed=1;{go}")
        state_topics = {device: topics.device_state(fleet.name, device) for device in fleet.agents}
        with client(broker.url, "looks", *state_topics.values()) as looking:
            for topic in state_topics.values():
                if topic not in looking.topics:
                    looking.received(topic)
                [payload] = [
                    event.payload for event in looking.seen if isinstance(event, Received) and event.topic == topic
                ]
                state = decode(payload).body
                assert isinstance(state, DeviceState)
                assert (state.online, state.tasks) == (True, ())
        with fleet.coordinator(tmp_path / "c", task=SLOW_START_REFERENCE, devices=2, rounds=1, wait_s=1) as run:
            run.wait(lambda: re.search("0 of 2 are there; [12] starting", run.err), "reports that agents are starting")
            with pytest.raises(TimeoutError, match="still runs"):
                run.wait(lambda: False, "longer than wait_s", patience_s=3.0)
            go.touch()
            done = run.done()
    assert done.code == 0
    assert [(one["outcome"], one["reported"]) for one in done.document["rounds"]] == [("aggregated", 2)]
