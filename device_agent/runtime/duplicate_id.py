"""Detection of another agent with the id of this device."""

from __future__ import annotations

from collections.abc import Collection

from fedpatch.shared.wire.messages import DeviceState


class DuplicateIdDetector:
    """Detects another agent that uses the id of this device: the two would disconnect each other from the broker without end.

    Most brokers do not report why they close a connection (mosquitto 2.0 does not). But the broker retains each device's
    state, and a device subscribes to its own topic. Once this agent's state is there, an online state with a boot nonce of no
    start of this agent comes from another agent.

    An agent may also receive states of its own former starts: at its own start, or when a broker restores an old copy. So
    states with `former_boots` are ignored, and a state counts only on a connection after the one on which this agent received
    its own.

    Args:
        boot: The nonce of this agent's start.
        forget_s: Seconds without a state of the other agent after which it is taken to be gone.
        former_boots: Nonces of earlier starts of this agent.

    Example:
        >>> detector = DuplicateIdDetector("b2", forget_s=60.0, former_boots=["b1"])
        >>> detector.connected()
        >>> detector.observe(DeviceState(online=True, boot="b2"), now=0.0)
        False
        >>> detector.connected()
        >>> detector.observe(DeviceState(online=True, boot="another"), now=2.0)
        True
    """

    def __init__(self, boot: str, forget_s: float, former_boots: Collection[str] = ()) -> None:
        self._boot = boot
        self._forget_s = forget_s
        self._former_boots = frozenset(former_boots)
        self._connection = 0
        self._seen_self_on = 0
        self._forget_at: float | None = None

    @property
    def detected(self) -> bool:
        """True if there is another agent with this id."""
        return self._forget_at is not None

    def connected(self) -> None:
        """A connection to the broker begins."""
        self._connection += 1

    def suspect(self, now: float) -> bool:
        """Note that the broker had an online state of another agent before the first connection; True if it is new."""
        was_found, self._forget_at = self.detected, now + self._forget_s
        return not was_found

    def observe(self, state: DeviceState, now: float) -> bool:
        """Take a state from the device's own topic; True when it shows another agent for the first time."""
        if state.boot == self._boot:
            self._seen_self_on = self._seen_self_on or self._connection
            return False
        # A last will may come long after its connection was replaced.
        if not state.online or state.boot in self._former_boots or not 0 < self._seen_self_on < self._connection:
            return False
        return self.suspect(now)

    def tick(self, now: float) -> bool:
        """Let time pass; True when the other agent is taken to be gone."""
        if self._forget_at is None or now < self._forget_at:
            return False
        self._forget_at = None
        return True

    def next_deadline(self) -> float | None:
        """Return the time at which `tick` is due."""
        return self._forget_at
