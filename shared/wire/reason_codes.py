"""Enumerations in messages: conditions, reasons to decline, fail or refuse, phases of a job, and link kinds."""

from __future__ import annotations

from enum import StrEnum


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


class FailReason(StrEnum):
    """Reason for which a device that had accepted gives up on a round."""

    DOWNLOAD = "download"
    TRAINING = "training"
    DEADLINE = "deadline"
    NOT_FINITE = "not_finite"
    STORAGE = "storage"
    UNWILLING = "unwilling"
    MASKING = "masking"


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


class JobPhase(StrEnum):
    """Phase of a device's job."""

    DOWNLOADING = "downloading"
    TRAINING = "training"
    UPLOADING = "uploading"


class LinkKind(StrEnum):
    """Kind of network interface through which a device reaches the broker."""

    LOOPBACK = "loopback"
    ETHERNET = "ethernet"
    WIFI = "wifi"
    CELLULAR = "cellular"
    OTHER = "other"
