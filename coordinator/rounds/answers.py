"""What a device's no means to a coordinator: the word it is counted by, what helps, and when to ask again."""

from __future__ import annotations

from shared.messages import Decline, Failed
from shared.reasons import DeclineReason, FailReason

# What went wrong in detail stays in the device's log: an exception's text may hold names and values that are private.
_MENDS = {
    FailReason.DOWNLOAD: "the global model did not arrive whole",
    FailReason.TRAINING: "its log says why",
    FailReason.DEADLINE: "it was not done in time; a longer --deadline-s may help",
    FailReason.NOT_FINITE: "training diverged; try a smaller --learning-rate",
    FailReason.STORAGE: "its disk refused; its log says why",
    FailReason.UNWILLING: "its owner's preferences came first",
}


_DECLINE_MENDS = {
    DeclineReason.PRIVATE_POLICY: "their owners keep more private than the run's --private does; begin a run with a --private "
    "that keeps it too, or have the owners set `private` of their agents",
    DeclineReason.PLAN_LIMIT: "their owners allow less training in one request; begin a run with fewer epochs or steps, or "
    "have the owners raise `max_steps` or `max_epochs` of their agents",
}


def mend_of_decline(word: str) -> str:
    """What a person can do about a lasting reason to decline; "" where the device's own words say it."""
    return _DECLINE_MENDS.get(DeclineReason(word), "") if word in set(DeclineReason) else ""


def word_of(answer: Decline | Failed) -> str:
    """The condition that an owner's preference misses, where one is named, else the reason."""
    return answer.condition or answer.reason


def mend_of(failed: Failed) -> str:
    """What a person can do about it, or where more is written."""
    return _MENDS[failed.reason]


def lasts(decline: Decline) -> bool:
    """Whether asking again cannot help until the device itself changes."""
    return decline.reason not in (DeclineReason.UNWILLING, DeclineReason.STORAGE)
