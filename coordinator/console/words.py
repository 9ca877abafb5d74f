"""States and reasons in words for people who do not know the codes of the wire."""

from __future__ import annotations

from collections.abc import Mapping

STATE_WORDS: Mapping[str, str] = {
    "invited": "asked",
    "accepted": "accepted",
    "training": "trains",
    "uploading": "uploads",
    "reported": "reported",
    "declined": "declined",
    "failed": "failed",
    "lost": "lost contact",
    "late": "late",
}
"""By participant state, in the order of a round."""

_REASON_WORDS: Mapping[str, str] = {
    # Conditions of the owner.
    "not_charging": "it is not on external power",
    "low_battery": "its battery is low",
    "under_voltage": "its supply voltage is too low",
    "not_wifi": "it is not on WiFi",
    "other_ssid": "it is in another wireless network",
    "metered": "its network is metered",
    "too_hot": "it is too hot",
    "quiet_hours": "its owner's quiet hours",
    "rounds_spent": "its rounds for today are used up",
    "traffic_spent": "its traffic for today is used up",
    "minutes_spent": "its training time for today is used up",
    "low_memory": "it is short of memory",
    "low_disk": "its disk is almost full",
    "busy": "it is busy with other work",
    "clock_not_set": "its clock is not set",
    "paused": "its owner paused it",
    "task_not_allowed": "its owner does not allow the task",
    # Lasting reasons to decline.
    "unwilling": "its owner's preferences do not allow the work",
    "unknown_task": "it does not know the task",
    "schema_mismatch": "its model has other tensors",
    "unsupported": "its version does not know the request",
    "too_little_data": "it has too little data",
    "storage": "its disk, or a file of its state, cannot be used",
    "private_policy": "its owner keeps more private than the run",
    "plan_limit": "its owner allows less training in one request",
    "privacy_spent": "its privacy budget is used up",
    "privacy_required": "its owner asks for differential privacy",
    "insecure_request": "its owner asks for masked updates",
    "secure_terms": "its owner has stricter terms for masked updates",
    "base_spent": "it has masked an update from this model already",
    # Failures and refusals.
    "download": "the model did not arrive whole",
    "training": "its training failed; see the device's log",
    "deadline": "it was not done by the deadline",
    "not_finite": "its training diverged",
    "masking": "its group could not mask the update",
    "late": "its update came after the round",
    "stale": "the model has moved on too far since its update began",
    "superseded": "a newer update of it counts in the round",
    "other_metric": "its metric was out of the range of the task here; install the same version of the task on both",
    "stale_epoch": "its update was for an earlier start of the coordinator",
    "not_invited": "it was not invited",
    "already_committed": "another update of it counts already",
    "too_large": "its update was too large",
    "damaged": "its update was damaged",
    "private_value": "its update held private values",
    "out_of_range": "its update had values out of range",
    "num_examples": "its update named an impossible number of examples",
    "wrong_base": "its update was a difference from another model",
    "norm_bound": "its update was too far from the model",
    "quarantined": "it is in quarantine",
    "revoked": "its certificate is revoked",
    # Failures of a round.
    "too_few_accepted": "too few devices accepted",
    "quorum_missed": "too few updates came in time",
    "groups_lost": "too few masked groups could be opened",
    "interrupted": "the coordinator was stopped",
}


def reason_words(reason: str) -> str:
    """Return a reason in words; an unknown code with spaces in place of underscores."""
    return _REASON_WORDS.get(reason, reason.replace("_", " "))
