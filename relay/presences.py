"""The devices of the site as their presences show them: who can take a round, and the circles of relays."""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import dataclass, field, replace

from fedpatch.shared.wire.messages import (
    EVALUATE_FEATURE,
    MASKED_FEATURE,
    MAX_PATH,
    SUMS_FEATURE,
    DeviceState,
    TaskCapability,
)
from fedpatch.shared.wire.reason_codes import Condition

_MASKING = frozenset({MASKED_FEATURE, SUMS_FEATURE})
_log = logging.getLogger("fedpatch.relay")


@dataclass(frozen=True)
class SiteSummary:
    """The site as the parent sees it.

    Attributes:
        devices: Devices that can be asked.
        members: Devices behind them, where some are relays.
        num_examples: Their training examples.
        unwilling: The reason for which the relay would decline now; None where it would accept.
        path: The path of the relay (DeviceState.path).
        masking: Those of the members that take part in masked rounds.
        measures: Whether enough devices can measure a model without training.
    """

    devices: int = 0
    members: int = 0
    num_examples: int = 0
    unwilling: Condition | None = Condition.PAUSED
    path: tuple[str, ...] = ()
    masking: int = 0
    measures: bool = False

    def at_least(self, other: SiteSummary) -> SiteSummary:
        """Return the figures with no fewer members and examples than `other`, and with its willingness."""
        return replace(
            self,
            members=max(self.members, other.members),
            num_examples=max(self.num_examples, other.num_examples),
            unwilling=other.unwilling,
            masking=other.masking,
            measures=other.measures,
        )


@dataclass
class Presences:
    """The last presence of each device of the site.

    Args:
        own_id: The relay's id in paths.
        task: Name of the task.
        schema: Digest of its model's schema.
        max_members: Most devices that one device may speak for.
        max_devices: Most devices that are remembered.
        min_cohort: Devices without which the relay is unwilling.

    Example:
        >>> site = Presences("r1", "digits", "ab" * 32, max_members=1, max_devices=10, min_cohort=1)
        >>> site.summary().unwilling
        <Condition.PAUSED: 'paused'>
    """

    own_id: str
    task: str
    schema: str
    max_members: int
    max_devices: int
    min_cohort: int
    connected: bool = True
    states: dict[str, DeviceState] = field(default_factory=dict)
    _circles: set[str] = field(default_factory=set)

    def note(self, device: str, state: DeviceState) -> None:
        """Take a presence or a last will."""
        known = self.states.get(device)
        if not state.online:
            if known is not None and known.boot == state.boot:
                del self.states[device]
            return
        if known is None and len(self.states) >= self.max_devices:
            return
        self.states[device] = state
        circle = self._is_circle(state)
        if circle and device not in self._circles:
            _log.error(
                "%s is a relay whose site leads back to this relay, or has more than %d levels; it is not asked. End one of "
                "the relays of the circle",
                device,
                MAX_PATH,
            )
        (self._circles.add if circle else self._circles.discard)(device)

    def _is_circle(self, state: DeviceState) -> bool:
        path = state.path or ()
        return self.own_id in path or len(path) >= MAX_PATH

    @property
    def circles(self) -> frozenset[str]:
        """Devices that are not asked, since the relay would ask itself."""
        return frozenset(self._circles)

    def _own(self, state: DeviceState) -> TaskCapability | None:
        found = (one for one in state.tasks if (one.task, one.schema) == (self.task, self.schema))
        return next((one for one in found if one.num_members <= self.max_members and one.num_examples), None)

    def summary(self) -> SiteSummary:
        """Return the site as the parent shall see it now."""
        able = {device: own for device, state in self.states.items() if (own := self._own(state))}
        asked = {device: own for device, own in able.items() if device not in self._circles}
        willing = {device: own for device, own in asked.items() if self.states[device].unwilling is None}
        enough = self.connected and len(willing) >= self.min_cohort
        masking = {device for device in willing if not _MASKING.isdisjoint(self.states[device].features)}
        measuring = [device for device in willing if EVALUATE_FEATURE in self.states[device].features]
        paths = [self.states[device].path or () for device in asked]
        return SiteSummary(
            devices=len(willing),
            members=max(1, sum(own.num_members for own in willing.values())),
            num_examples=sum(own.num_examples for own in willing.values()),
            unwilling=None if enough else self._commonest(),
            path=(self.own_id, *max(paths, key=len, default=())),
            masking=sum(willing[device].num_members for device in masking),
            measures=self.connected and len(measuring) >= self.min_cohort,
        )

    def _commonest(self) -> Condition:
        """Return the condition that keeps most devices from work; PAUSED where none is named, such as in an empty site."""
        named = Counter(state.unwilling for state in self.states.values() if state.unwilling is not None)
        return min(named, key=lambda one: (-named[one], one), default=Condition.PAUSED)
