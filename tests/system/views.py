"""Views of a run for tests."""

from __future__ import annotations

from fedpatch.coordinator.observability.status_message import StatusMessage


class Silent:
    """A view without output."""

    def show(self, message: StatusMessage) -> None:
        """Show nothing."""

    def say(self, line: str) -> None:
        """Print nothing."""
