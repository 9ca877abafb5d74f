"""The built-in broker: the features that a demonstration needs, and the errors if it cannot be used."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys

import pytest

from fedpatch.coordinator.demo.broker import EmbeddedBroker
from fedpatch.shared.errors import BrokerError, UsageError
from fedpatch.shared.mqtt.client import Connected, Disconnected, Received
from tests.support.brokers import PATIENCE_S, client, free_port
from tests.support.paths import ROOT

ABANDONS = """
import os
from fedpatch.coordinator.demo.broker import EmbeddedBroker
broker = EmbeddedBroker(port=0)
broker.start()
print(broker.port, flush=True)
os.kill(os.getpid(), 9)
"""


def test_a_model_reaches_ten_clients_however_they_come(amqtt):
    """Twenty retained chunks of 96 KiB: ten clients connect and subscribe at once, and one more connects later."""
    chunks = {f"m/{index}": os.urandom(96 * 1024) for index in range(20)}
    with client(amqtt.url, "giver") as giver, contextlib.ExitStack() as stack:
        for topic, payload in chunks.items():
            assert giver.link.publish(topic, payload, retain=True)
        takers = [stack.enter_context(client(amqtt.url, f"taker-{number}", "m/+")) for number in range(10)]
        giver.settle()
        takers.append(stack.enter_context(client(amqtt.url, "late", "m/+")))
        for taker in takers:
            came: dict[str, bytes] = {}
            while len(came) < len(chunks):
                event = taker.wait(Received)
                came[event.topic] = event.payload
            assert came == chunks


def test_port_in_use_is_named_with_a_remedy():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(BrokerError) as caught:
            EmbeddedBroker(port=port).start()
    assert f"port {port} of 127.0.0.1" in str(caught.value)
    assert f"mqtt://127.0.0.1:{port}" in str(caught.value)


def test_missing_amqtt_error_names_the_extra_to_install(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"pip install 'fedpatch\[demo\]'"):
        EmbeddedBroker(port=0)


def test_stop_ends_the_process_and_may_be_repeated():
    pytest.importorskip("amqtt", reason="the built-in broker is not installed (pip install 'fedpatch[demo]')")
    broker = EmbeddedBroker(port=free_port())
    broker.start()
    with client(broker.url, "one") as one:
        one.wait(Connected)
        broker.stop()
        broker.stop()
        one.wait(Disconnected)
        broker.start()
        one.wait(Connected)
        broker.stop()


def test_the_broker_does_not_outlive_a_killed_parent():
    result = subprocess.run(
        [sys.executable, "-c", ABANDONS], cwd=ROOT, capture_output=True, timeout=PATIENCE_S, check=False
    )
    # run() returns when no process holds the pipes any more, including the broker.
    assert result.returncode == -9
    assert result.stderr == b""
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", int(result.stdout))) != 0
