"""The built-in broker and mosquitto's rules, from the command line `fedpatch`."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys

import pytest

from fedpatch.shared.wire.topics import mosquitto_acl
from tests.support.programs import Ended


def test_acl_has_the_given_device_and_coordinator_user(fedpatch):
    ended = fedpatch("broker", "acl", "--fleet", "kitchen", "--device", "pi-1", "--coordinator-user", "boss")
    assert ended == Ended(0, mosquitto_acl("kitchen", "boss", ["pi-1"]), "")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_broker_serves_until_a_signal(number, code):
    pytest.importorskip("amqtt", reason="the built-in broker is not installed (pip install 'fedpatch[demo]')")
    command = [sys.executable, "-m", "fedpatch", "broker", "--port", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            said = process.stderr.readline()
            port = re.search(r"mqtt://127\.0\.0\.1:(\d+)", said)
            assert port, said
            socket.create_connection(("127.0.0.1", int(port[1])), 60).close()
            process.send_signal(number)
            assert process.wait(100) == code
        finally:
            process.kill()


def test_broker_on_a_taken_port_is_a_usage_error(fedpatch):
    pytest.importorskip("amqtt", reason="the built-in broker is not installed (pip install 'fedpatch[demo]')")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ended = fedpatch("broker", "--port", port)
    assert (ended.code, ended.out) == (2, "")
    assert f"port {port}" in ended.err and "another port" in ended.err
