"""The known devices: their presence, the reasons not to invite them, and the devices that can be invited.

The hints for declines and failures are here too: the reason to count, the remedy, and the time to ask again.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from msgspec import UNSET

from fedpatch.coordinator.cohort.quorum import Standing
from fedpatch.coordinator.rounds.decline_hints import hint_for_decline, lasts, word_of
from fedpatch.coordinator.rounds.false_presence import FalsePresence
from fedpatch.coordinator.rounds.round_phases import STARTING_S
from fedpatch.coordinator.rounds.update_encoding import EVERYWHERE, encoding_for
from fedpatch.shared.app.formatting import counted
from fedpatch.shared.wire.messages import (
    DEVICE_FEATURES,
    MASKED_FEATURE,
    SHARED_ID_FEATURE,
    SIGNED_FEATURE,
    SUMS_FEATURE,
    URL_FEATURE,
    Decline,
    DeviceState,
)

QUARANTINED, DRAINED, REVOKED = "quarantined", "drained", "revoked"
OLD_PLAN = "its version does not know {}, which this run needs; update it"
NO_PRIVACY = "its version does not know dp, which this run needs; update it"

CANNOT_MASK = (
    "cannot mask its update in the groups of this version; update it, with `cryptography`, and let its owner allow it"
)

CANNOT_SIGN = "cannot sign its masking keys; give it a certificate (fedpatch-agent enrol), or take threshold = half"

OF_RELAY = (
    "it is a relay, which passes on no dp or SCAFFOLD, and masked groups from this version on; update it, or have its devices "
    "take part without it"
)

TOO_MANY = "it speaks for {} devices, and max_members is {}; raise max_members if it is a relay of yours"
_NAMED = 5

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
        resting: The reason not to invite it before `rest_until`; "" for none. A new presence may end this pause earlier.
        rest_until: A time in seconds of the run's clock.
    """

    state: DeviceState
    held: str = ""
    barred: str = ""
    barred_for: str = ""
    progress: float = 0.0
    resting: str = ""
    rest_until: float = 0.0

    @property
    def unwilling(self) -> str:
        """The reason for which it would decline now; "" if it can be invited."""
        return self.state.unwilling or self.resting


class Fleet:
    """The devices that this coordinator has seen.

    In a full fleet, a new device replaces the device that has been offline longest among those that never worked. Without such
    a device, the new device is not admitted.

    Args:
        task: Name of the run's task.
        most: Greatest number of devices at a time.
        encoding: The run's encoding.
        needs: Features that a device must list to be invited, each with the reason to leave out a device that lacks it.
        max_members: Most devices that one device may speak for.

    Attributes:
        members: The devices by name.
        evicted: Devices that were replaced since the caller last cleared the list.
        offenders: Offenders, which this run does not invite again, each with its offence.
        absent: Missed rounds in a row by absent device (coordinator.rounds.missed_rounds).
        unsteady: Devices that were absent too often to count (coordinator.rounds.missed_rounds).
        false_presence: Ids that several agents use, and devices that are shown online and do not answer.
        awaited: Devices of the fleet's last run, which the first round waits for by name.
    """

    def __init__(
        self,
        task: str,
        most: int = 100_000,
        encoding: str = EVERYWHERE,
        needs: Mapping[str, str] | None = None,
        max_members: int = 1,
    ) -> None:
        self.members: dict[str, Member] = {}
        self.evicted: list[str] = []
        self._most = most
        self._holds: dict[str, str] = {}
        self._revoked: frozenset[str] = frozenset()
        self._held: dict[str, str] = {}
        self._worked: set[str] = set()
        self._gone: dict[str, None] = {}
        self._task = task
        self._encoding = encoding
        self._needs = needs or {}
        self._max_members = max_members
        self._versions: dict[str, str] = {}
        self.offenders: dict[str, str] = {}
        self.absent: Mapping[str, int] = {}
        self.unsteady: Collection[str] = frozenset()
        self.awaited: frozenset[str] = frozenset()
        self._last_run: frozenset[str] = frozenset()
        self.false_presence = FalsePresence()
        # The devices that were seen with the task, and the sets of these devices that do not count
        # (coordinator.cohort.quorum).
        self._able: set[str] = set()
        self._released: set[str] = set()
        self._left: set[str] = set()
        self._given_up: set[str] = set()
        self._unnamed = 0
        self._eligible: set[str] = set()
        self._starting: set[str] = set()
        self._relays_of_sums: set[str] = set()
        self._resting: set[str] = set()
        self._wake_at = math.inf

    def update(self, device: str, state: DeviceState) -> bool:
        """Note a presence.

        Returns:
            Whether it was noted. False for the last will of an earlier connection, and for a new device in a full fleet.
        """
        known = self.members.get(device)
        if known is None and not self._make_room():
            return False
        if not state.online and known is not None and known.state.boot != state.boot:
            return False
        if not state.online and known is not None:
            # The only news in a last will is that the device is offline.
            known.state = replace(known.state, online=False)
            self._eligible.discard(device)
            self._starting.discard(device)
            self._gone.setdefault(device)
            return True
        member = self.members[device] = Member(state, self.held(device))
        self._gone.pop(device, None)
        if not state.online:
            self._gone[device] = None
        # A lasting reason stays until the device restarts or offers other tasks.
        if known is not None and (known.state.boot, known.state.tasks) == (state.boot, state.tasks):
            member.barred, member.barred_for = known.barred, known.barred_for
        most = max((one.num_members for one in state.tasks), default=1)
        sums = SUMS_FEATURE in state.features and max(most, self._max_members) > 1
        (self._relays_of_sums.add if sums else self._relays_of_sums.discard)(device)
        known_words = {*state.features, *((MASKED_FEATURE, SIGNED_FEATURE) if sums else ())}
        lacking = [why for word, why in self._needs.items() if state.tasks and word not in known_words]
        lacking = [OF_RELAY] if lacking and most > 1 else lacking
        if most > self._max_members:
            lacking.append(TOO_MANY.format(most, self._max_members))
        if lacking:
            member.barred = lacking[0]
        elif member.barred in self._needs.values():
            member.barred = ""
        if known is not None and replace(known.state, online=True) == state:
            # The same presence again, from the broker or after a broken connection, does not end the device's pause.
            member.resting, member.rest_until = known.resting, known.rest_until
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
        return not self._relays_of_sums.isdisjoint(self._eligible)

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
        self._worked.add(device)

    def note_version(self, device: str, version: str) -> None:
        """Note the version of the global model that the device holds."""
        if device in self.members:
            self._versions[device] = version

    def version(self, device: str) -> str:
        """Return the version of the global model that the device holds; "" if it is unknown."""
        return self._versions.get(device, "")

    def hold(self, holds: Mapping[str, str]) -> None:
        """Replace the set of quarantined and drained devices; revoked devices stay revoked."""
        self._holds = dict(holds)
        self._hold_back()

    def revoke(self, devices: Collection[str]) -> None:
        """Replace the set of revoked devices, which may include devices that were never seen."""
        if self._revoked != devices:
            self._revoked = frozenset(devices)
            self._hold_back()

    def held(self, device: str) -> str:
        """Return the operator's hold on the device; "" for none."""
        return self._held.get(device, "")

    def remember(self, devices: Iterable[str]) -> None:
        """Add devices that earlier epochs of the run have seen with its task; they count although they may be offline."""
        for device in devices:
            self._able.add(device)
            self._count(device)

    def exclude_offender(self, device: str, offence: str) -> None:
        """Never invite an offender again in this run."""
        self.offenders[device] = offence
        if device in self.members:
            self._sort(device)
        else:
            self._count(device)

    def expect(self, devices: Iterable[str]) -> None:
        """Note the devices that the fleet's last run has seen with its task; they count once they are there."""
        self._last_run = self.awaited = frozenset(devices)

    def _held_unseen(self, least: int) -> int:
        """Return the number of held devices that this run has not seen and that `least` devices include.

        These are held devices of the fleet's last run. In a fleet without an earlier run they are all held devices. They are a
        minority of `least` at most, since the devices in place of some held long ago may be among `least`.
        """
        unseen = self._held.keys() - self._able
        return min(len(unseen & self._last_run if self._last_run else unseen), max(0, (least - 1) // 2))

    def wanted(self, least: int) -> int:
        """Return the number of devices that the first round of a fleet of `least` devices waits for, without held ones."""
        held = len(self._released) + self._held_unseen(least)
        known = (self._able | self._last_run) - self._held.keys() - self._left
        return min(least, max(least - held, len(known)))

    def standing(self, least: int) -> Standing:
        """Return the numbers of devices for the quorum rule; the fleet counts as `least` devices at least."""
        least -= self._held_unseen(least)
        fleet = max(least, len(self._able)) - len(self._released)
        unnamed = min(self._unnamed, max(0, least - len(self._able)))
        absent = self._able.intersection(self.absent) - self._released - self._left
        out = self._given_up | absent
        unsteady = self._able.intersection(self.unsteady) - self._released - self._left - out
        return Standing(fleet, len(self._left), len(out) + unnamed, len(unsteady))

    @property
    def left(self) -> set[str]:
        """Devices that have left the count: they cannot take part in the run, are offenders or revoked."""
        return self._left | self._revoked

    def give_up(self, least: int) -> None:
        """Stop counting the devices that are missing now until they are back; the fleet counts as `least` devices."""
        self._given_up = set(self.missing())
        self._unnamed = max(0, least - len(self._able))

    def missing(self) -> list[str]:
        """Return the devices that count and cannot be invited now, sorted."""
        return sorted(self._able - self._released - self._left - self._eligible)

    def missing_words(self, most: int = _NAMED) -> str:
        """Return the first `most` missing devices, each with its reason; "" if no known device is missing."""
        missing = sorted({*self.missing(), *(self.awaited - self._held.keys() - self._able)})
        return _with_reasons(missing, self._why_missing, most)

    def left_out_words(self, most: int = _NAMED) -> str:
        """Return the first `most` present devices that are not asked in this run, each with what it lacks; "" for none.

        Devices that declined are not among them: their rounds count them.
        """
        lacking = sorted(
            name for name, one in self.members.items() if one.state.online and one.barred and not one.barred_for
        )
        return _with_reasons(lacking, lambda name: self.members[name].barred, most)

    def missing_text(self, wanted: int, wait_s: float) -> str:
        """Return an error text for too few devices.

        Args:
            wanted: Devices that the run waits for.
            wait_s: The time that it waited, in seconds.
        """
        came = f"{self.present} of {wanted} devices came within {wait_s:g} s"
        if self.starting:
            came += (
                f", and {self.starting} more are still starting {STARTING_S:g} s later; see the logs of their agents, "
                "start fewer of them on one machine, or give them longer with --wait-s"
            )
        there = {device: member for device, member in sorted(self.members.items()) if member.state.online}
        words = []
        if held := {device: member.held for device, member in there.items() if member.held}:
            words.append(f"{len(held)} of those that are there are held back, as {_first(held)}")
        of_fleet = self._held.keys() & (self._able | self._last_run) if self._last_run else self._held.keys()
        if gone := {device: self._held[device] for device in of_fleet - there.keys()}:
            words.append(f"{len(gone)} of those that are not there are held back, as {_first(gone)}")
        if barred := {device: member.barred for device, member in there.items() if member.barred}:
            hints = _decline_hints(there[device].barred_for for device in barred)
            words.append(f"{len(barred)} of those that are there cannot take part, as {_first(barred)}{hints}")
        if self.offenders:
            words.append(f"{len(self.offenders)} are not asked again in this run, as {_first(self.offenders)}")
        if unwilling := self.unwilling():
            words.append(f"{unwilling.total()} of those that are there are unwilling: {counted(unwilling)}")
        if missing := self.missing_words():
            words.append(f"missing: {missing}; `fedpatch devices drain DEVICE` takes one out of the count")
        words += self.false_presence.words()
        if not words and not self.starting:
            words.append(
                "are the agents running, with this broker, fleet and task? "
                "--wait-s gives longer to those that are still on their way"
            )
        return "; ".join([came, *words])

    def declined(self, device: str, answer: Decline, now: float) -> None:
        """Note when to invite the device again, even if the round of its decline is over.

        Args:
            device: The device.
            answer: Its decline, with the reason and the pause.
            now: The time, in seconds.
        """
        if lasts(answer):
            self.bar(device, answer.detail or answer.reason)
            if device in self.members:
                self.members[device].barred_for = answer.reason
        elif answer.retry_after_s:
            self.rest(device, word_of(answer), now + answer.retry_after_s)

    def bar(self, device: str, reason: str) -> None:
        """Do not invite the device until it restarts or offers other tasks."""
        if device in self.members:
            self.members[device].barred = reason
            self._sort(device)

    def rest(self, device: str, reason: str, until: float) -> None:
        """Do not invite the device before a time, unless its presence changes first.

        Args:
            device: The device.
            reason: The reason, which is shown and counted.
            until: The time, in seconds of the run's clock.
        """
        if device in self.members:
            member = self.members[device]
            member.resting, member.rest_until = reason, until
            self._resting.add(device)
            self._wake_at = min(self._wake_at, until)
            self._sort(device)

    def wake(self, now: float) -> None:
        """End the pauses that are over."""
        if now < self._wake_at:
            return
        for device in list(self._resting):
            member = self.members[device]
            if member.rest_until <= now or not member.resting:
                self._resting.remove(device)
                member.resting = ""
                self._sort(device)
        self._wake_at = min((self.members[device].rest_until for device in self._resting), default=math.inf)

    def next_pause_end(self) -> float | None:
        """Return the time of the next end of a pause; None without a pause."""
        return self._wake_at if self._resting else None

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
        return len(self._eligible)

    def count_eligible(self, devices: Collection[str]) -> int:
        """Return the number of these devices that can be invited."""
        return len(self._eligible.intersection(devices))

    @property
    def starting(self) -> int:
        """The number of online devices that have not loaded their task yet, without held devices."""
        return len(self._starting)

    def is_starting(self, device: str) -> bool:
        """Return whether a device is online and has not loaded its task yet."""
        return device in self._starting

    def eligible(self) -> list[str]:
        """Return the devices that can be invited, sorted: online, with this task, willing, not barred, not held back."""
        return sorted(self._eligible)

    def _hold_back(self) -> None:
        held = {**dict.fromkeys(self._revoked, REVOKED), **self._holds}
        changed = {device for device in {*self._held, *held} if self._held.get(device) != held.get(device)}
        self._held = held
        for device in changed & self.members.keys():
            self.members[device].held = held.get(device, "")
            self._sort(device)
        for device in changed - self.members.keys():
            self._count(device)

    def _make_room(self) -> bool:
        while len(self.members) >= self._most:
            device = next((one for one in self._gone if one not in self._worked), None)
            if device is None:
                return False
            for known in (self.members, self._gone, self._versions):
                known.pop(device, None)
            everywhere = (
                self._eligible,
                self._starting,
                self._resting,
                self._able,
                self._released,
                self._left,
                self._given_up,
            )
            for known_names in everywhere:
                known_names.discard(device)
            self.evicted.append(device)
        return True

    def _could(self, device: str, member: Member) -> bool:
        state = member.state
        return (
            state.online
            and not member.held
            and not member.barred
            and device not in self.offenders
            and any(one.task == self._task for one in state.tasks)
        )

    def _why_missing(self, device: str) -> str:
        member = self.members.get(device)
        if member is None or not member.state.online:
            return "offline"
        if device in self._starting:
            return "starting"
        return member.unwilling or "without the task"

    def _sort(self, device: str) -> None:
        member = self.members[device]
        (self._starting.add if _is_starting(member) else self._starting.discard)(device)
        if any(one.task == self._task for one in member.state.tasks):
            self._able.add(device)
        if self._could(device, member) and not member.unwilling:
            self._eligible.add(device)
            self._given_up.discard(device)
        else:
            self._eligible.discard(device)
        self._count(device)

    def _count(self, device: str) -> None:
        """Update the sets of devices that are held back and that have left the count."""
        barred = self.members[device].barred if device in self.members else ""
        able = device in self._able
        released = able and self.held(device) != ""
        left = able and not released and (barred != "" or device in self.offenders)
        for devices, belongs in ((self._released, released), (self._left, left)):
            (devices.add if belongs else devices.discard)(device)
        if left or released:
            self._given_up.discard(device)


def _is_starting(member: Member) -> bool:
    return member.state.online and not member.state.tasks and not member.held


def _with_reasons(devices: Sequence[str], why: Callable[[str], str], most: int) -> str:
    """Return the first `most` devices, each with its reason, and the number of the others."""
    named = [f"{device} ({why(device)})" for device in devices[:most]]
    more = [f"{len(devices) - most} more"] if len(devices) > most else []
    return ", ".join(named + more)


def _first(reasons: Mapping[str, str]) -> str:
    device = min(reasons)
    return f"{device}: {reasons[device]}"


def _decline_hints(words: Iterable[str]) -> str:
    """Return the number of declines by reason, each with its remedy."""
    return "".join(
        f". {count} declined with {word}: {remedy}"
        for word, count in sorted(Counter(words).items())
        if (remedy := hint_for_decline(word))
    )
