"""`fedpatch broker`: access rules, and the built-in broker."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
import time
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpatch.coordinator.pki.certificate_authority import DEVICE, WATCHER, Authority
from fedpatch.shared.wire.topics import BROKER_COUNTS, TOPICS, Party, mosquitto_acl
from tests.support.programs import Ended

NAMES = st.from_regex(r"[a-z0-9][a-z0-9_-]{0,31}", fullmatch=True).filter(lambda name: name != "coordinator")


def read_rules(text: str) -> set[tuple[str, str, str]]:
    """Return all triples (user, access, filter) of an acl_file; `readwrite` counts as two."""
    found, user = set(), ""
    for line in text.splitlines():
        word, _, rest = line.partition(" ")
        if word == "user":
            user = rest
        elif word == "topic":
            access, _, topic = rest.partition(" ")
            found |= {(user, one, topic) for one in ("read", "write") if one in access}
    return found


def expected(fleet: str, members: dict[str, str]) -> set[tuple[str, str, str]]:
    """Return the triples by the topic table: in topics a device has its own name, other users have `+`."""
    found = {
        (user, "read", topic) for user, party in members.items() if party == "coordinator" for topic in BROKER_COUNTS
    }
    for row in TOPICS:
        for user, party in members.items():
            own = user if party == "device" else "+"
            topic = row.pattern.format(fleet=fleet, device=own, digest="+", transfer="+", index="+")
            accesses = {"write": row.writer == party, "read": row.may_read(cast(Party, party))}
            found |= {(user, access, topic) for access, given in accesses.items() if given}
    return found


@given(fleet=NAMES, devices=st.sets(NAMES, max_size=5), watchers=st.sets(NAMES, max_size=3))
def test_acl_file_has_exactly_the_rules_of_the_topic_table(fleet, devices, watchers):
    watchers -= devices
    members = {"coordinator": "coordinator"} | dict.fromkeys(devices, "device") | dict.fromkeys(watchers, "watcher")
    text = mosquitto_acl(fleet, devices=sorted(devices), watchers=sorted(watchers))
    assert read_rules(text) == expected(fleet, members)
    assert "pattern" not in text and not any(user == "" for user, _, _ in read_rules(text))


def test_acl_has_the_members_of_the_ca_without_the_revoked_ones(fedpatch, tmp_path):
    with Authority.create(tmp_path, "kitchen", now=time.time()) as authority:
        for device in ("pi-1", "pi-2", "gone"):
            authority.issue(DEVICE, device, now=time.time())
        authority.note_password(DEVICE, "pi-3")
        authority.issue(WATCHER, "ann", now=time.time())
        authority.revoke(DEVICE, "gone", now=time.time())
    ended = fedpatch("broker", "acl", "--ca-dir", tmp_path, "--device", "pi-4")
    assert (ended.code, ended.err) == (0, "")
    members = dict.fromkeys(("pi-1", "pi-2", "pi-3", "pi-4"), "device") | {
        "coordinator": "coordinator",
        "ann": "watcher",
    }
    assert read_rules(ended.out) == expected("kitchen", members)


def test_acl_of_a_ca_without_devices_has_no_device_rules(fedpatch, tmp_path):
    Authority.create(tmp_path, "kitchen", now=time.time()).close()
    ended = fedpatch("broker", "acl", "--ca-dir", tmp_path)
    assert ended.err == "" and read_rules(ended.out) == expected("kitchen", {"coordinator": "coordinator"})


def test_acl_without_members_has_patterns_and_a_warning_on_stderr(fedpatch):
    ended = fedpatch("broker", "acl", "--fleet", "kitchen")
    assert ended.code == 0 and "pattern read" in ended.out and "warning" not in ended.out
    assert "hold" not in ended.out and "--ca-dir or --device" in ended.err and len(ended.err.splitlines()) == 1


def test_ejabberd_rules_need_named_devices(fedpatch):
    ended = fedpatch("broker", "acl", "--fleet", "kitchen", "--device", "pi-1", "--ejabberd", "broker.lan")
    assert ended.code == 0 and 'user: ["pi-1@broker.lan"]' in ended.out and "access_publish" in ended.out
    ended = fedpatch("broker", "acl", "--fleet", "kitchen", "--ejabberd", "broker.lan")
    assert (ended.code, ended.out) == (2, "")


def test_acl_without_fleet_or_ca_or_of_another_fleet_is_a_usage_error(fedpatch, tmp_path):
    Authority.create(tmp_path / "ca", "kitchen", now=time.time()).close()
    for words, remedy in (
        ((), "--fleet"),
        (("--ca-dir", tmp_path), "fedpatch ca init"),
        (("--ca-dir", tmp_path / "ca", "--fleet", "attic"), "leave --fleet out"),
    ):
        ended = fedpatch("broker", "acl", *words)
        assert (ended.code, ended.out) == (2, "") and remedy in ended.err


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
            message = process.stderr.readline()
            port = re.search(r"mqtt://127\.0\.0\.1:(\d+)", message)
            assert port, message
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
