"""The closed sets of words that devices and coordinator give each other: reasons, and kinds of links."""

from __future__ import annotations

from enum import StrEnum


class Condition(StrEnum):
    """What an owner's preference misses: why a device would rather not work just now.

    It says which preference, never what was found: where a device is or what network it uses stays with its owner.
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
    """Why a device will not take part in a round."""

    UNWILLING = "unwilling"
    UNKNOWN_TASK = "unknown_task"
    SCHEMA_MISMATCH = "schema_mismatch"
    UNSUPPORTED = "unsupported"
    TOO_LITTLE_DATA = "too_little_data"
    STORAGE = "storage"
    PRIVATE_POLICY = "private_policy"
    PLAN_LIMIT = "plan_limit"


class FailReason(StrEnum):
    """Why a device that had accepted gave up."""

    DOWNLOAD = "download"
    TRAINING = "training"
    DEADLINE = "deadline"
    NOT_FINITE = "not_finite"
    STORAGE = "storage"
    UNWILLING = "unwilling"


class RefuseReason(StrEnum):
    """Why the coordinator will never take an update; the device may forget it."""

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


class JobPhase(StrEnum):
    """What a device is doing for a round."""

    DOWNLOADING = "downloading"
    TRAINING = "training"
    UPLOADING = "uploading"


class LinkKind(StrEnum):
    """What the route to the broker leaves the device by."""

    LOOPBACK = "loopback"
    ETHERNET = "ethernet"
    WIFI = "wifi"
    CELLULAR = "cellular"
    OTHER = "other"
