"""The devices as their retained presence shows them, and which of them can be asked."""

from __future__ import annotations

from dataclasses import dataclass, replace

from shared.messages import DeviceState


@dataclass
class Member:
    """A device. `barred` is its own lasting reason not to be asked again, `progress` the fraction of its job."""

    state: DeviceState
    barred: str = ""
    progress: float = 0.0


class Fleet:
    """All devices that were ever seen by this coordinator."""

    def __init__(self, task: str) -> None:
        self.members: dict[str, Member] = {}
        self._task = task
        self._eligible: set[str] = set()

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
        if state.online and not member.barred and any(one.task == self._task for one in state.tasks):
            self._eligible.add(device)
        else:
            self._eligible.discard(device)
        return True

    def bar(self, device: str, reason: str) -> None:
        """Asking again cannot help until the device itself changes."""
        if device in self.members:
            self.members[device].barred = reason
            self._eligible.discard(device)

    def boot(self, device: str) -> str:
        """The boot nonce last seen, "" for a device that never was."""
        known = self.members.get(device)
        return known.state.boot if known else ""

    @property
    def present(self) -> int:
        """How many devices can be asked."""
        return len(self._eligible)

    def eligible(self) -> list[str]:
        """Devices that can be asked: online, with this task, not barred; sorted."""
        return sorted(self._eligible)
