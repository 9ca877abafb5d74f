"""The devices of the site by their presences: which can take part in a round, and which relays form a circle."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from fedpatch.shared.wire.features import EVALUATE_FEATURE, MASKED_FEATURE, SIGNED_FEATURE, SUMS_FEATURE
from fedpatch.shared.wire.field_types import MAX_COUNT
from fedpatch.shared.wire.masking_messages import SecureTerms
from fedpatch.shared.wire.messages import MAX_MEMBERS, MAX_PATH, DeviceState, TaskCapability, TrainPlan
from fedpatch.shared.wire.reason_codes import Condition

_log = logging.getLogger("fedpatch.relay")


@dataclass(frozen=True)
class Needs:
    """The conditions of a request that a device of the site must meet.

    Attributes:
        features: Features that its presence must list.
        group_min: Least number of devices in a masked group; 0: the round is not masked.
    """

    features: frozenset[str] = frozenset()
    group_min: int = 0

    @classmethod
    def of(cls, plan: TrainPlan, secure: SecureTerms | None, *, evaluates: bool) -> Needs:
        """Return the needs of a request.

        Args:
            secure: Its terms of secure aggregation; None without.
            evaluates: Whether the request is to measure without training.
        """
        features = {*plan.terms, *((EVALUATE_FEATURE,) if evaluates else ())}
        if secure is None:
            return cls(frozenset(features))
        signed = (SIGNED_FEATURE,) if secure.strict else ()
        return cls(frozenset({*features, MASKED_FEATURE, *signed}), secure.group_min)


_ANY = Needs()


@dataclass(frozen=True)
class Ability:
    """The features of a device, and the number of devices that it represents.

    A relay with SUMS_FEATURE also has the features of masking.
    """

    features: frozenset[str]
    members: int = 1


@dataclass(frozen=True)
class SiteSummary:
    """The site as the hub sees it.

    Attributes:
        members: Devices that can be asked, and the devices behind those that are relays.
        num_examples: Their training examples.
        unwilling: The reason why the relay would decline now; None if it would accept.
        path: The path of the relay (DeviceState.path).
        abilities: Number of devices that can be asked, by ability.
        measures: Whether enough devices can measure a model without training.
    """

    members: int = 0
    num_examples: int = 0
    unwilling: Condition | None = Condition.PAUSED
    path: tuple[str, ...] = ()
    abilities: Mapping[Ability, int] = field(default_factory=dict)
    measures: bool = False

    def able(self, needs: Needs) -> dict[Ability, int]:
        """Return the number of devices that can take part in a request, by ability.

        If there are too few devices for a masked group, only relays take part: their sites have groups of their own.
        """
        fitting = {one: count for one, count in self.abilities.items() if needs.features <= one.features}
        relays = {one: count for one, count in fitting.items() if SUMS_FEATURE in one.features}
        return relays if sum(fitting.values()) - sum(relays.values()) < needs.group_min else fitting

    def at_least(self, other: SiteSummary) -> SiteSummary:
        """Return the figures with at least the members and examples of `other`, and with the willingness of `other`."""
        return replace(
            self,
            members=max(self.members, other.members),
            num_examples=max(self.num_examples, other.num_examples),
            unwilling=other.unwilling,
            abilities=other.abilities,
            measures=other.measures,
        )


@dataclass
class Presences:
    """The last presence of each device of the site.

    Args:
        own_id: The relay's id in paths.
        task: Name of the task.
        schema: Digest of its model's schema.
        max_members: Most devices that one device may represent.
        max_devices: Most devices that are remembered.
        min_cohort: With fewer willing devices the relay is unwilling.

    Attributes:
        connected: Whether the connection to the site's broker is up.
        states: The last presences of the devices that are online.
        held: Devices that the operator holds back: drained, quarantined or revoked.
        restarted: Devices that have restarted since the last round. The next round invites them even if they have been
            absent.

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
    held: frozenset[str] = frozenset()
    restarted: set[str] = field(default_factory=set)
    _circles: set[str] = field(default_factory=set)
    _boots: dict[str, str] = field(default_factory=dict)

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
        if self._boots.get(device, state.boot) != state.boot:
            self.restarted.add(device)
        self._boots[device] = state.boot
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

    def _ability(self, device: str, own: TaskCapability) -> Ability:
        features = frozenset(self.states[device].features)
        if SUMS_FEATURE in features:
            # With max_members = 1, a device that presents itself as a relay is not asked for a sum.
            relay = self.max_members > 1
            features = features | {MASKED_FEATURE, SIGNED_FEATURE} if relay else features - {SUMS_FEATURE}
        return Ability(features, own.num_members)

    def _could(self) -> dict[str, TaskCapability]:
        """Return the devices that are asked if they are willing."""
        held = self._circles | self.held
        able = {device: own for device, state in self.states.items() if (own := self._own(state))}
        return {device: own for device, own in able.items() if device not in held}

    def _willing(self) -> dict[str, TaskCapability]:
        return {device: own for device, own in self._could().items() if self.states[device].unwilling is None}

    def asked(self, needs: Needs = _ANY) -> list[str]:
        """Return the devices that are asked in a round with these needs: those that `summary` counts and that can take part."""
        able = self.summary().able(needs)
        return [device for device, own in self._willing().items() if self._ability(device, own) in able]

    def summary(self) -> SiteSummary:
        """Return the site as it is reported to the hub now."""
        willing = self._willing()
        enough = self.connected and len(willing) >= self.min_cohort
        paths = [self.states[device].path or () for device in self._could()]
        found = SiteSummary(
            members=min(max(1, sum(own.num_members for own in willing.values())), MAX_MEMBERS),
            num_examples=min(sum(own.num_examples for own in willing.values()), MAX_COUNT),
            unwilling=None if enough else self._commonest(),
            path=(self.own_id, *max(paths, key=len, default=())),
            abilities=Counter(self._ability(device, own) for device, own in willing.items()),
        )
        measuring = sum(found.able(Needs(frozenset({EVALUATE_FEATURE}))).values())
        return replace(found, measures=self.connected and measuring >= self.min_cohort)

    def _commonest(self) -> Condition:
        """Return the condition that makes most devices unwilling; PAUSED if there is none, for example in an empty site."""
        named = Counter(state.unwilling for state in self.states.values() if state.unwilling is not None)
        return min(named, key=lambda one: (-named[one], one), default=Condition.PAUSED)
