"""Enumerations in messages: conditions, reasons to decline, fail or refuse, phases of a job, and link kinds.

A word of a later version is read as the general word of its enumeration, so that no message is lost because of it. Each
general word is one that all versions know, because a relay may pass it on.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import TypeVar

_WORD = re.compile(r"[ -~]{1,64}")
_E = TypeVar("_E", bound=StrEnum)


def _general(word: _E, value: object) -> _E | None:
    """Return the general word for another one; None for a value that is no word, which is an error of the sender."""
    return word if isinstance(value, str) and _WORD.fullmatch(value) else None


class Condition(StrEnum):
    """The owner's preference that fails, and for which a device does not work now.

    A condition names the preference, never the value that was read: the place and the network of a device stay private.
    """

    NOT_CHARGING = "not_charging"
    LOW_BATTERY = "low_battery"
    UNDER_VOLTAGE = "under_voltage"
    NOT_WIFI = "not_wifi"
    OTHER_SSID = "other_ssid"
    METERED = "metered"
    TOO_HOT = "too_hot"
    QUIET_HOURS = "quiet_hours"
    ROUNDS_SPENT = "rounds_spent"
    TRAFFIC_SPENT = "traffic_spent"
    MINUTES_SPENT = "minutes_spent"
    LOW_MEMORY = "low_memory"
    LOW_DISK = "low_disk"
    BUSY = "busy"
    CLOCK_NOT_SET = "clock_not_set"
    PAUSED = "paused"
    TASK_NOT_ALLOWED = "task_not_allowed"

    @classmethod
    def _missing_(cls, value: object) -> Condition | None:
        """A condition of a later version: the owner does not want work now."""
        return _general(cls.PAUSED, value)


class DeclineReason(StrEnum):
    """Reason for which a device does not take part in a round."""

    UNWILLING = "unwilling"
    UNKNOWN_TASK = "unknown_task"
    SCHEMA_MISMATCH = "schema_mismatch"
    UNSUPPORTED = "unsupported"
    TOO_LITTLE_DATA = "too_little_data"
    STORAGE = "storage"
    PRIVATE_POLICY = "private_policy"
    PLAN_LIMIT = "plan_limit"
    PRIVACY_SPENT = "privacy_spent"
    PRIVACY_REQUIRED = "privacy_required"
    INSECURE_REQUEST = "insecure_request"
    SECURE_TERMS = "secure_terms"
    BASE_SPENT = "base_spent"

    @classmethod
    def _missing_(cls, value: object) -> DeclineReason | None:
        """A reason of a later version: the device may be asked again later."""
        return _general(cls.UNWILLING, value)


class FailReason(StrEnum):
    """Reason for which a device that had accepted gives up on a round."""

    DOWNLOAD = "download"
    TRAINING = "training"
    DEADLINE = "deadline"
    NOT_FINITE = "not_finite"
    STORAGE = "storage"
    UNWILLING = "unwilling"
    MASKING = "masking"

    @classmethod
    def _missing_(cls, value: object) -> FailReason | None:
        """A reason of a later version; the device's log has it."""
        return _general(cls.TRAINING, value)


class FailCause(StrEnum):
    """Coarse cause of the failure `training`: the part that an operator has to look at."""

    DATA = "data"
    METRIC = "metric"
    MODEL = "model"
    PROCESS = "process"
    MEMORY = "memory"

    @classmethod
    def _missing_(cls, value: object) -> FailCause | None:
        """A cause of a later version."""
        return _general(cls.PROCESS, value)


class RefuseReason(StrEnum):
    """Reason for which the coordinator will never accept an update; the device may delete it."""

    LATE = "late"
    STALE_EPOCH = "stale_epoch"
    NOT_INVITED = "not_invited"
    ALREADY_COMMITTED = "already_committed"
    TOO_LARGE = "too_large"
    DAMAGED = "damaged"
    SCHEMA_MISMATCH = "schema_mismatch"
    PRIVATE_VALUE = "private_value"
    NOT_FINITE = "not_finite"
    OUT_OF_RANGE = "out_of_range"
    NUM_EXAMPLES = "num_examples"
    WRONG_BASE = "wrong_base"
    NORM_BOUND = "norm_bound"
    QUARANTINED = "quarantined"
    STALE = "stale"
    SUPERSEDED = "superseded"
    OTHER_METRIC = "other_metric"

    @property
    def on_the_wire(self) -> RefuseReason:
        """The reason that devices of all versions know: a message with an unknown word would be lost."""
        return RefuseReason.OUT_OF_RANGE if self is RefuseReason.OTHER_METRIC else self

    @classmethod
    def _missing_(cls, value: object) -> RefuseReason | None:
        """A reason of a later version: the round goes on without this update."""
        return _general(cls.LATE, value)


class JobPhase(StrEnum):
    """Phase of a device's job."""

    DOWNLOADING = "downloading"
    TRAINING = "training"
    UPLOADING = "uploading"

    @classmethod
    def _missing_(cls, value: object) -> JobPhase | None:
        """A phase of a later version: the device is at work."""
        return _general(cls.TRAINING, value)


class LinkKind(StrEnum):
    """Kind of network interface through which a device reaches the broker."""

    LOOPBACK = "loopback"
    ETHERNET = "ethernet"
    WIFI = "wifi"
    CELLULAR = "cellular"
    OTHER = "other"

    @classmethod
    def _missing_(cls, value: object) -> LinkKind | None:
        """A kind of a later version."""
        return _general(cls.OTHER, value)
