"""The owner's admission mode, which decides about requests.

It is one word of the configuration: `preferences`, which is the default, or a mode that overrides them: `always`, `never`, or
`file:PATH`. The first line of the file is `accept`, or `decline` and the reason. If the file is absent or has other content,
requests are declined. The owner's pause counts in every mode.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from fedpatch.device_agent.job.job_events import AdmissionDecision
from fedpatch.device_agent.policy.objections import Objection, words_for_wire
from fedpatch.shared.errors import UsageError
from fedpatch.shared.wire.reason_codes import Condition

_FILE_PREFIX = "file:"
NEVER_S = 3600.0
"""The mode `never` holds until the agent is started with another mode; a file may change at any time."""


@dataclass(frozen=True)
class AdmissionMode:
    """The owner's admission mode.

    Attributes:
        always: Whether every request is accepted; without `path` and `follows_preferences`, False declines every request.
        path: File that is read for each request, "" for none.
        follows_preferences: Whether the preferences decide; then the other two have no effect.
    """

    always: bool
    path: str = ""
    follows_preferences: bool = False

    @property
    def may_accept(self) -> bool:
        """False if every request is declined."""
        return self.always or self.follows_preferences or bool(self.path)

    def objections(self, found: tuple[Objection, ...]) -> tuple[Objection, ...]:
        """Return the objections that count: a pause counts in every mode, other preferences only where they decide."""
        return found if self.follows_preferences else tuple(one for one in found if one.condition is Condition.PAUSED)


def parse_admission_mode(text: str) -> AdmissionMode:
    """Parse `preferences`, `always`, `never` or `file:PATH`. UsageError for anything else."""
    if text == "preferences":
        return AdmissionMode(always=False, follows_preferences=True)
    if text in ("always", "never"):
        return AdmissionMode(always=text == "always")
    if text.startswith(_FILE_PREFIX) and len(text) > len(_FILE_PREFIX):
        return AdmissionMode(always=False, path=str(PurePosixPath(text.removeprefix(_FILE_PREFIX))))
    raise UsageError(f"admission {text!r} is not known; write preferences, always, never or file:PATH")


def decide(order: AdmissionMode, file_text: str | None, objections: Sequence[Objection] = ()) -> AdmissionDecision:
    """Decide by the admission mode.

    Args:
        file_text: Content of the mode's file; None where it cannot be read.
        objections: Objections to the request, the most lasting first; a pause counts in every mode.
    """
    counted = order.objections(tuple(objections))
    if order.follows_preferences or (order.may_accept and counted):
        return follow_preferences(counted)
    if not order.path:
        return (
            AdmissionDecision(True)
            if order.always
            else AdmissionDecision(False, "its owner set admission to never", retry_after_s=NEVER_S)
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
    """Decide by the objections alone."""
    if not objections:
        return AdmissionDecision(True)
    first = objections[0]
    return AdmissionDecision(False, words_for_wire(objections), first.condition, first.retry_after_s)
