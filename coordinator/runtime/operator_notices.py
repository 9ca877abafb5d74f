"""Lines about the fleet that the operator sees once, and again only where they change."""

from __future__ import annotations

from collections.abc import Callable

from fedpatch.coordinator.rounds.false_presence import MUTE_ROUNDS
from fedpatch.coordinator.rounds.missing_devices import left_out_words
from fedpatch.coordinator.rounds.run_engine import Engine
from fedpatch.shared.wire.messages import Body, WorkRequest


class OperatorNotices:
    """Shows what the operator can change about the devices of a run.

    Args:
        engine: Knows the fleet and the terms of the run.
        say: Shows a line to the operator.
    """

    def __init__(self, engine: Engine, say: Callable[[str], None]) -> None:
        self._engine = engine
        self._say = say
        # Devices without the run's encoding that were shown.
        self._lacking: set[str] = set()
        # Lines about false presences that were shown and still hold.
        self._false: list[str] = []
        # The devices that are not asked, as they were shown last.
        self._left_out = ""

    def show_false_presence(self) -> None:
        """Show ids that several agents use, and devices that are shown online and do not answer."""
        lines = self._engine.fleet.false_presence.words(MUTE_ROUNDS)
        for line in lines:
            if line not in self._false:
                self._say(f"warning: {line}")
        self._false = lines

    def show_left_out(self, round_number: int) -> None:
        """Show which devices a round does not ask because of their version or abilities."""
        words = left_out_words(self._engine.fleet)
        if words and words != self._left_out:
            self._say(f"round {round_number} is without {words}")
        self._left_out = words

    def show_lacking_encoding(self, device: str, body: Body) -> None:
        """Show that a device lacks the run's encoding, where `body` requests work: its updates are larger."""
        if not isinstance(body, WorkRequest) or device in self._lacking:
            return
        spec, fleet = self._engine.spec, self._engine.fleet
        if body.secure is None and spec.encoding not in (body.encoding, fleet.encoding(device)):
            self._lacking.add(device)
            self._say(f"{device} does not know {spec.encoding}; it is asked for {body.encoding}, which saves nothing")
