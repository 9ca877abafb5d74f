"""Views of a run for tests."""

from __future__ import annotations

from fedpatch.coordinator.observability.snapshot import Snapshot


class Silent:
    """Shows nothing, says nothing."""

    def show(self, snapshot: Snapshot) -> None:
        """Not this one."""

    def say(self, line: str) -> None:
        """Nor this one."""
