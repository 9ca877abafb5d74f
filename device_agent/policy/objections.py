"""An objection of the owner to working now: the condition that is not met, in words for the owner and for the coordinator."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fedpatch.shared.wire.reason_codes import Condition

PAUSED_WORDS = "its owner has paused it"


def besides_pause(unwilling: Iterable[object]) -> list[str]:
    """Return the words of objections in status.json without those of a pause.

    The agent notices a new or an ended pause at its next look, up to 30 s later; another process reads the pause itself.
    """
    return [str(words) for words in unwilling if not str(words).startswith(PAUSED_WORDS)]


@dataclass(frozen=True)
class Objection:
    """A preference that is not met.

    Attributes:
        condition: The preference, as the coordinator knows it.
        words: Reason for the owner alone; it may name values, networks and files.
        retry_after_s: Seconds for which another request would most likely be declined.
        exact: Whether it would certainly be declined until then, as during quiet hours.
    """

    condition: Condition
    words: str
    retry_after_s: float
    exact: bool = False


PAUSE = Objection(Condition.PAUSED, PAUSED_WORDS, 600.0)
"""The objection of a device that its owner has paused."""


def words_for_wire(objections: Sequence[Objection]) -> str:
    """Name the preferences that are not met, without any measured value."""
    return ", ".join(dict.fromkeys(one.condition.replace("_", " ") for one in objections))
