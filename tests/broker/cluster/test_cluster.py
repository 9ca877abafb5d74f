"""A fleet on two ejabberd nodes behind haproxy: devices on A, the coordinator on B; one test kills A."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TypeGuard

import pytest

from fedpatch.shared.mqtt.events import Connected, Disconnected, LinkEvent, Received
from fedpatch.shared.wire import topics
from fedpatch.shared.wire.codec import decode
from fedpatch.shared.wire.messages import DeviceState
from tests.broker.cluster.pair import Pair
from tests.support.brokers import client
from tests.system.fleet import Fleet
from tests.system.held_task import REFERENCE, Hold
from tests.system.stage import DEVICES, PATIENT, PRIVATE, STRATEGY, all_went_well, outcomes

pytestmark = [pytest.mark.broker, pytest.mark.system, pytest.mark.medium, pytest.mark.timeout(600)]

ROUNDS = 2
KEPT = "barrier/kept"
CONNECTED = "connected to the broker"


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    with Pair("demo", list(DEVICES)) as pair:
        yield pair


def login(user: str) -> dict[str, str]:
    return {"username": f"{user}@localhost", "password": user}


def test_client_id_is_taken_over_across_nodes(pair: Pair):
    """A connection on B with the same client id closes the connection on A."""
    with client(pair.prefer_a, "one", **login("ann")) as first:
        first.settle()
        with client(pair.prefer_b, "one", **login("ann")) as second:
            second.settle()
            first.wait(Disconnected)
            first.link.stop()
            second.settle()


def test_will_of_a_device_on_a_reaches_the_coordinator_on_b(pair: Pair):
    """The connection on A ends without DISCONNECT, here because a second connection has its client id."""
    topic = topics.device_state("demo", "ann")
    with client(pair.prefer_b, "reader", topic, **login("coordinator")) as reader:
        reader.settle()
        with client(pair.prefer_a, "dying", will=(topic, b"gone"), **login("ann")) as dying:
            dying.settle()
            with client(pair.prefer_b, "dying", **login("ann")):
                assert reader.received(topic).payload == b"gone"


def test_retained_message_is_only_at_the_node_where_it_was_published(pair: Pair):
    """Devices on A must request a model that the coordinator retains at B, as with a broker that retains nothing."""
    with client(pair.prefer_a, "keeper", **login("ann")) as keeper:
        keeper.link.publish(KEPT, b"kept", retain=True)
        keeper.settle()
    with client(pair.prefer_a, "at-a", KEPT, **login("coordinator")) as at_a:
        assert at_a.received(KEPT).retained
    with client(pair.prefer_b, "at-b", KEPT, **login("coordinator")) as at_b:
        at_b.settle()
        assert KEPT not in at_b.topics


def test_run_survives_the_death_of_the_devices_node(pair: Pair, tmp_path: Path):
    """A is killed while Ann is held in her training: both devices reconnect through B, and no update is lost."""
    state = topics.device_state("demo", "ann")
    with Fleet(pair.prefer_a, tmp_path) as fleet:
        hold = Hold(tmp_path / "ann.hold")
        for device, data in DEVICES.items():
            spec = f"{data};{hold.path if device == 'ann' else tmp_path / 'bob.hold'}"
            fleet.start(device, REFERENCE, spec, options=_login_options(tmp_path, device))
        fleet.wait_ready()
        hold.at(2)
        terms = {"task": REFERENCE, "strategy": STRATEGY, "private": PRIVATE, "devices": len(DEVICES), **PATIENT}
        terms |= {"rounds": ROUNDS, "encoding": "fp32+zstd", "norm_bound": "off", "broker": pair.prefer_b}
        terms |= {"username": "coordinator@localhost", "password_file": _password(tmp_path, "coordinator")}
        with (
            client(pair.prefer_b, "reader", state, **login("coordinator")) as reader,
            fleet.coordinator(tmp_path / "coordinator", **terms) as coordinator,
        ):
            reader.wait(Connected)
            coordinator.wait(lambda: hold.reached, "ann trains")
            connects = {device: agent.log.count(CONNECTED) for device, agent in fleet.agents.items()}
            reader.settle()
            before = len(reader.seen)
            pair.a.kill()
            for device, agent in fleet.agents.items():
                agent.wait(lambda: agent.log.count(CONNECTED) > connects[device], "is back")  # noqa: B023
            hold.release()
            done = coordinator.done()
            reader.settle()
        states = [decode(event.payload).body for event in reader.seen[before:] if is_message(event, state)]
        online = [body.online for body in states if isinstance(body, DeviceState)]
        # ejabberd publishes no will of a client whose node dies; the device publishes its presence again.
        assert set(online) == {True}
    assert done.code == 0, done.err
    assert outcomes(done.document) == all_went_well(ROUNDS)


def is_message(event: LinkEvent, topic: str) -> TypeGuard[Received]:
    return isinstance(event, Received) and event.topic == topic


def _password(directory: Path, user: str) -> Path:
    path = directory / f"{user}.password"
    path.write_text(user)
    path.chmod(0o600)
    return path


def _login_options(directory: Path, user: str) -> list[str]:
    return ["--username", f"{user}@localhost", "--password-file", str(_password(directory, user))]
