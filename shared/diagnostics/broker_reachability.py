"""Checks of a broker before MQTT begins: its host name, its port, its certificate."""

from __future__ import annotations

import ipaddress
import queue
import socket
import ssl
import threading
import time
from dataclasses import dataclass, replace
from typing import Any

from fedpatch.shared.diagnostics.checks import Checkup
from fedpatch.shared.errors import UsageError, problem_and_remedy
from fedpatch.shared.mqtt.broker_settings import exposure
from fedpatch.shared.mqtt.certificate_expiry import ends_soon, left_days
from fedpatch.shared.mqtt.connection_errors import (
    NAME_INTERFACE,
    name_remedy,
    needs_interface,
    tls_remedy,
    way_remedy,
)
from fedpatch.shared.mqtt.tls_context import TlsFiles, tls_context
from fedpatch.shared.mqtt.tls_errors import TrustError, refused_by_broker, trust_error_of
from fedpatch.shared.mqtt.url import BrokerUrl

STEP_TIMEOUT_S = 4.0


@dataclass(frozen=True)
class Reached:
    """A broker with an open port; `nearby` if its address is private, `loopback` if it is this machine's."""

    nearby: bool
    loopback: bool


def reach(broker: BrokerUrl, files: TlsFiles, checkup: Checkup) -> Reached | None:
    """Check `broker_name`, `broker_port` and, except for plain text on this machine, `broker_tls`.

    Returns:
        None if a check failed, so that MQTT cannot begin.
    """
    addresses = _resolve(broker, checkup)
    connection = _connect(broker, addresses, checkup) if addresses else None
    if connection is None:
        return None
    sock, peer = connection
    ip = ipaddress.ip_address(str(peer[0]).partition("%")[0])
    if warning := exposure(broker):
        checkup.warn("broker_tls", warning, "give the broker TLS (broker_config/README.md) and write mqtts://")
    with sock:
        if broker.tls and not _check_tls(broker, files, sock, peer, checkup):
            return None
    return Reached(nearby=ip.is_private, loopback=ip.is_loopback)


def _resolve(broker: BrokerUrl, checkup: Checkup) -> list[Any]:
    """Return the broker's addresses. A thread asks the system's resolver, which has no time limit."""
    answers: queue.SimpleQueue[list[Any] | Exception] = queue.SimpleQueue()

    def resolve() -> None:
        try:
            answers.put(socket.getaddrinfo(broker.host, broker.port, type=socket.SOCK_STREAM))
        except (OSError, UnicodeError) as error:
            answers.put(error)

    threading.Thread(target=resolve, name="resolve", daemon=True).start()
    try:
        answer = answers.get(timeout=STEP_TIMEOUT_S)
    except queue.Empty:
        text = f"the name {broker.host!r} was not resolved within {STEP_TIMEOUT_S:g} s"
        checkup.fail("broker_name", text, name_remedy(broker, socket.gaierror(socket.EAI_AGAIN, "")))
        return []
    if isinstance(answer, Exception):
        reason = getattr(answer, "strerror", None) or str(answer)
        checkup.fail(
            "broker_name", f"the name {broker.host!r} cannot be resolved: {reason}", name_remedy(broker, answer)
        )
        return []
    addresses = list(dict.fromkeys(str(info[4][0]) for info in answer))
    if broker.host not in addresses:
        checkup.good("broker_name", f"{broker.host} is {', '.join(addresses)}")
    return answer


def _connect(broker: BrokerUrl, addresses: list[Any], checkup: Checkup) -> tuple[socket.socket, Any] | None:
    """Return a connection to the first address that accepts one, and the address: a closed connection names none."""
    give_up_at = time.monotonic() + STEP_TIMEOUT_S
    fault: OSError | None = None
    for family, kind, number, _name, address in addresses:
        try:
            sock = socket.socket(family, kind, number)
        except OSError as error:  # a kind of address that this machine lacks, such as IPv6
            fault = fault or error
            continue
        sock.settimeout(max(0.5, give_up_at - time.monotonic()))
        try:
            sock.connect(address)
        except OSError as error:
            sock.close()
            fault = error
            continue
        checkup.good("broker_port", f"{broker} takes connections")
        return sock, address
    fault = fault or TimeoutError()
    if isinstance(fault, ConnectionRefusedError):
        text = f"{broker} refuses connections: the host is there, and nothing listens on port {broker.port}"
        remedy = "start the broker (systemctl start mosquitto), or correct the port; mosquitto needs a `listener` line"
        hint = f"; {broker.scheme_hint}" if broker.scheme_hint else ""
        checkup.fail("broker_port", text, f"{remedy} to be reached from other hosts{hint}")
    elif isinstance(fault, TimeoutError):
        text = f"{broker} does not answer within {STEP_TIMEOUT_S:g} s"
        checkup.fail("broker_port", text, "check the address, that the host is on, and the firewalls in between")
    elif needs_interface(broker, fault):
        checkup.fail("broker_port", f"{broker} cannot be reached: {fault.strerror}", NAME_INTERFACE)
    else:
        text = f"{broker} cannot be reached: {fault.strerror or fault}"
        checkup.fail("broker_port", text, way_remedy(fault))
    return None


def _check_tls(broker: BrokerUrl, files: TlsFiles, sock: socket.socket, peer: Any, checkup: Checkup) -> bool:
    try:
        # Without the own certificate, which has a check of its own and must not hide a fault of the broker's.
        context = tls_context(broker, replace(files, cert_file=None, key_file=None))
    except UsageError as error:
        checkup.fail("broker_tls", *problem_and_remedy(str(error)))
        return False
    assert context is not None
    family = sock.family
    try:
        secured: tuple[str, str] | None = _shake_hands(context, broker, sock)
    except OSError as error:
        # With TLS 1.2 a broker that requires certificates refuses a client without one within the handshake.
        is_refused = isinstance(error, ssl.SSLError) and refused_by_broker(broker, TlsFiles(), error) is not None
        if files.cert_file is None or not is_refused:
            _report_failure(broker, TlsFiles(files.ca_file), error, checkup)
            return False
        secured = _with_own_certificate(broker, files, (family, peer), checkup)
    if secured is not None:
        not_after, version = secured
        _check_expiry(not_after, f"{version} with {broker}", checkup)
    return secured is not None


def _with_own_certificate(
    broker: BrokerUrl, files: TlsFiles, place: tuple[int, Any], checkup: Checkup
) -> tuple[str, str] | None:
    """Return the result of a handshake with the own certificate, at an address of this family; None if it fails."""
    family, peer = place
    try:
        context = tls_context(broker, files)
        assert context is not None
        with socket.socket(family, socket.SOCK_STREAM) as sock:
            sock.settimeout(STEP_TIMEOUT_S)
            sock.connect(peer)
            return _shake_hands(context, broker, sock)
    except UsageError as error:
        text, remedy = problem_and_remedy(str(error))
        checkup.fail("broker_tls", f"{broker} asks for a certificate, and ours is unusable: {text}", remedy)
    except OSError as error:
        _report_failure(broker, files, error, checkup)
    return None


def _shake_hands(context: ssl.SSLContext, broker: BrokerUrl, sock: socket.socket) -> tuple[str, str]:
    """Return the end of the broker's certificate, as OpenSSL writes it, and the version of TLS."""
    sock.settimeout(STEP_TIMEOUT_S)
    with context.wrap_socket(sock, server_hostname=broker.host) as secured:
        return str((secured.getpeercert() or {}).get("notAfter", "")), str(secured.version())


def _report_failure(broker: BrokerUrl, files: TlsFiles, error: OSError, checkup: Checkup) -> None:
    """Add the finding of a failed handshake."""
    fault = trust_error_of(broker, files, error)
    if fault is None:
        reason = getattr(error, "reason", None) or error.strerror or str(error)
        remedy = "use the port of the broker's TLS listener (8883 by custom), or mqtt:// for one without TLS"
        remedy = tls_remedy(broker, error) or broker.scheme_hint or remedy
        fault = TrustError(f"no TLS with {broker}: {reason}", remedy)
    checkup.fail("broker_tls", fault.problem, fault.remedy)


def _check_expiry(not_after: str, connection: str, checkup: Checkup) -> None:
    if not not_after:
        checkup.good("broker_tls", f"{connection}, trusted")
        return
    end, now = ssl.cert_time_to_seconds(not_after), time.time()
    text = f"{connection}; its certificate is good for {left_days(end, now)} more days"
    if ends_soon(end, now):
        checkup.warn("broker_tls", text, "renew the broker's certificate before devices refuse it")
    else:
        checkup.good("broker_tls", text)
