"""The bytes that the agent has moved: by its connection, and beside it."""

from __future__ import annotations

from fedpatch.device_agent.policy.usage import JobUsage
from fedpatch.device_agent.runtime.presence import AgentLink
from fedpatch.shared.mqtt.traffic import Traffic


class TrafficCount:
    """Counts the bytes of this process for the owner's allowance and the history.

    Args:
        link: Connection to the broker.
        usage: Usage of the current work.
    """

    def __init__(self, link: AgentLink, usage: JobUsage) -> None:
        self._link = link
        self._usage = usage
        self._beside = Traffic()

    @property
    def total(self) -> Traffic:
        """All bytes that this process has moved."""
        return self._link.traffic.plus(self._beside)

    def count_link(self) -> None:
        """Count what the link has moved since the last call."""
        self._usage.link_moved(self._link.traffic)

    def moved_beside(self, traffic: Traffic) -> None:
        """Count what was moved beside the link: models by URL, and the look for another agent of this name."""
        self._beside = self._beside.plus(traffic)
        self._usage.moved(traffic.total_bytes)
