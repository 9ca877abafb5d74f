"""The probe of a standby: a connection that shows whether the standby reaches the broker, and so could lead its fleet."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from fedpatch.coordinator.runtime.fleet_claim import client_id
from fedpatch.coordinator.settings import RunSettings
from fedpatch.shared.mqtt.broker_settings import link_options
from fedpatch.shared.mqtt.client import Connected, Disconnected, LinkEvent, MqttLink

if TYPE_CHECKING:
    from fedpatch.coordinator.observability.status_message import View
    from fedpatch.coordinator.runtime.ports import Ports

_KEEPALIVE_S = 5  # a broker that does not answer is noticed within twice this time
_RECONNECT_DELAY_S = (1.0, 10.0)


class BrokerProbe:
    """A connection under a client id of its own, without a will and without messages; a context manager.

    It is opened at the first call of `connected`: a coordinator that leads at once needs none.

    Args:
        settings: Broker, fleet and identity.
        ports: The environment of the coordinator.
        view: Says when the broker is lost and found.
    """

    def __init__(self, settings: RunSettings, ports: Ports, view: View) -> None:
        self._settings, self._ports, self._view = settings, ports, view
        self._link: MqttLink | None = None
        self._connected = False
        self._lost = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._link is not None:
            self._link.stop(0.0)

    def connected(self) -> bool:
        """Return whether the broker answers this standby."""
        if self._link is None:
            self._link = self._open()
        return self._connected

    def _open(self) -> MqttLink:
        settings, ports = self._settings, self._ports
        link = ports.link(
            settings.broker,
            client_id=f"{client_id(settings.fleet)}.{ports.entropy.getrandbits(64):016x}",
            events=self._note,
            **link_options(settings),
            clean_start=True,
            keepalive_s=_KEEPALIVE_S,
            reconnect_delay_s=_RECONNECT_DELAY_S,
        )
        link.start()
        return link

    def _note(self, event: LinkEvent) -> None:
        """Note the state of the link. Called in its thread."""
        if isinstance(event, Connected):
            self._connected = True
            if self._lost:
                self._view.say("standby: the broker answers again")
            self._lost = False
        elif isinstance(event, Disconnected):
            self._connected = False
            if not self._lost:
                self._view.say(f"standby: {event.reason}; this standby takes over only while the broker answers")
            self._lost = True
