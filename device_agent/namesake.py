"""Whether another agent uses the id of this device: the two would push each other off the broker for ever.

Most brokers do not say why they closed a connection. But what a device says of its state is kept, and read by the device
itself: once it was there, nobody else should say there that he is online. The test is strict, since an innocent agent may
find another's words there, too: those of its own former life, when it starts or when a broker comes back with an old copy
of what it kept. So the other must be heard on two of our connections, after we were heard ourselves on an earlier one.
"""

from __future__ import annotations

from shared.messages import DeviceState

_TIMES = 2


class Namesake:
    """Fed with what stands on the device's own state topic; `found` while another agent was heard not long ago.

    `boot` is the nonce of this agent's start. After `forget_s` without a word of the other, it is taken to be gone.
    """

    def __init__(self, boot: str, forget_s: float) -> None:
        self._boot = boot
        self._forget_s = forget_s
        self._connection = 0
        self._we_were_heard_on = 0
        self._other_was_heard_on = 0
        self._times = 0
        self._forget_at: float | None = None

    @property
    def found(self) -> bool:
        """Whether there is another."""
        return self._times >= _TIMES

    def connected(self) -> None:
        """A connection to the broker begins."""
        self._connection += 1

    def heard(self, state: DeviceState, now: float) -> bool:
        """Takes what somebody said; True when that tells, for the first time, that there is another."""
        if state.boot == self._boot:
            self._we_were_heard_on = self._we_were_heard_on or self._connection
            return False
        # A last will may come long after whoever left it was replaced.
        if not state.online or not 0 < self._we_were_heard_on < self._connection:
            return False
        if self._connection == self._other_was_heard_on:
            return False
        self._other_was_heard_on = self._connection
        self._times += 1
        self._forget_at = now + self._forget_s
        return self._times == _TIMES

    def tick(self, now: float) -> bool:
        """Lets time pass; True when the other is taken to be gone."""
        if self._forget_at is None or now < self._forget_at:
            return False
        was_found, self._times, self._forget_at = self.found, 0, None
        return was_found

    def next_deadline(self) -> float | None:
        """When `tick` has something to do."""
        return self._forget_at
