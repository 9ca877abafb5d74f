"""The coordinator's connection to the broker: its presence there, its inbox, and signals as one more kind of event."""

from __future__ import annotations

import logging
import secrets
import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from queue import SimpleQueue
from types import FrameType
from typing import Self

from coordinator.settings import RunSettings
from shared import topics
from shared.codec import encode
from shared.link import Connected, LinkEvent, MqttLink
from shared.messages import CoordinatorState, Envelope

_log = logging.getLogger("fedpatch.coordinator")

CONNECT_TIMEOUT_S = 10.0
# Publishes that may wait for the broker: a model in chunks, and a message to each device.
_MAX_QUEUED = 20_000


class Interrupt:
    """Somebody pressed Ctrl-C or sent SIGTERM."""


Inbox = SimpleQueue[LinkEvent | Interrupt]


class Connection:
    """Entered when the broker has answered; left without a last will. Raises BrokerError when it does not answer.

    While it is open, SIGINT and SIGTERM come as events too, to the very end: what the run came to is not lost to somebody
    who presses Ctrl-C while it says goodbye.
    """

    def __init__(self, settings: RunSettings) -> None:
        self.inbox: Inbox = SimpleQueue()
        self.fleet = settings.fleet
        self._boot = secrets.token_hex(8)
        self._presence = topics.coordinator_state(settings.fleet)
        self.link = MqttLink(
            settings.broker,
            client_id=f"fedpatch.{settings.fleet}.coordinator",  # no device is called so: names hold no dot
            events=self.inbox.put,
            will=(self._presence, self._state(online=False)),
            username=settings.username,
            password=settings.password,
            ca_file=settings.ca_file,
            clean_start=True,
            max_queued=_MAX_QUEUED,
        )
        self.link.subscribe(*topics.coordinator_filters(settings.fleet))
        self._open = ExitStack()

    def __enter__(self) -> Self:
        self.link.start()
        try:
            self.established: Connected = self.link.wait_connected(CONNECT_TIMEOUT_S)
            self._open.enter_context(interrupts_into(self.inbox))
        except BaseException:
            self.link.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        with self._open:
            self.announce(online=False)
            self.link.stop()

    def announce(self, *, online: bool) -> None:
        """Says that the coordinator is there, or leaves."""
        self.link.publish(self._presence, self._state(online=online), retain=self.established.retain_available)

    def send(self, device: str, envelope: Envelope) -> None:
        """A message to a device. One that finds the queue full is lost, as it may be on its way: devices are asked again."""
        if not self.link.publish(topics.down(self.fleet, device), encode(envelope)):
            _log.warning("outgoing queue is full; %s will hear later", device)

    def _state(self, *, online: bool) -> bytes:
        return encode(Envelope(CoordinatorState(online=online, boot=self._boot)))


@contextmanager
def interrupts_into(inbox: Inbox) -> Iterator[None]:
    """SIGINT and SIGTERM become events (SimpleQueue.put may be called from a signal handler).

    In another thread than the first, where Python sets no handlers, they stay what they are.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handler(_signal: int, _frame: FrameType | None) -> None:
        inbox.put(Interrupt())

    before = {number: signal.signal(number, handler) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, former in before.items():
            signal.signal(number, former)
