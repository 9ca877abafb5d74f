"""How far one gets towards a broker before MQTT begins: its name, its port, its certificate."""

from __future__ import annotations

import ipaddress
import queue
import socket
import ssl
import threading
import time
from dataclasses import dataclass
from typing import Any

from fedpatch.shared.diagnostics.checks import Checkup
from fedpatch.shared.errors import UsageError
from fedpatch.shared.mqtt.broker_settings import exposure
from fedpatch.shared.mqtt.tls_context import TlsFiles, tls_context
from fedpatch.shared.mqtt.tls_errors import distrusted
from fedpatch.shared.mqtt.url import BrokerUrl

STEP_TIMEOUT_S = 4.0
CERTIFICATE_DAYS = 14

_DAY_S = 86_400


@dataclass(frozen=True)
class Reached:
    """A broker whose port is open; `nearby` when its address is a private one, `loopback` when it is this machine's."""

    nearby: bool
    loopback: bool


def reach(broker: BrokerUrl, files: TlsFiles, checkup: Checkup) -> Reached | None:
    """Checks `broker_name`, `broker_port` and, but for plain text on this machine, `broker_tls`; None where it ends there."""
    addresses = _resolve(broker, checkup)
    sock = _connect(broker, addresses, checkup) if addresses else None
    if sock is None:
        return None
    ip = ipaddress.ip_address(str(sock.getpeername()[0]).partition("%")[0])
    if told := exposure(broker):
        checkup.warn("broker_tls", told, "give the broker TLS (broker_config/README.md) and write mqtts://")
    with sock:
        if broker.tls and not _check_tls(broker, files, sock, checkup):
            return None
    return Reached(nearby=ip.is_private, loopback=ip.is_loopback)


def _resolve(broker: BrokerUrl, checkup: Checkup) -> list[Any]:
    """Addresses of the broker. Asked in a thread: the system's resolver waits as long as it likes."""
    found: queue.SimpleQueue[list[Any] | Exception] = queue.SimpleQueue()

    def ask() -> None:
        try:
            found.put(socket.getaddrinfo(broker.host, broker.port, type=socket.SOCK_STREAM))
        except (OSError, UnicodeError) as error:
            found.put(error)

    threading.Thread(target=ask, name="resolve", daemon=True).start()
    remedy = f"check the broker URL; `getent hosts {broker.host}` must print an address, or give the address itself"
    try:
        answer = found.get(timeout=STEP_TIMEOUT_S)
    except queue.Empty:
        checkup.fail("broker_name", f"nobody tells the address of {broker.host!r} in {STEP_TIMEOUT_S:g} s", remedy)
        return []
    if isinstance(answer, Exception):
        words = getattr(answer, "strerror", None) or str(answer)
        checkup.fail("broker_name", f"the name {broker.host!r} cannot be resolved: {words}", remedy)
        return []
    addresses = list(dict.fromkeys(str(one[4][0]) for one in answer))
    if broker.host not in addresses:
        checkup.good("broker_name", f"{broker.host} is {', '.join(addresses)}")
    return answer


def _connect(broker: BrokerUrl, addresses: list[Any], checkup: Checkup) -> socket.socket | None:
    """A connection to the first address that takes one."""
    give_up_at = time.monotonic() + STEP_TIMEOUT_S
    fault: OSError = TimeoutError()
    for family, kind, number, _name, address in addresses:
        sock = socket.socket(family, kind, number)
        sock.settimeout(max(0.5, give_up_at - time.monotonic()))
        try:
            sock.connect(address)
        except OSError as error:
            sock.close()
            fault = error
            continue
        checkup.good("broker_port", f"{broker} takes connections")
        return sock
    if isinstance(fault, ConnectionRefusedError):
        text = f"{broker} refuses connections: the host is there, and nothing listens on port {broker.port}"
        remedy = "start the broker (systemctl start mosquitto), or correct the port; mosquitto needs a `listener` line"
        hint = f"; {broker.scheme_hint}" if broker.scheme_hint else ""
        checkup.fail("broker_port", text, f"{remedy} to be reached from other hosts{hint}")
    elif isinstance(fault, TimeoutError):
        text = f"{broker} does not answer within {STEP_TIMEOUT_S:g} s"
        checkup.fail("broker_port", text, "check the address, that the host is on, and the firewalls in between")
    else:
        text = f"{broker} cannot be reached: {fault.strerror or fault}"
        checkup.fail("broker_port", text, "check this machine's network (ip route) and the address of the broker")
    return None


def _check_tls(broker: BrokerUrl, files: TlsFiles, sock: socket.socket, checkup: Checkup) -> bool:
    try:
        # Our own certificate is looked at apart, and must not hide what there is to say of the broker's.
        context = tls_context(broker, TlsFiles(files.ca_file))
    except UsageError as error:
        checkup.fail(
            "broker_tls", str(error), "give --ca-file the PEM file of the CA that signed the broker's certificate"
        )
        return False
    assert context is not None
    sock.settimeout(STEP_TIMEOUT_S)
    try:
        with context.wrap_socket(sock, server_hostname=broker.host) as secured:
            certificate, version = secured.getpeercert() or {}, secured.version()
    except ssl.SSLCertVerificationError as error:
        found = distrusted(broker, files, error)
        checkup.fail("broker_tls", found.problem, found.remedy)
        return False
    except (ssl.SSLError, OSError) as error:
        words = getattr(error, "reason", None) or error.strerror or str(error)
        remedy = "use the port of the broker's TLS listener (8883 by custom), or mqtt:// for one without TLS"
        remedy = broker.scheme_hint or remedy
        checkup.fail("broker_tls", f"no TLS with {broker}: {words}", remedy)
        return False
    _judge_certificate(str(certificate.get("notAfter", "")), f"{version} with {broker}", checkup)
    return True


def _judge_certificate(not_after: str, what: str, checkup: Checkup) -> None:
    if not not_after:
        checkup.good("broker_tls", f"{what}, trusted")
        return
    left_days = int((ssl.cert_time_to_seconds(not_after) - time.time()) // _DAY_S)
    text = f"{what}; its certificate is good for {left_days} more days"
    if left_days < CERTIFICATE_DAYS:
        checkup.warn("broker_tls", text, "renew the broker's certificate before devices refuse it")
    else:
        checkup.good("broker_tls", text)
