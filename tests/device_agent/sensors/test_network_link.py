"""The interface of the route to the broker, as this kernel reports it."""

from __future__ import annotations

import errno
import shutil
import socket
import subprocess
from ipaddress import ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpatch.device_agent.sensors import collect, network_link
from fedpatch.device_agent.sensors.collect import FactCollector
from fedpatch.device_agent.sensors.network_link import Route, route_answer, route_question
from fedpatch.device_agent.sensors.timeouts import FactUnavailable
from fedpatch.shared.wire.reason_codes import LinkKind
from tests.faults.lab import Lab

# A route to 10.0.0.0/8 by interface 2, as a kernel of x86-64 sent it.
ANSWER = bytes.fromhex(
    "4000000018000000010000000a000000" "0220000000fe000100000000" "08000f00fe000000" "0800010008080808"
    "080004000200000008000700c0a80102"
)  # fmt: skip


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "127.8.9.1"])
def test_a_broker_on_this_machine_is_reached_by_loopback(tmp_path, host):
    facts = FactCollector(broker_host=host, state_dir=tmp_path).observe()
    assert facts.link.value is LinkKind.LOOPBACK
    assert facts.metered.value is False
    assert not facts.ssid.known


def test_a_name_that_nobody_knows_leaves_the_link_unknown(tmp_path, monkeypatch):
    monkeypatch.setattr(collect, "SOURCE_LIMIT_S", 2.0)  # an unreachable name server is not waited for
    facts = FactCollector(broker_host="no-such-host.invalid", state_dir=tmp_path).observe()
    assert not (facts.link.known or facts.metered.known or facts.ssid.known)
    assert "no-such-host.invalid" in facts.link.source or "has not answered" in facts.link.source


@pytest.mark.parametrize("host", ["a..b", "x" * 300, "", "\0"])
def test_a_name_that_is_none_is_no_crash(host):
    """Settings refuse such names; here they cannot be resolved, or mean this machine."""
    try:
        assert Route(host).interface()
    except (FactUnavailable, OSError, ValueError) as error:
        assert str(error)


def test_the_last_known_address_serves_while_names_cannot_be_resolved(monkeypatch):
    to_broker = Route("localhost")
    assert to_broker.interface() == "lo"

    def fails(*_args, **_options):
        raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")

    monkeypatch.setattr(network_link, "NAME_GOOD_S", -1.0)
    monkeypatch.setattr(socket, "getaddrinfo", fails)
    assert to_broker.interface() == "lo"
    with pytest.raises(FactUnavailable, match="cannot be resolved"):
        Route("localhost").interface()


ODD = bytes.fromhex("0500160001000000")  # an attribute of five bytes, and three without meaning
REFUSAL = b"\x24\0\0\0\x02\0\0\0\x01\0\0\0\0\0\0\0" + (-errno.ENETUNREACH).to_bytes(4, "little", signed=True)


@pytest.mark.parametrize(
    ("answer", "interface"),
    [
        (ANSWER, 2),
        ((len(ANSWER) + len(ODD)).to_bytes(4, "little") + ANSWER[4:28] + ODD + ANSWER[28:], 2),
        ((36).to_bytes(4, "little") + ANSWER[4:36], 0),
        (REFUSAL, -errno.ENETUNREACH),
        (REFUSAL[:-1], 0),
    ],
    ids=["interface", "odd attribute before it", "no interface", "refusal", "refusal that is cut off"],
)
def test_answer_of_the_kernel_has_the_interface_or_an_error_number(answer, interface):
    assert route_answer(answer) == interface


@given(st.binary(max_size=80) | st.tuples(st.integers(0, len(ANSWER)), st.binary(max_size=9)).map(
    lambda cut: ANSWER[: cut[0]] + cut[1] + ANSWER[cut[0] + len(cut[1]) :]
))  # fmt: skip
def test_any_answer_of_a_kernel_is_read_or_passed_over(answer):
    assert -(1 << 31) <= route_answer(answer) < 1 << 31


@given(st.ip_addresses(), st.integers(0, (1 << 31) - 1))
def test_every_address_can_be_asked_about(address, scope):
    question = route_question(address, scope)
    assert int.from_bytes(question[:4], "little" if question[0] else "big") == len(question)
    assert address.packed in question


@pytest.mark.lab
def test_the_route_follows_what_the_kernel_would_do():
    """In a separate network: by the card to the broker, by loopback to itself, and an error without a route."""
    with Lab(["broker", "ann"], seed=1) as lab, lab.inside("ann"):
        assert Route(lab.address("broker")).interface() == "eth0"
        assert Route(lab.address("ann")).interface() == "lo"
        with pytest.raises(FactUnavailable, match=r"no route to 203\.0\.113\.1: Network is unreachable"):
            Route("203.0.113.1").interface()


@pytest.mark.lab
def test_a_route_for_one_host_is_preferred_as_the_connection_prefers_it():
    """A narrower route takes the broker's packets to a second card; without it they use the first card again."""
    with Lab(["broker", "ann"], seed=2) as lab, lab.inside("ann"):
        broker = lab.address("broker")
        to_broker = Route(broker)
        assert to_broker.interface() == "eth0"
        _ip("tuntap", "add", "dev", "wlan7", "mode", "tun")
        _ip("addr", "add", "10.77.0.2/24", "dev", "wlan7")
        _ip("link", "set", "wlan7", "up")
        _ip("route", "add", f"{broker}/32", "dev", "wlan7")
        assert to_broker.interface() == "wlan7"
        _ip("route", "del", f"{broker}/32", "dev", "wlan7")
        assert to_broker.interface() == "eth0"


def _ip(*words: str) -> None:
    program = shutil.which("ip")
    assert program is not None
    subprocess.run([program, *words], check=True)


def test_an_address_may_hold_on_one_link_only():
    """The question has the number of that link, as after the % of fe80::1%lo."""
    assert len(route_question(ip_address("fe80::1"), 1)) == len(route_question(ip_address("fe80::1"))) + 8
