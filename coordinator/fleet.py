"""The devices as their retained presence shows them, and which of them can be asked."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, replace

from coordinator.answers import lasts, word_of
from shared.messages import Decline, DeviceState


@dataclass
class Member:
    """A device. `barred` is its own lasting reason not to be asked again, `progress` the fraction of its job.

    `resting` is the reason for which it is not asked until a time that it named; its presence may say more before.
    """

    state: DeviceState
    barred: str = ""
    progress: float = 0.0
    resting: str = ""
    rest_until: float = 0.0

    @property
    def unwilling(self) -> str:
        """Why it would decline, "" where it may be asked."""
        return self.state.unwilling or self.resting


class Fleet:
    """All devices that were ever seen by this coordinator."""

    def __init__(self, task: str) -> None:
        self.members: dict[str, Member] = {}
        self._task = task
        self._eligible: set[str] = set()
        self._resting: set[str] = set()
        self._wake_at = math.inf

    def see(self, device: str, state: DeviceState) -> bool:
        """Takes note of a presence. False for the last will of a connection that the device has replaced since."""
        known = self.members.get(device)
        if not state.online and known is not None and known.state.boot != state.boot:
            return False
        if not state.online and known is not None:
            # A last will says nothing but that the device is gone.
            known.state = replace(known.state, online=False)
            self._eligible.discard(device)
            return True
        member = self.members[device] = Member(state)
        # What it said of itself holds until it restarts or offers other tasks.
        if known is not None and (known.state.boot, known.state.tasks) == (state.boot, state.tasks):
            member.barred = known.barred
        if known is not None and replace(known.state, online=True) == state:
            # Told again, by the broker or after a broken connection: nothing is new, so what it asked for holds.
            member.resting, member.rest_until = known.resting, known.rest_until
        self._sort(device)
        return True

    def declined(self, device: str, answer: Decline, now: float) -> None:
        """Takes note of when to ask again, which holds whatever has become of the round that it was asked for."""
        if lasts(answer):
            self.bar(device, answer.detail or answer.reason)
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
        return Counter(one.unwilling for one in self.members.values() if self._could(one) and one.unwilling)

    def boot(self, device: str) -> str:
        """The boot nonce last seen, "" for a device that never was."""
        known = self.members.get(device)
        return known.state.boot if known else ""

    @property
    def present(self) -> int:
        """How many devices can be asked."""
        return len(self._eligible)

    def eligible(self) -> list[str]:
        """Devices that can be asked: online, with this task, willing as far as they told, not barred; sorted."""
        return sorted(self._eligible)

    def _could(self, member: Member) -> bool:
        state = member.state
        return state.online and not member.barred and any(one.task == self._task for one in state.tasks)

    def _sort(self, device: str) -> None:
        member = self.members[device]
        if self._could(member) and not member.unwilling:
            self._eligible.add(device)
        else:
            self._eligible.discard(device)
