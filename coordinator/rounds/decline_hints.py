"""The remedy for an answer of a device that declines or fails, as the operator reads it."""

from __future__ import annotations

from collections.abc import Mapping

from fedpatch.shared.wire.messages import Decline, Failed
from fedpatch.shared.wire.reason_codes import DeclineReason, FailCause, FailReason

# Details stay in the device's log, since the text of an exception may hold private names and values.
_FAILURE_HINTS = {
    FailReason.DOWNLOAD: "the global model did not arrive whole",
    FailReason.TRAINING: "see the device's log",
    FailReason.DEADLINE: "it was not done in time; a longer --deadline-s may help",
    FailReason.NOT_FINITE: "training diverged; try a smaller --learning-rate",
    FailReason.STORAGE: "its disk failed; see the device's log",
    FailReason.UNWILLING: "its owner's preferences no longer allow the work",
    FailReason.MASKING: "its group could not mask the update; see the device's log",
}

_CAUSE_HINTS: Mapping[str, str] = {
    FailCause.DATA: "data: its training or test data cannot be used; see the device's log, and check-task there",
    FailCause.METRIC: "metric: the task's metric failed on its data; see the device's log",
    FailCause.MODEL: "model: the task's model or loss failed on its data; see the device's log",
    FailCause.PROCESS: "process: its training process failed; see the device's log",
    FailCause.MEMORY: "memory: it ran out of memory; try a smaller --batch-size, or raise `max_memory_mib` of its agent",
}

_DECLINE_HINTS = {
    DeclineReason.PRIVATE_POLICY: "their owners keep more private than the run's --private does; begin a run with a --private "
    "that keeps it too, or have the owners set `private` of their agents",
    DeclineReason.PLAN_LIMIT: "their owners allow less training in one request; begin a run with fewer epochs or steps, or "
    "have the owners raise `max_steps` or `max_epochs` of their agents",
    DeclineReason.PRIVACY_SPENT: "their owners' `max_epsilon` is reached; begin a run with more noise or fewer rounds, or have "
    "the owners raise it",
    DeclineReason.PRIVACY_REQUIRED: "their owners take part with differential privacy only; begin a run with --dp central or "
    "distributed",
    DeclineReason.BASE_SPENT: "they have offered a masked update from the values of this model already, and the next round "
    "moves these",
    DeclineReason.INSECURE_REQUEST: "their owners let no update leave unmasked; begin a run with --secure groups",
    DeclineReason.SECURE_TERMS: "their owners want larger groups, signed keys, or a smaller clip or weight_cap; change the "
    "run's settings, or have the owners change `min_group`, `min_threshold`, `clip` or `max_weight_cap` of their agents",
}


def hint_for_decline(word: str) -> str:
    """Return the remedy for a lasting reason to decline; "" if the device's own detail has it."""
    return _DECLINE_HINTS.get(DeclineReason(word), "") if word in set(DeclineReason) else ""


def word_of(answer: Decline | Failed) -> str:
    """Return the reason to count: the condition of the owner's preference if one is named, else the answer's reason."""
    return answer.condition or answer.reason


def hint_for(failed: Failed) -> str:
    """Return the remedy for a failure, or the place of more details."""
    return _CAUSE_HINTS.get(str(failed.cause), _FAILURE_HINTS[failed.reason])
