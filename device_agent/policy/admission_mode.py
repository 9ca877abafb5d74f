"""Accept or decline, and why: the owner's standing order, which by default is to follow the owner's preferences.

The order is one word of the configuration: `preferences`, or what overrules them: `always`, `never`, or `file:PATH`, where
the file's first line says `accept`, or `decline` and in words why. A file that is absent or says anything else declines: in
doubt the owner was not asked.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from fedpatch.device_agent.job.request_answers import AdmissionDecision
from fedpatch.device_agent.policy.preference_check import Objection, words_for_wire
from fedpatch.shared.errors import UsageError

_FILE_PREFIX = "file:"

NEVER_S = 3600.0
"""An order of `never` holds until the agent is started with another; a file may say something else at any time."""


@dataclass(frozen=True)
class AdmissionMode:
    """The owner's standing order; `path` is set when a file is to be asked each time.

    With `follows_preferences` the other two say nothing.
    """

    always: bool
    path: str = ""
    follows_preferences: bool = False


def parse_admission_mode(text: str) -> AdmissionMode:
    """`preferences`, `always`, `never` or `file:PATH`; UsageError for anything else."""
    if text == "preferences":
        return AdmissionMode(always=False, follows_preferences=True)
    if text in ("always", "never"):
        return AdmissionMode(always=text == "always")
    if text.startswith(_FILE_PREFIX) and len(text) > len(_FILE_PREFIX):
        return AdmissionMode(always=False, path=str(PurePosixPath(text.removeprefix(_FILE_PREFIX))))
    raise UsageError(f"admission {text!r} is not known; write preferences, always, never or file:PATH")


def decide(order: AdmissionMode, file_text: str | None, objections: Sequence[Objection] = ()) -> AdmissionDecision:
    """The verdict. `file_text` is what the order's file holds now, None where it cannot be read.

    `objections` are those to the offer, the most lasting first (Hysteresis.answer); only preferences ask for them.
    """
    if order.follows_preferences:
        return follow_preferences(objections)
    if not order.path:
        return (
            AdmissionDecision(True)
            if order.always
            else AdmissionDecision(False, "its owner said never", retry_after_s=NEVER_S)
        )
    if file_text is None:
        return AdmissionDecision(False, "its owner's file cannot be read")
    line = (file_text.splitlines() or [""])[0].strip()
    word, _, why = line.partition(" ")
    if word == "accept":
        return AdmissionDecision(True)
    if word.rstrip(":") == "decline":
        return AdmissionDecision(False, why.strip() or "its owner's file says decline")
    return AdmissionDecision(False, "its owner's file says neither accept nor decline")


def follow_preferences(objections: Sequence[Objection]) -> AdmissionDecision:
    """The verdict where nothing but the preferences counts."""
    if not objections:
        return AdmissionDecision(True)
    first = objections[0]
    return AdmissionDecision(False, words_for_wire(objections), first.condition, first.retry_after_s)
