"""The devices as their retained presence shows them, and which of them can be asked.

What a device's no means to a coordinator: the word it is counted by, what helps, and when to ask again.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from fedpatch.coordinator.cohort.quorum import Standing
from fedpatch.coordinator.cohort.unresponsive_devices import STARTING_S
from fedpatch.coordinator.rounds.run_spec import EVERYWHERE, encoding_for
from fedpatch.shared.app.formatting import counted
from fedpatch.shared.wire.messages import DEVICE_FEATURES, Decline, DeviceState, Failed
from fedpatch.shared.wire.reason_codes import DeclineReason, FailReason

# What went wrong in detail stays in the device's log: an exception's text may hold names and values that are private.
_MENDS = {
    FailReason.DOWNLOAD: "the global model did not arrive whole",
    FailReason.TRAINING: "its log says why",
    FailReason.DEADLINE: "it was not done in time; a longer --deadline-s may help",
    FailReason.NOT_FINITE: "training diverged; try a smaller --learning-rate",
    FailReason.STORAGE: "its disk refused; its log says why",
    FailReason.UNWILLING: "its owner's preferences came first",
}


_DECLINE_MENDS = {
    DeclineReason.PRIVATE_POLICY: "their owners keep more private than the run's --private does; begin a run with a --private "
    "that keeps it too, or have the owners set `private` of their agents",
    DeclineReason.PLAN_LIMIT: "their owners allow less training in one request; begin a run with fewer epochs or steps, or "
    "have the owners raise `max_steps` or `max_epochs` of their agents",
}


def hint_for_decline(word: str) -> str:
    """What a person can do about a lasting reason to decline; "" where the device's own words say it."""
    return _DECLINE_MENDS.get(DeclineReason(word), "") if word in set(DeclineReason) else ""


def word_of(answer: Decline | Failed) -> str:
    """The condition that an owner's preference misses, where one is named, else the reason."""
    return answer.condition or answer.reason


def hint_for(failed: Failed) -> str:
    """What a person can do about it, or where more is written."""
    return _MENDS[failed.reason]


def lasts(decline: Decline) -> bool:
    """Whether asking again cannot help until the device itself changes."""
    return decline.reason not in (DeclineReason.UNWILLING, DeclineReason.STORAGE)


QUARANTINED, DRAINED, REVOKED = "quarantined", "drained", "revoked"
_NAMED = 5


@dataclass
class Member:
    """A device. `barred` is its own lasting reason not to be asked again, `barred_for` the word of it where it declined.

    `progress` is the fraction of its job.

    `held` is its operator's: quarantined, drained or revoked.

    `resting` is the reason for which it is not asked until a time that it named; its presence may say more before.
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
        """Why it would decline, "" where it may be asked."""
        return self.state.unwilling or self.resting


class Fleet:
    """The devices that were seen by this coordinator, no more than `most` at a time.

    Where there is no more room, whoever is gone longest without ever having worked makes way for a newcomer, and a newcomer is
    not taken in while there is no such device. `evicted` are those that had to go, for whoever clears it. `encoding` is
    how updates should travel. `benched` are the offenders, which this run does not ask again, each with its offence.
    """

    def __init__(self, task: str, most: int = 100_000, encoding: str = EVERYWHERE) -> None:
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
        self._versions: dict[str, str] = {}
        self.benched: dict[str, str] = {}
        # Devices that missed the last rounds in which they were asked (coordinator.rounds.missed_rounds).
        self.absent: Mapping[str, int] = {}
        # Which devices count (coordinator.cohort.quorum): those seen with the task, and of these the ones that do not count.
        self._able: set[str] = set()
        self._released: set[str] = set()
        self._left: set[str] = set()
        self._given_up: set[str] = set()
        self._unnamed = 0
        self._eligible: set[str] = set()
        self._starting: set[str] = set()
        self._resting: set[str] = set()
        self._wake_at = math.inf

    def update(self, device: str, state: DeviceState) -> bool:
        """Takes note of a presence. False for the last will of a connection that the device has replaced since.

        False too for one for which there is no room.
        """
        known = self.members.get(device)
        if known is None and not self._make_room():
            return False
        if not state.online and known is not None and known.state.boot != state.boot:
            return False
        if not state.online and known is not None:
            # A last will says nothing but that the device is gone.
            known.state = replace(known.state, online=False)
            self._eligible.discard(device)
            self._starting.discard(device)
            self._gone.setdefault(device)
            return True
        member = self.members[device] = Member(state, self.held(device))
        self._gone.pop(device, None)
        if not state.online:
            self._gone[device] = None
        # What it said of itself holds until it restarts or offers other tasks.
        if known is not None and (known.state.boot, known.state.tasks) == (state.boot, state.tasks):
            member.barred, member.barred_for = known.barred, known.barred_for
        if known is not None and replace(known.state, online=True) == state:
            # Told again, by the broker or after a broken connection: nothing is new, so what it asked for holds.
            member.resting, member.rest_until = known.resting, known.rest_until
        self._sort(device)
        return True

    def relevant(self, state: DeviceState) -> DeviceState:
        """What is kept of a presence: the task of the run, and the encoding, so that no device takes more room than another."""
        # Of a device that has other tasks one of those: only a device that is starting has none.
        own = tuple(one for one in state.tasks if one.task == self._task)[:1] or state.tasks[:1]
        known = tuple(word for word in DEVICE_FEATURES if word in state.features)
        return replace(state, tasks=own, encodings=(encoding_for(self._encoding, state.encodings),), features=known)

    def encoding(self, device: str) -> str:
        """How a device's update is to travel; where nothing is known of it, as in the run."""
        known = self.members.get(device)
        return encoding_for(self._encoding, known.state.encodings) if known else self._encoding

    def knows(self, device: str, feature: str) -> bool:
        """Whether a device lists a feature of work requests."""
        known = self.members.get(device)
        return known is not None and feature in known.state.features

    def registered(self, device: str) -> int | None:
        """How many examples the device says that it has; None where that is not known."""
        known = self.members.get(device)
        return next((one.num_examples for one in known.state.tasks if one.task == self._task), None) if known else None

    def works(self, device: str) -> None:
        """The device has done something for a run, and so has a place for good."""
        self._worked.add(device)

    def has_version(self, device: str, version: str) -> None:
        """The device was seen to have come to this version of the global model."""
        if device in self.members:
            self._versions[device] = version

    def version(self, device: str) -> str:
        """The last one that it was seen to have come to, "" where that is not known."""
        return self._versions.get(device, "")

    def hold(self, holds: Mapping[str, str]) -> None:
        """These devices, and no others, are quarantined or drained, as the words say; those that are revoked stay so."""
        self._holds = dict(holds)
        self._hold_back()

    def revoke(self, devices: Collection[str]) -> None:
        """These devices, and no others, are revoked, whether they were ever seen or not."""
        if self._revoked != devices:
            self._revoked = frozenset(devices)
            self._hold_back()

    def held(self, device: str) -> str:
        """Why the operator does not want the device to be asked, "" where that is not so."""
        return self._held.get(device, "")

    def remember(self, devices: Iterable[str]) -> None:
        """Devices that earlier epochs of the run have seen with its task: they count although they may be away."""
        for device in devices:
            self._able.add(device)
            self._count(device)

    def bench(self, device: str, offence: str) -> None:
        """An offender is not asked again in this run."""
        self.benched[device] = offence
        if device in self.members:
            self._sort(device)
        else:
            self._count(device)

    def standing(self, least: int) -> Standing:
        """How many devices count, of a fleet of `least` devices or more."""
        fleet = max(least, len(self._able)) - len(self._released)
        unnamed = min(self._unnamed, max(0, least - len(self._able)))
        absent = self._able.intersection(self.absent) - self._released - self._left
        return Standing(fleet, len(self._left), len(self._given_up | absent) + unnamed)

    @property
    def left(self) -> set[str]:
        """Devices that have left the count: they cannot take part in the run, are offenders or revoked."""
        return self._left | self._revoked

    def give_up(self, least: int) -> None:
        """The run has waited in vain: devices that are missing now, of `least` or more, do not count until they are back."""
        self._given_up = set(self.missing())
        self._unnamed = max(0, least - len(self._able))

    def missing(self) -> list[str]:
        """Devices that count and cannot be asked now, sorted."""
        return sorted(self._able - self._released - self._left - self._eligible)

    def missing_words(self, most: int = _NAMED) -> str:
        """The first `most` missing devices, each with why it cannot be asked; "" where no known device is missing."""
        missing = self.missing()
        named = [f"{device} ({self._why_missing(device)})" for device in missing[:most]]
        more = [f"{len(missing) - most} more"] if len(missing) > most else []
        return ", ".join(named + more)

    def missing_text(self, wanted: int, wait_s: float) -> str:
        """Why there are too few devices, in words."""
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
        if barred := {device: member.barred for device, member in there.items() if member.barred}:
            mends = _mends(there[device].barred_for for device in barred)
            words.append(f"{len(barred)} of those that are there cannot take part, as {_first(barred)}{mends}")
        if self.benched:
            words.append(f"{len(self.benched)} are not asked again in this run, as {_first(self.benched)}")
        if unwilling := self.unwilling():
            words.append(f"{unwilling.total()} of those that are there are unwilling: {counted(unwilling)}")
        if missing := self.missing_words():
            words.append(f"missing: {missing}; `fedpatch devices drain DEVICE` takes one out of the count")
        if not words and not self.starting:
            words.append(
                "are the agents running, with this broker, fleet and task? "
                "--wait-s gives longer to those that are still on their way"
            )
        return "; ".join([came, *words])

    def declined(self, device: str, answer: Decline, now: float) -> None:
        """Takes note of when to ask again, which holds whatever has become of the round that it was asked for."""
        if lasts(answer):
            self.bar(device, answer.detail or answer.reason)
            if device in self.members:
                self.members[device].barred_for = answer.reason
        elif answer.retry_after_s:
            self.rest(device, word_of(answer), now + answer.retry_after_s)

    def bar(self, device: str, reason: str) -> None:
        """Asking again cannot help until the device itself changes."""
        if device in self.members:
            self.members[device].barred = reason
            self._sort(device)

    def rest(self, device: str, reason: str, until: float) -> None:
        """It would say the same before that time, unless its presence changes first."""
        if device in self.members:
            member = self.members[device]
            member.resting, member.rest_until = reason, until
            self._resting.add(device)
            self._wake_at = min(self._wake_at, until)
            self._sort(device)

    def wake(self, now: float) -> None:
        """Those whose time has come can be asked again."""
        if now < self._wake_at:
            return
        for device in list(self._resting):
            member = self.members[device]
            if member.rest_until <= now or not member.resting:
                self._resting.remove(device)
                member.resting = ""
                self._sort(device)
        self._wake_at = min((self.members[device].rest_until for device in self._resting), default=math.inf)

    def next_wake(self) -> float | None:
        """When `wake` may have something to do."""
        return self._wake_at if self._resting else None

    def unwilling(self) -> Counter[str]:
        """How many of the devices that could be asked would decline now, by reason."""
        return Counter(
            one.unwilling for device, one in self.members.items() if one.unwilling and self._could(device, one)
        )

    def boot(self, device: str) -> str:
        """The boot nonce last seen, "" for a device that never was."""
        known = self.members.get(device)
        return known.state.boot if known else ""

    @property
    def present(self) -> int:
        """How many devices can be asked."""
        return len(self._eligible)

    def count_eligible(self, devices: Collection[str]) -> int:
        """How many of these can be asked."""
        return len(self._eligible.intersection(devices))

    @property
    def starting(self) -> int:
        """How many devices are online and have not loaded their task yet; of those that are held back, none."""
        return len(self._starting)

    def is_starting(self, device: str) -> bool:
        """Whether a device said that it is online, and does not know its tasks yet."""
        return device in self._starting

    def eligible(self) -> list[str]:
        """Devices that can be asked: online, with this task, willing as far as they told, not barred; sorted."""
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
            and device not in self.benched
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
        """Sorts a device among those that count, that are held back, and that have left the count."""
        barred = self.members[device].barred if device in self.members else ""
        able = device in self._able
        released = able and self.held(device) != ""
        left = able and not released and (barred != "" or device in self.benched)
        for devices, belongs in ((self._released, released), (self._left, left)):
            (devices.add if belongs else devices.discard)(device)
        if left or released:
            self._given_up.discard(device)


def _is_starting(member: Member) -> bool:
    return member.state.online and not member.state.tasks and not member.held


def _first(reasons: Mapping[str, str]) -> str:
    device = min(reasons)
    return f"{device}: {reasons[device]}"


def _mends(words: Iterable[str]) -> str:
    """How many declined for which owners' limit, and what helps."""
    return "".join(
        f". {count} declined with {word}: {remedy}"
        for word, count in sorted(Counter(words).items())
        if (remedy := hint_for_decline(word))
    )
