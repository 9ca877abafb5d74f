"""The known devices: their presence, the reasons not to invite them, and the devices that can be invited."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from msgspec import UNSET

from fedpatch.coordinator.cohort.device_count import DeviceCount
from fedpatch.coordinator.rounds.asked_after_decline import is_still_barred, pause_s, still_pauses
from fedpatch.coordinator.rounds.decline_hints import word_of
from fedpatch.coordinator.rounds.device_needs import answers_with_sums, lacking
from fedpatch.coordinator.rounds.device_pauses import DevicePauses
from fedpatch.coordinator.rounds.encoding_for_device import EVERYWHERE, encoding_for
from fedpatch.coordinator.rounds.false_presence import FalsePresence
from fedpatch.coordinator.rounds.full_fleet import ReplaceableDevices
from fedpatch.coordinator.rounds.held_devices import HeldDevices
from fedpatch.shared.wire.features import (
    DEVICE_FEATURES,
    MASKED_FEATURE,
    SHARED_ID_FEATURE,
    SIGNED_FEATURE,
    SUMS_FEATURE,
    URL_FEATURE,
)
from fedpatch.shared.wire.messages import Decline, DeviceState

_KEPT_FEATURES = (
    *DEVICE_FEATURES,
    MASKED_FEATURE,
    SIGNED_FEATURE,
    SUMS_FEATURE,
    URL_FEATURE,
    SHARED_ID_FEATURE,
)


@dataclass
class Member:
    """A known device.

    Attributes:
        state: Its last presence.
        held: The operator's hold: "quarantined", "drained" or "revoked"; "" for none.
        barred: A lasting reason of the device itself not to invite it, in words; "" for none.
        barred_for: The same as a DeclineReason, if the device declined.
        progress: The completed share of its job, from 0 to 1.
        resting: The reason of its pause; "" for none.
    """

    state: DeviceState
    held: str = ""
    barred: str = ""
    barred_for: str = ""
    progress: float = 0.0
    resting: str = ""

    @property
    def unwilling(self) -> str:
        """The reason for which it would decline now; "" if it can be invited."""
        return self.state.unwilling or self.resting


class Fleet:
    """The devices that this coordinator has seen.

    Args:
        task: Name of the run's task.
        most: Greatest number of devices at a time.
        encoding: The run's encoding.
        needs: Features that a device must list to be invited, each with the reason to leave out a device that lacks it.
        max_members: Most devices that one device may speak for.
        least: Devices that the fleet counts as at least.

    Attributes:
        members: The devices by name.
        count: The numbers of devices that count for a round.
        held_devices: The operator's holds.
        evicted: Devices that were replaced since the caller last cleared the list.
        offenders: Offenders, which this run does not invite again, each with its offence.
        false_presence: Ids that several agents use, and devices that are shown online and do not answer.
    """

    def __init__(
        self,
        task: str,
        most: int = 100_000,
        encoding: str = EVERYWHERE,
        needs: Mapping[str, str] | None = None,
        max_members: int = 1,
        least: int = 1,
    ) -> None:
        self.members: dict[str, Member] = {}
        self.count = DeviceCount(least)
        self.held_devices = HeldDevices()
        self.evicted: list[str] = []
        self.offenders: dict[str, str] = {}
        self.false_presence = FalsePresence()
        self._pauses = DevicePauses()
        self._most = most
        self._task = task
        self._encoding = encoding
        self._needs = needs or {}
        self._max_members = max_members
        # The version of the global model that a device holds, by device.
        self._versions: dict[str, str] = {}
        self._replaceable = ReplaceableDevices()
        self._starting: set[str] = set()
        self._relays_of_sums: set[str] = set()

    def update(self, device: str, state: DeviceState) -> bool:
        """Note a presence.

        Returns:
            Whether it was noted. False for the last will of an earlier connection, and for a new device in a full fleet.
        """
        known = self.members.get(device)
        if known is None and not self._make_room():
            return False
        if not state.online and known is not None:
            return self._note_last_will(device, known, state)
        member = self.members[device] = Member(state, self.held(device))
        self._replaceable.forget(device)
        if not state.online:
            self._replaceable.leaves(device)
        if known is not None and is_still_barred(known.state, state):
            member.barred, member.barred_for = known.barred, known.barred_for
        if reason := lacking(state, self._needs, self._max_members):
            member.barred = reason
        elif member.barred in self._needs.values():
            member.barred = ""
        if known is not None and still_pauses(known.state, state):
            member.resting = known.resting
        else:
            self._pauses.end(device)
        sums = answers_with_sums(state, self._max_members)
        (self._relays_of_sums.add if sums else self._relays_of_sums.discard)(device)
        self._sort(device)
        return True

    def _note_last_will(self, device: str, known: Member, will: DeviceState) -> bool:
        """Note that a device is offline, the only news in a last will; return False for that of an earlier connection."""
        if known.state.boot != will.boot:
            return False
        known.state = replace(known.state, online=False)
        self._replaceable.leaves(device)
        self._sort(device)
        return True

    def relevant(self, state: DeviceState) -> DeviceState:
        """Return the parts of a presence that are kept, so that each device takes the same memory."""
        # A device with other tasks keeps one of them, since no task means that the device is starting.
        own = tuple(one for one in state.tasks if one.task == self._task)[:1] or state.tasks[:1]
        known = tuple(word for word in _KEPT_FEATURES if word in state.features)
        encodings = (encoding_for(self._encoding, state.encodings),)
        return replace(state, tasks=own, encodings=encodings, features=known, path=UNSET)

    def encoding(self, device: str) -> str:
        """Return the encoding of a device's update; the run's encoding for an unknown device."""
        known = self.members.get(device)
        return encoding_for(self._encoding, known.state.encodings) if known else self._encoding

    def knows(self, device: str, feature: str) -> bool:
        """Return whether the presence of a device lists a feature of work requests."""
        known = self.members.get(device)
        return known is not None and feature in known.state.features

    def all_know(self, devices: Iterable[str], feature: str) -> bool:
        """Return whether the presence of each device lists a feature."""
        return all(self.knows(device, feature) for device in devices)

    def sums(self, device: str) -> bool:
        """Return whether a device is a relay that answers a masked round with the sum of its site."""
        return device in self._relays_of_sums

    def has_relay_of_sums(self) -> bool:
        """Return whether a relay that answers with sums can be invited."""
        return not self._relays_of_sums.isdisjoint(self.count.invitable)

    def is_online(self, device: str) -> bool:
        """Return whether a device is connected, as far as is known."""
        known = self.members.get(device)
        return known is not None and known.state.online

    def registered(self, device: str) -> int | None:
        """Return the number of examples that the device registered; None if it is unknown."""
        known = self.members.get(device)
        return next((one.num_examples for one in known.state.tasks if one.task == self._task), None) if known else None

    def members_of(self, device: str) -> int:
        """Return the number of devices that a device registered to speak for; 1 for an unknown device."""
        known = self.members.get(device)
        own = (one.num_members for one in known.state.tasks if one.task == self._task) if known else iter(())
        return next(own, 1)

    def may_be_relay(self, device: str) -> bool:
        """Return whether a device may speak for several: it says so, or its presence is unknown in a run that asks relays."""
        return self.members_of(device) > 1 if device in self.members else self._max_members > 1

    def works(self, device: str) -> None:
        """Note that the device has worked, so that it is never replaced by a new one."""
        self._replaceable.works(device)

    def note_version(self, device: str, version: str) -> None:
        """Note the version of the global model that the device holds."""
        if device in self.members:
            self._versions[device] = version

    def version(self, device: str) -> str:
        """Return the version of the global model that the device holds; "" if it is unknown."""
        return self._versions.get(device, "")

    def hold(self, holds: Mapping[str, str]) -> None:
        """Replace the set of quarantined and drained devices; revoked devices stay revoked."""
        self._hold_back(self.held_devices.put(holds))

    def revoke(self, devices: Collection[str]) -> None:
        """Replace the set of revoked devices, which may include devices that were never seen."""
        self._hold_back(self.held_devices.revoke(devices))

    def held(self, device: str) -> str:
        """Return the operator's hold on the device; "" for none."""
        return self.held_devices.reason(device)

    def remember(self, devices: Iterable[str]) -> None:
        """Add devices that earlier epochs of the run have seen with its task; they count although they may be offline."""
        for device in devices:
            self._recount(device, able=True)

    def exclude_offender(self, device: str, offence: str) -> None:
        """Never invite an offender again in this run."""
        self.offenders[device] = offence
        self._sort(device)

    @property
    def left(self) -> set[str]:
        """Devices that have left the count: they cannot take part in the run, are offenders or revoked."""
        return self.count.left | self.held_devices.revoked

    def missing(self) -> list[str]:
        """Return the devices that count and cannot be invited now, sorted."""
        return sorted(self.count.missing)

    def why_missing(self, device: str) -> str:
        """Return the reason for which a device that counts cannot be invited now."""
        member = self.members.get(device)
        if member is None or not member.state.online:
            return "offline"
        if device in self._starting:
            return "starting"
        return member.unwilling or "without the task"

    def declined(self, device: str, answer: Decline, now: float) -> None:
        """Note when to invite the device again, even if the round of its decline is over.

        Args:
            answer: Its decline, with the reason and the pause.
            now: The time, in seconds.
        """
        pause = pause_s(answer)
        if math.isinf(pause):
            self.bar(device, answer.detail or answer.reason)
            if device in self.members:
                self.members[device].barred_for = answer.reason
        elif pause:
            self.rest(device, word_of(answer), now + pause)

    def bar(self, device: str, reason: str) -> None:
        """Do not invite the device until it restarts or offers other tasks."""
        if device in self.members:
            self.members[device].barred = reason
            self._sort(device)

    def rest(self, device: str, reason: str, until: float) -> None:
        """Do not invite the device before a time, unless its presence changes first.

        Args:
            reason: The reason, which is shown and counted.
            until: The time, in seconds of the run's clock.
        """
        if device in self.members:
            self.members[device].resting = reason
            self._pauses.begin(device, until)
            self._sort(device)

    def wake(self, now: float) -> None:
        """End the pauses that are over."""
        for device in self._pauses.over(now):
            self.members[device].resting = ""
            self._sort(device)

    def next_pause_end(self) -> float | None:
        """Return the time of the next end of a pause; None without a pause."""
        return self._pauses.next_end

    def unwilling(self) -> Counter[str]:
        """Return the number of online devices that would decline now, by reason."""
        return Counter(
            one.unwilling for device, one in self.members.items() if one.unwilling and self._could(device, one)
        )

    def boot(self, device: str) -> str:
        """Return the boot nonce of the device; "" for an unknown device."""
        known = self.members.get(device)
        return known.state.boot if known else ""

    @property
    def present(self) -> int:
        """The number of devices that can be invited."""
        return len(self.count.invitable)

    def count_eligible(self, devices: Collection[str]) -> int:
        """Return the number of these devices that can be invited."""
        return len(self.count.invitable.intersection(devices))

    @property
    def starting(self) -> int:
        """The number of online devices that have not loaded their task yet, without held devices."""
        return len(self._starting)

    def is_starting(self, device: str) -> bool:
        """Return whether a device is online and has not loaded its task yet."""
        return device in self._starting

    def eligible(self) -> list[str]:
        """Return the devices that can be invited, sorted: online, with this task, willing, not barred, not held back."""
        return sorted(self.count.invitable)

    def _hold_back(self, changed: Collection[str]) -> None:
        self.count.hold(self.held_devices.by_device.keys())
        for device in changed:
            if device in self.members:
                self.members[device].held = self.held(device)
            self._sort(device)

    def _make_room(self) -> bool:
        while len(self.members) >= self._most:
            device = self._replaceable.longest_offline
            if device is None:
                return False
            self._replaceable.forget(device)
            self.members.pop(device, None)
            self._versions.pop(device, None)
            self._starting.discard(device)
            self._pauses.end(device)
            self.count.forget(device)
            self.evicted.append(device)
        return True

    def _could(self, device: str, member: Member) -> bool:
        """Return whether a device could be invited if it were willing."""
        state = member.state
        return (
            state.online
            and not member.held
            and not member.barred
            and device not in self.offenders
            and any(one.task == self._task for one in state.tasks)
        )

    def _sort(self, device: str) -> None:
        """Sort a device into the sets that it belongs to; called after each change of it."""
        member = self.members.get(device)
        starts = member is not None and member.state.online and not member.state.tasks and not member.held
        (self._starting.add if starts else self._starting.discard)(device)
        self._recount(device, able=member is not None and any(one.task == self._task for one in member.state.tasks))

    def _recount(self, device: str, *, able: bool) -> None:
        member = self.members.get(device)
        barred = member is not None and member.barred != ""
        invitable = member is not None and self._could(device, member) and not member.unwilling
        self.count.note(device, able=able, out=barred or device in self.offenders, invitable=invitable)
