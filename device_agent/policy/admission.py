"""Accept or decline, and why: the owner's standing order, which by default is to follow the owner's preferences.

The order is one word of the configuration: `preferences`, or what overrules them: `always`, `never`, or `file:PATH`, where
the file's first line says `accept`, or `decline` and in words why. A file that is absent or says anything else declines: in
doubt the owner was not asked.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from device_agent.preferences import Objection, words_for_wire
from shared.errors import UsageError
from shared.reasons import Condition, DeclineReason

_FILE_PREFIX = "file:"

NEVER_S = 3600.0
"""An order of `never` holds until the agent is started with another; a file may say something else at any time."""


@dataclass(frozen=True)
class Verdict:
    """Whether the device works now. All of it reaches the coordinator: no value that was found, no path.

    `condition` is the preference that is missed, where one is; before `retry_after_s` it would say the same (0: unknown).
    `reason` is the word for it: an owner's limit has one of its own, and so has a disk that cannot be used.
    """

    accept: bool
    why: str = ""
    condition: Condition | None = None
    retry_after_s: float = 0.0
    reason: DeclineReason = DeclineReason.UNWILLING


@dataclass(frozen=True)
class Order:
    """The owner's standing order; `path` is set when a file is to be asked each time.

    With `by_preferences` the other two say nothing.
    """

    always: bool
    path: str = ""
    by_preferences: bool = False


def parse_order(text: str) -> Order:
    """`preferences`, `always`, `never` or `file:PATH`; UsageError for anything else."""
    if text == "preferences":
        return Order(always=False, by_preferences=True)
    if text in ("always", "never"):
        return Order(always=text == "always")
    if text.startswith(_FILE_PREFIX) and len(text) > len(_FILE_PREFIX):
        return Order(always=False, path=str(PurePosixPath(text.removeprefix(_FILE_PREFIX))))
    raise UsageError(f"admission {text!r} is not known; write preferences, always, never or file:PATH")


def decide(order: Order, file_text: str | None, objections: Sequence[Objection] = ()) -> Verdict:
    """The verdict. `file_text` is what the order's file holds now, None where it cannot be read.

    `objections` are those to the offer, the most lasting first (Willingness.answer); only preferences ask for them.
    """
    if order.by_preferences:
        return by_preferences(objections)
    if not order.path:
        return Verdict(True) if order.always else Verdict(False, "its owner said never", retry_after_s=NEVER_S)
    if file_text is None:
        return Verdict(False, "its owner's file cannot be read")
    line = (file_text.splitlines() or [""])[0].strip()
    word, _, why = line.partition(" ")
    if word == "accept":
        return Verdict(True)
    if word.rstrip(":") == "decline":
        return Verdict(False, why.strip() or "its owner's file says decline")
    return Verdict(False, "its owner's file says neither accept nor decline")


def by_preferences(objections: Sequence[Objection]) -> Verdict:
    """The verdict where nothing but the preferences counts."""
    if not objections:
        return Verdict(True)
    first = objections[0]
    return Verdict(False, words_for_wire(objections), first.condition, first.retry_after_s)
