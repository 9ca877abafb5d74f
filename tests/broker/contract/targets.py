"""The brokers that fedpatch is tested with, and their differences; docs/how-to/brokers.md lists them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Protocol

import pytest

from fedpatch.coordinator.demo.broker import EmbeddedBroker
from fedpatch.shared.mqtt.events import ProtocolVersion
from tests.broker.ejabberd import PASSWORD, USERNAME, Ejabberd
from tests.broker.relay import Relay
from tests.support.brokers import Client, Mosquitto, client, free_port

AWS_PACKET_BYTES = 131_072


class Broker(Protocol):
    """The interface of all brokers."""

    port: int

    @property
    def url(self) -> str:
        """The URL at which the broker listens."""

    def start(self) -> None:
        """Start the broker, and return once it answers."""


@dataclass
class Target:
    """A running broker. A link agrees with it on the protocol `speaks`; it `announces` a packet limit or None.

    `retains`: it keeps retained messages; `announces_retain`: it announces to a client whether it keeps them.
    `reports_takeover`: it notifies a client that another client has taken its name; None if versions of the broker differ.
    """

    name: str
    url: str
    port: int
    speaks: ProtocolVersion
    restart: Callable[[], None]
    retains: bool = True
    announces_retain: bool = True
    announces: int | None = None
    reports_takeover: bool | None = False
    login: dict[str, str] = field(default_factory=dict)

    @contextmanager
    def client(self, client_id: str, *filters: str, url: str = "", **options: object) -> Iterator[Client]:
        """Start a client, which may connect through a relay at `url`, and stop it in the end."""
        with client(url or self.url, client_id, *filters, **self.login, **options) as one:
            yield one


@contextmanager
def _mosquitto(name: str, options: str = "", **about: object) -> Iterator[Target]:
    with Mosquitto(options) as broker:
        # 2.0.21 reports that a name is taken twice, 2.0.11 does not.
        yield Target(name, broker.url, broker.port, "5", broker.restart, reports_takeover=None, **about)  # type: ignore[arg-type]


@contextmanager
def _old(name: str, *, forgetful: bool) -> Iterator[Target]:
    with Mosquitto() as broker, Relay(broker.port, old=True, forgetful=forgetful) as relay:
        yield Target(
            name, relay.url, relay.port, "3.1.1", broker.restart, retains=not forgetful, announces_retain=not forgetful
        )


@contextmanager
def _amqtt(name: str) -> Iterator[Target]:
    pytest.importorskip("amqtt", reason="the built-in broker is not installed (pip install 'fedpatch[demo]')")
    broker = EmbeddedBroker(port=free_port())

    def restart() -> None:
        broker.stop()
        broker.start()

    with ExitStack() as stack:
        broker.start()
        stack.callback(broker.stop)
        yield Target(name, broker.url, broker.port, "3.1.1", restart)


@contextmanager
def _ejabberd(name: str) -> Iterator[Target]:
    with Ejabberd() as broker:

        def restart() -> None:
            broker.kill()
            broker.start()

        login = {"username": USERNAME, "password": PASSWORD}
        yield Target(name, broker.url, broker.port, "5", restart, reports_takeover=True, login=login)


# Brokers with MQTT 5 first: a link that has fallen back to 3.1.1 stays there.
TARGETS: dict[str, Callable[[str], AbstractContextManager[Target]]] = {
    "mosquitto": _mosquitto,
    "small-packets": lambda name: _mosquitto(name, f"max_packet_size {AWS_PACKET_BYTES}", announces=AWS_PACKET_BYTES),
    "short-queues": lambda name: _mosquitto(
        name, "max_queued_messages 100\nmax_queued_bytes 16000000\nmemory_limit 64000000"
    ),
    "nothing-retained": lambda name: _mosquitto(name, "retain_available false", retains=False),
    "ejabberd": _ejabberd,
    "mosquitto-3.1.1": lambda name: _old(name, forgetful=False),
    "forgetful-3.1.1": lambda name: _old(name, forgetful=True),
    "amqtt": _amqtt,
}
