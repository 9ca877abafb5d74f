"""The process on a real broker: discovery, state, switch, last will, predictions."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fedpatch.device_agent.bus.device_state import read_state, set_paused
from fedpatch.device_agent.sensors.host import read_pause
from fedpatch.shared.app.locks import FileLock
from fedpatch.shared.mqtt.client import Received
from tests.support.brokers import Client, Mosquitto, client
from tests.support.other_users import acting_as_nobody, open_directory

pytestmark = pytest.mark.broker

DEVICE = "fedpatch-bus/kitchen/pi-7"


@pytest.fixture
def state_dir(tmp_path: Path) -> Path:
    """The state directory of an agent that was stopped."""
    (tmp_path / "agent.lock").touch(0o600)
    status = {"device_id": "pi-7", "fleet": "kitchen", "state": "idle", "admission": "always", "tasks": []}
    (tmp_path / "status.json").write_text(json.dumps(status))
    return tmp_path


@contextmanager
def bus(broker: Mosquitto, state_dir: Path, *options: str) -> Iterator[subprocess.Popen[bytes]]:
    command = [
        sys.executable,
        "-m",
        "fedpatch.device_agent",
        "bus",
        "--broker",
        broker.url,
        "--state-dir",
        str(state_dir),
    ]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("FEDPATCH_")}
    with (state_dir / "bus.log").open("ab") as log:
        process = subprocess.Popen([*command, "--every-s", "0.2", *options], env=environment, stderr=log)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def state(home: Client, fits: Callable[[dict], bool]) -> dict:
    event = home.wait(Received, lambda one: one.topic == f"{DEVICE}/state" and fits(json.loads(one.payload)))
    return dict(json.loads(event.payload))


def waits(state_dir: Path, process: subprocess.Popen[bytes], starts: int) -> None:
    """Return once the log has the line of so many starts that wait for the agent's name."""
    give_up_at = time.monotonic() + 60.0
    while (state_dir / "bus.log").read_text().count("; waiting") < starts:
        assert process.poll() is None and time.monotonic() < give_up_at
        time.sleep(0.05)


def available(home: Client, word: bytes) -> None:
    home.wait(Received, lambda one: one.topic == f"{DEVICE}/availability" and one.payload == word)


@pytest.mark.medium
def test_device_is_discovered_switched_and_missed(state_dir):
    with Mosquitto() as broker, client(broker.url, "home", f"{DEVICE}/#", "homeassistant/#", "out") as home:
        with bus(broker, state_dir, "--serve", "sensors/+ -> out") as process:
            found = home.wait(Received, lambda one: one.topic.startswith("homeassistant/"))
            assert json.loads(found.payload)["state_topic"] == f"{DEVICE}/state"
            available(home, b"online")
            shown = state(home, lambda one: True)
            assert (shown["state"], shown["willing"], shown["may_work"]) == ("stopped", "OFF", "ON")
            assert shown["reasons"] == ["the agent is not running"]
            home.link.publish(f"{DEVICE}/may-work/set", b"OFF")
            assert state(home, lambda one: one["may_work"] == "OFF")
            assert (state_dir / "pause").exists()
            home.link.publish(f"{DEVICE}/may-work/set", b"nonsense")
            home.link.publish(f"{DEVICE}/may-work/set", b"", retain=True)
            home.link.publish(f"{DEVICE}/may-work/set", b"ON")
            assert state(home, lambda one: one["may_work"] == "ON")
            assert not (state_dir / "pause").exists()
            home.link.publish("sensors/vibration", b"[1, 2]")
            assert json.loads(home.received("out").payload) == {"error": "there is no personal model yet"}
            process.kill()
            available(home, b"offline")
        with bus(broker, state_dir, "--no-switch") as process:
            available(home, b"online")
            process.send_signal(signal.SIGTERM)
            available(home, b"offline")
            assert process.wait(60) == 0
    # The nonsense is worth a warning, a cleared retained command is not.
    assert (state_dir / "bus.log").read_text().count("ignored on") == 1


@pytest.mark.medium
def test_message_that_two_mappings_take_has_one_answer_of_each(state_dir):
    """A broker delivers a message once for each filter that it matches."""
    mappings = "sensors/# -> out/all, sensors/+ -> out/one, sensors/pump -> out/pump, end -> out/end"
    answers: list[str] = []
    with (
        Mosquitto() as broker,
        client(broker.url, "home", f"{DEVICE}/availability", "out/#") as home,
        bus(broker, state_dir, "--serve", mappings),
    ):
        available(home, b"online")
        for topic in ("sensors/pump", "sensors/pump/last", "end"):
            home.link.publish(topic, b"[1]")
        while "out/end" not in answers:
            answers.append(home.wait(Received, lambda one: one.topic.startswith("out/")).topic)
    assert answers == ["out/all", "out/one", "out/pump", "out/all", "out/end"]


@pytest.mark.medium
def test_device_is_announced_once_its_agent_has_written_its_name(state_dir):
    status = (state_dir / "status.json").read_bytes()
    (state_dir / "status.json").unlink()
    with Mosquitto() as broker, client(broker.url, "home", "fedpatch-bus/#", "homeassistant/#") as home:
        with bus(broker, state_dir) as process:
            waits(state_dir, process, 1)
            (state_dir / "status.json").write_bytes(status)
            first = home.wait(Received, lambda one: True)
            assert "pi-7" in first.topic
        (state_dir / "status.json").unlink()
        with bus(broker, state_dir) as process:
            waits(state_dir, process, 2)
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0


def say_admission(state_dir: Path, admission: str) -> None:
    status = json.loads((state_dir / "status.json").read_text())
    (state_dir / "status.json").write_text(json.dumps({**status, "admission": admission}))


def test_idle_agent_is_paused_as_soon_as_its_pause_file_is_there(state_dir):
    say_admission(state_dir, "preferences")
    with FileLock(state_dir / "agent.lock", "held"):
        assert read_state(state_dir)["state"] == "idle"
        set_paused(state_dir, True)
        shown = read_state(state_dir)
        assert (shown["state"], shown["willing"], shown["may_work"]) == ("paused", "OFF", "OFF")
        assert shown["reasons"] == ["its owner has paused it"]


def test_pause_file_that_is_a_link_to_nothing_is_shown_as_the_agent_obeys_it(state_dir):
    (state_dir / "pause").symlink_to("nothing")
    assert read_pause(state_dir / "pause").value is True
    assert read_state(state_dir)["may_work"] == "OFF"


@pytest.mark.parametrize("admission", ["always", "file"])
def test_agent_is_shown_as_paused_with_any_admission(state_dir, admission):
    order = state_dir / "order"
    order.write_text("accept\n")
    say_admission(state_dir, f"file:{order}" if admission == "file" else admission)
    with FileLock(state_dir / "agent.lock", "held"):
        set_paused(state_dir, True)
        shown = read_state(state_dir)
        assert (shown["state"], shown["willing"], shown["reasons"]) == ("paused", "OFF", ["its owner has paused it"])
        assert shown["may_work"] == "OFF"  # the switch shows the file


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("decline: I need the machine\n", "I need the machine"),
        ("perhaps\n", "its owner's file says neither accept nor decline"),
        (None, "its owner's file cannot be read"),
    ],
)
def test_agent_whose_owners_file_declines_is_shown_as_not_willing(state_dir, text, reason):
    order = state_dir / "order"
    if text is not None:
        order.write_text(text)
    say_admission(state_dir, f"file:{order}")
    with FileLock(state_dir / "agent.lock", "held"):
        shown = read_state(state_dir)
    assert (shown["state"], shown["willing"], shown["reasons"]) == ("idle", "OFF", [reason])


@pytest.mark.parametrize("admission", ["preferences", "always", "never"])
@pytest.mark.parametrize("known", ["its owner has paused it", "its owner has paused it, until 2026-05-04 12:00 CEST"])
def test_each_reason_is_shown_once_though_the_agent_and_the_pause_file_both_have_it(state_dir, admission, known):
    say_admission(state_dir, admission)
    status = json.loads((state_dir / "status.json").read_text())
    (state_dir / "status.json").write_text(json.dumps({**status, "unwilling": [known, "the link is metered"]}))
    set_paused(state_dir, True)
    with FileLock(state_dir / "agent.lock", "held"):
        reasons = read_state(state_dir)["reasons"]
    assert reasons[0] == "its owner has paused it" and reasons[-1] == "the link is metered"
    assert reasons[1:-1] == (["its owner chose never"] if admission == "never" else [])


def test_agent_that_declined_the_last_request_is_shown_as_not_willing_as_by_the_status(state_dir):
    status = json.loads((state_dir / "status.json").read_text())
    (state_dir / "status.json").write_text(json.dumps({**status, "refused": "no update leaves unmasked"}))
    with FileLock(state_dir / "agent.lock", "held"):
        shown = read_state(state_dir)
    words = "a request like the last one is declined: no update leaves unmasked"
    assert (shown["willing"], shown["reasons"]) == ("OFF", [words])


def test_agent_whose_present_model_cannot_be_read_is_unknown_with_the_reason(state_dir):
    (state_dir / "models" / "digits" / "current").mkdir(parents=True)  # a copy without its links
    shown = read_state(state_dir)
    assert (shown["state"], shown["willing"], shown["user_accuracy"]) == ("unknown", "OFF", None)
    assert "is no link to a model" in shown["reasons"][0]


def test_agent_whose_directory_another_user_cannot_read_is_unknown_with_the_reason():
    with open_directory() as directory:
        state_dir = directory / "state"
        state_dir.mkdir(0o700)
        with acting_as_nobody():
            shown = read_state(state_dir)
    assert (shown["state"], shown["may_work"]) == ("unknown", "ON")
    assert "Permission denied" in shown["reasons"][0]


def test_process_without_predictions_loads_no_numbers():
    modules = "fedpatch.device_agent.bus.service, fedpatch.device_agent.cli.main"
    program = f"import sys, {modules}; print(*sorted({{'numpy', 'torch', 'onnxruntime'}} & sys.modules.keys()))"
    assert subprocess.check_output([sys.executable, "-c", program], text=True) == "\n"
