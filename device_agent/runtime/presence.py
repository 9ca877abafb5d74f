"""Messages of a device about itself: its retained state and its vitals."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from msgspec import UNSET

from fedpatch.device_agent.policy.examples_in_presence import with_hidden_examples
from fedpatch.device_agent.policy.withheld_reasons import without_reason
from fedpatch.device_agent.runtime.duplicate_id import DuplicateIdDetector
from fedpatch.device_agent.sensors.device_facts import Facts
from fedpatch.device_agent.telemetry.vitals import VitalsPace
from fedpatch.shared import __version__
from fedpatch.shared.mqtt.events import Link
from fedpatch.shared.mqtt.traffic import Traffic
from fedpatch.shared.wire import topics
from fedpatch.shared.wire.codec import encode
from fedpatch.shared.wire.features import (
    DEVICE_FEATURES,
    MASKED_FEATURE,
    SHARED_ID_FEATURE,
    SIGNED_FEATURE,
    URL_FEATURE,
)
from fedpatch.shared.wire.messages import ENCODINGS, DeviceState, Envelope, JobStatus, TaskCapability
from fedpatch.shared.wire.reason_codes import Condition
from fedpatch.shared.wire.vitals import LastRound

_log = logging.getLogger("fedpatch.agent")


class AgentLink(Link, Protocol):
    """A link that counts its bytes, and whose pauses between attempts to connect can be made long."""

    @property
    def traffic(self) -> Traffic:
        """Bytes that all connections of this link have moved."""

    def use_long_backoff(self, patient: bool) -> None:
        """Set whether to wait for the longest pause before each further attempt to connect."""


@dataclass(frozen=True)
class Identity:
    """Names of this agent; `boot` is new at each start."""

    fleet: str
    device: str
    boot: str

    @classmethod
    def new(cls, fleet: str, device: str) -> Identity:
        """Make the identity of a start. UsageError where a topic cannot hold the names."""
        topics.device_state(fleet, device)
        return cls(fleet, device, secrets.token_hex(8))

    @property
    def client_id(self) -> str:
        """MQTT client id. Names hold no dot, so it differs from those of all other devices and of the coordinator."""
        return f"fedpatch.{self.fleet}.device.{self.device}"

    def will(self) -> tuple[str, bytes]:
        """Topic and payload that the broker publishes when the connection breaks, and the agent itself when it ends."""
        gone = Envelope(DeviceState(online=False, boot=self.boot))
        return topics.device_state(self.fleet, self.device), encode(gone)


class Presence:
    """Publishes the device's state and vitals while it is connected.

    Args:
        identity: Names of this agent.
        link: Connection to the broker.
        detector: Finds another agent with the same id.
        vitals: When to send vitals; None where the owner shares none.
        masks: Whether the device masks updates.
        signs: Whether it can sign the keys of masked rounds.
        hides_examples: Whether the number of training examples stays on the device: 1 is published in its place.
        fetches: Whether the device fetches models by URL.
        shares_reasons: Whether the state names the preference that is not met.
        features: Features of work requests that the device understands, without those of masked rounds.
        more_features: Returns the features of a relay that may change.
        encodings: Encodings that it can decode.
        path: Returns the path of a relay (DeviceState.path); () for other devices.
    """

    def __init__(  # noqa: PLR0913 - one keyword per property of the device
        self,
        identity: Identity,
        link: AgentLink,
        detector: DuplicateIdDetector,
        vitals: VitalsPace | None = None,
        *,
        masks: bool = False,
        signs: bool = False,
        hides_examples: bool = False,
        fetches: bool = False,
        shares_reasons: bool = True,
        features: tuple[str, ...] = DEVICE_FEATURES,
        more_features: Callable[[], tuple[str, ...]] = tuple,
        encodings: tuple[str, ...] = ENCODINGS,
        path: Callable[[], tuple[str, ...]] = tuple,
    ) -> None:
        self.connected = False
        self.problem = ""  # for status.json
        self._is_twin_published = False
        self._is_shown = False  # whether the broker has sent the own state back on this connection
        self._identity = identity
        self._link = link
        self._detector = detector
        self._vitals = vitals
        self._retain = True
        masking = (MASKED_FEATURE, SIGNED_FEATURE) if signs else (MASKED_FEATURE,)
        self._features = (*features, *(masking if masks else ()), *((URL_FEATURE,) if fetches else ()))
        self._more_features = more_features
        self._encodings = encodings
        self._path = path
        self._hides_examples = hides_examples
        self._shares_reasons = shares_reasons

    def link_up(self, *, retain: bool) -> None:
        """A connection began; `retain`: the broker keeps retained messages."""
        self.connected, self._retain, self._is_shown = True, retain, False
        self._detector.connected()
        self.resend_vitals()

    def link_down(self) -> None:
        """The connection ended."""
        self.connected = False

    def publish(
        self, tasks: tuple[TaskCapability, ...], job: JobStatus | None, unwilling: Condition | None = None
    ) -> None:
        """Publish the state. Without tasks the device is starting, and a coordinator waits for it.

        Args:
            tasks: Tasks of this device; empty while its task is being loaded.
            job: The current job.
            unwilling: The preference that is not met, None where the device would take work.
        """
        if not self.connected:
            return
        state = DeviceState(
            online=True,
            boot=self._identity.boot,
            version=__version__,
            tasks=with_hidden_examples(tasks) if self._hides_examples else tasks,
            encodings=self._encodings,
            job=job,
            unwilling=unwilling,
            features=(
                *self._features,
                *self._more_features(),
                *((SHARED_ID_FEATURE,) if self.has_twin else ()),
            ),
            path=self._path() or UNSET,
        )
        topic = topics.device_state(self._identity.fleet, self._identity.device)
        shown = state if self._shares_reasons else without_reason(state)
        self._link.publish(topic, encode(Envelope(shown)), retain=self._retain)
        self._is_twin_published = self.has_twin

    def publish_gone(self) -> None:
        """Publish that the agent ends."""
        topic, gone = self._identity.will()
        if self.connected:
            self._link.publish(topic, gone, retain=self._retain)

    def resend_vitals(self) -> None:
        """Send vitals again soon: a new coordinator or broker has none."""
        if self._vitals is not None:
            self._vitals.forget()

    def publish_vitals(self, facts: Facts | None, last_round: LastRound | None, now: float) -> None:
        """Publish vitals where they are due.

        Args:
            facts: The newest facts about the device, None while there are none.
            last_round: Durations of the last committed round.
            now: Monotonic seconds.
        """
        if not self.connected or self._vitals is None:
            return
        vitals = self._vitals.next(facts, last_round, now)
        if vitals is not None:
            self._link.publish(topics.up(self._identity.fleet, self._identity.device), encode(Envelope(vitals)))

    @property
    def has_twin(self) -> bool:
        """True if another agent uses this device's id now, such as the old card of a restored one."""
        return self._detector.detected

    @property
    def is_outdated(self) -> bool:
        """True if the published state does not say whether the id is shared."""
        return self.connected and self._is_twin_published != self.has_twin

    def suspect(self, now: float) -> None:
        """Note that another agent was online under this id before this one connected."""
        if self._detector.suspect(now):
            self._report_duplicate()

    def observe(self, state: DeviceState, now: float) -> bool:
        """Take a state from the device's own topic: another agent with this id may have published it.

        Returns:
            Whether the last will of a connection that was replaced has just replaced the state of this one.
        """
        if self._detector.observe(state, now):
            self._report_duplicate()
        if state.boot != self._identity.boot:
            return False
        is_replaced, self._is_shown = self._is_shown and not state.online, state.online
        return is_replaced

    def tick(self, now: float) -> None:
        """Let time pass."""
        if self._detector.tick(now):
            self._report_duplicate()

    def next_deadline(self) -> float | None:
        """Return the time at which `tick` is due."""
        return self._detector.next_deadline()

    def _report_duplicate(self) -> None:
        """Report a second agent, or its end. Both stay, since neither is known to be right, but reconnect after long pauses."""
        detected, me = self._detector.detected, self._identity
        remedy = "end one of them, or give it another --device-id"
        text = f"another agent uses the device id {me.device!r} in fleet {me.fleet!r}; {remedy}"
        self.problem = text if detected else ""
        if detected:
            _log.error("%s", text)
        else:
            _log.info("the other agent with the device id %r has not been seen for a while", me.device)
        self._link.use_long_backoff(detected)
