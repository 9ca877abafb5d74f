"""Connections that the broker ends before it reads CONNECT, as mosquitto counts them in topics below `$SYS`.

A mosquitto that holds `max_connections` clients closes each further connection without a word. The coordinator sees devices
that never come, and the two rates of the last minute: connections that were opened, and CONNECT messages that were read.
"""

from __future__ import annotations

from fedpatch.shared.wire.topics import BROKER_CLIENTS, BROKER_CONNECTS, BROKER_OPENED, CLIENTS_REMEDY

_PAUSE_S = 600.0
_LEAST_A_MINUTE = 3.0


class BrokerRefusals:
    """Compares the two rates; the link's thread calls `note`, the run's thread `take`."""

    def __init__(self) -> None:
        self._counts = dict.fromkeys((BROKER_CLIENTS, BROKER_CONNECTS, BROKER_OPENED), 0.0)
        self._report_at = 0.0

    def note(self, topic: str, payload: bytes) -> bool:
        """Note a figure of the broker. Returns whether the topic is one of these figures."""
        if topic not in self._counts:
            return False
        try:
            self._counts[topic] = float(payload)
        except ValueError:
            self._counts[topic] = 0.0
        return True

    def take(self, now: float, short_of_devices: bool) -> str:
        """Return a line about refused connections while devices are missing, at most once in ten minutes; "" for none.

        A probe that opens a connection and sends nothing counts like a refused device, so nothing is said while all are there.
        """
        refused = self._counts[BROKER_OPENED] - self._counts[BROKER_CONNECTS]
        if not short_of_devices or refused < _LEAST_A_MINUTE or now < self._report_at:
            return ""
        self._report_at = now + _PAUSE_S
        clients = self._counts[BROKER_CLIENTS]
        return (
            f"the broker holds {clients:.0f} clients and closed {refused:.0f} new connections in the last minute unread: "
            f"if devices are among them, {CLIENTS_REMEDY}"
        )
