"""The answers that a device has given to work requests: a repeated request gets the same answer, an outdated one none."""

from __future__ import annotations

from fedpatch.device_agent.job.job_effects import JobKey
from fedpatch.shared.wire.messages import Decline, Evaluation, Failed


class AnsweredRequests:
    """The last accepted and the last declined request: an answer stays the same, and memory stays bounded.

    Attributes:
        coordinator_is_new: Whether a coordinator has started since the last accepted request. With the state of a backup it
            repeats rounds of an epoch that this device already knows.
    """

    coordinator_is_new = False

    def __init__(self) -> None:
        self._accepted: JobKey | None = None
        self._last: Failed | Evaluation | None = None
        self._declined: tuple[JobKey, Decline] | None = None

    def accepted(self, key: JobKey) -> None:
        """The device works on the request."""
        self._accepted, self._last = key, None
        if self.coordinator_is_new:
            self._declined = None  # a restored coordinator may not have reached this round again
        self.coordinator_is_new = False

    def gave(self, last: Failed | Evaluation) -> None:
        """The device has sent `Failed` or a measurement for the accepted job."""
        self._last = last

    def declined(self, key: JobKey, decline: Decline) -> None:
        """The device declined a request."""
        self._declined = key, decline

    def final(self, key: JobKey) -> Decline | Failed | Evaluation | None:
        """Return the final answer to this request, which the coordinator may not have received; None if there is none."""
        if self._declined is not None and self._declined[0] == key:
            return self._declined[1]
        return self._last if key == self._accepted else None

    def is_superseded(self, key: JobKey, *, idle: bool) -> bool:
        """Return whether this request, which has no final answer, or a newer one of the same run was answered before.

        Args:
            key: The requested job, which is not the present one.
            idle: Whether the device has no job, which an outdated request of the former coordinator would end.
        """
        if idle and self.coordinator_is_new:
            return False
        answered = (self._accepted, self._declined[0] if self._declined else None)
        return any(
            other is not None and other.run == key.run and (key.epoch, key.round) <= (other.epoch, other.round)
            for other in answered
        )
