"""`fedpatch doctor` and `fedpatch-agent doctor` as users run them: beside a running fleet, and without a broker."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from fedpatch.shared.wire.topics import mosquitto_acl
from tests.support.brokers import HOST, Mosquitto, free_port
from tests.system.commands import Command, Done, run

pytestmark = [pytest.mark.system, pytest.mark.broker, pytest.mark.timeout(300)]

DEVICES = ("pi-1", "pi-2")
PASSWORDS = {name: f"{name}-word" for name in (*DEVICES, "coordinator")}


@pytest.fixture(params=[pytest.param("open", marks=pytest.mark.slow), "ruled"])
def broker(request: pytest.FixtureRequest) -> Iterator[Mosquitto]:
    """A broker that admits every client, and a broker with passwords and the generated rules."""
    acl = mosquitto_acl("kitchen", devices=DEVICES)
    with Mosquitto(acl=acl, passwords=PASSWORDS) if request.param == "ruled" else Mosquitto() as one:
        yield one


def found(done: Done) -> dict[str, dict[str, str]]:
    return {one["name"]: one for one in done.document["findings"]}


def as_device(name: str, broker: Mosquitto, tmp_path: Path) -> tuple[tuple[object, ...], dict[str, str]]:
    """Return options and environment variables of a device's commands."""
    place = ("--broker", broker.url, "--fleet", "kitchen", "--state-dir", tmp_path / name)
    login = {"FEDPATCH_AGENT_USERNAME": name, "FEDPATCH_AGENT_PASSWORD": PASSWORDS[name]}
    data = f"shard:{DEVICES.index(name)}/2"
    return (*place, "--device-id", name, "--data", data, "--admission", "always"), login


@pytest.mark.medium
def test_doctors_beside_a_fleet_at_work(broker, tmp_path):
    place = ("--broker", broker.url, "--fleet", "kitchen", "--state-dir", tmp_path / "state", "--devices", 2)
    login = {"FEDPATCH_USERNAME": "coordinator", "FEDPATCH_PASSWORD": PASSWORDS["coordinator"]}
    patient = ("--rounds", 1, "--wait-s", 200, "--grace-s", 100, "--recruit-deadline-s", 100)
    with ExitStack() as stack:
        coordinator = stack.enter_context(
            Command("fedpatch", "run", *place, *patient, "--json", "--debug", environment=login)
        )
        options, device_login = as_device("pi-1", broker, tmp_path)
        agent = stack.enter_context(Command("fedpatch-agent", "run", *options, environment=device_login))
        agent.wait_err("ready: task digits")
        coordinator.wait_err("connected, MQTT 5")
        beside = run("fedpatch-agent", "doctor", *options, "--json", environment=device_login)
        above = run("fedpatch", "doctor", *place, "--json", environment=login)
        others, other_login = as_device("pi-2", broker, tmp_path)
        stack.enter_context(Command("fedpatch-agent", "run", *others, environment=other_login))
        done = coordinator.done()
    assert (beside.code, above.code) == (0, 0), (beside.out, above.out)
    assert found(beside)["coordinator"]["verdict"] == "ok"
    asked_as = "doctor-" if "password_file" not in (broker.directory / "mosquitto.conf").read_text() else "pi-1"
    assert f"answered {asked_as}" in found(beside)["coordinator"]["detail"]
    assert found(beside)["task"]["verdict"] == found(above)["task"]["verdict"] == "skip"
    assert found(above)["devices"]["detail"].startswith("1 online in fleet kitchen: pi-1")
    assert done.code == 0 and done.document["rounds"][0]["reported"] == 2
    assert "ignored" not in coordinator_warnings(done.err)


def coordinator_warnings(log: str) -> str:
    return "\n".join(line for line in log.splitlines() if " WARNING " in line or " ERROR " in line)


@pytest.mark.parametrize("program", ["fedpatch", "fedpatch-agent"])
def test_nothing_listens(program, tmp_path):
    options = ("--data", "shard:0/2") if program == "fedpatch-agent" else ()
    url = f"mqtt://{HOST}:{free_port()}"
    # This task is missing, so the command does not import torch, which the test does not need.
    done = run(program, "doctor", "--broker", url, "--task", "none:TASK", "--state-dir", tmp_path / "state", *options)
    assert done.code == 1
    lines = done.out.splitlines()
    failed = next(number for number, line in enumerate(lines) if line.split()[:2] == ["fail", "broker_port"])
    assert "refuses connections" in lines[failed] and lines[failed + 1].strip().startswith("remedy: start the broker")
    assert lines[-1].startswith("2 checks failed")
    assert "asking the broker" in done.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("program", ["fedpatch", "fedpatch-agent"])
def test_bad_usage_is_not_a_finding(program):
    done = run(program, "doctor", "--task", "digts", "--broker", "nowhere")
    assert (done.code, done.out) == (2, "")
    assert "did you mean 'digits'" in done.err


def test_settings_come_from_the_same_places_as_those_of_run(tmp_path):
    (tmp_path / "agent.toml").write_text('data = "shard:0/2"\nfleet = "cellar"\ntask = "none:TASK"\n')
    port = free_port()
    environment = {"FEDPATCH_AGENT_BROKER": f"mqtt://{HOST}:{port}", "FEDPATCH_AGENT_FLEET": "attic"}
    options = ("--config", tmp_path / "agent.toml", "--device-id", "pi-9", "--state-dir", tmp_path / "state", "--json")
    done = run("fedpatch-agent", "doctor", *options, environment=environment)
    document: Any = json.loads(done.out)
    assert document["ok"] is False
    assert found(done)["device"]["detail"] == "this is pi-9 of fleet attic"
    assert str(port) in found(done)["broker_port"]["detail"]
