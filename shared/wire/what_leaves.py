"""Every field that a device sends, why, and how its owner stops it: the list behind docs/reference/what-leaves.md.

The keys are the messages of the wire, so a new field without a line here fails the tests.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, get_args, get_type_hints

from fedpatch.shared.wire.masking_messages import Agreement, MaskingKeys, Reveal, Shares
from fedpatch.shared.wire.messages import (
    Accept,
    Decline,
    DeviceState,
    Envelope,
    Evaluation,
    Failed,
    JobStatus,
    Manifest,
    Need,
    Offer,
    Progress,
    TaskCapability,
    UpdateReport,
)
from fedpatch.shared.wire.vitals import LastRound, Vitals

DEVICE_MESSAGES: tuple[type, ...] = (
    DeviceState,
    Accept,
    Decline,
    Need,
    Progress,
    Offer,
    Failed,
    Evaluation,
    Vitals,
    Shares,
    Agreement,
    Reveal,
)
"""Bodies of the messages that a device sends."""

NEEDED = "not, while the device takes part"
_REASONS = "share_reasons = false"
_VITALS = "share_vitals = false"
_MASKED = 'secure = "off"'


@dataclass(frozen=True)
class SentField:
    """Why a field leaves the device, and how its owner stops it."""

    why: str
    stop: str = NEEDED


def _all(of: type, why: str, stop: str = NEEDED) -> Mapping[str, SentField]:
    return {one.name: SentField(why, stop) for one in fields(of)}


_WORK = SentField("task, run and round of the work, and the start of the coordinator that the message answers")
_TASK = SentField("name of the task, and digest of names and shapes of its model's tensors")
_UPDATE = SentField("SHA-256, sizes and encoding of the update and its parts")
_PUBLIC_KEY = SentField("public keys of a masked round", _MASKED)
_MEASUREMENT = SentField(
    "the measured figure, count of test examples, and time", 'secure = "required" declines measurements'
)
_FIGURES = SentField(
    "mean loss, and figures before and after the training", 'secure = "required" sends sums of a group only'
)
_TIMES = SentField("times of download and training, for deadlines")


WHAT_LEAVES: Mapping[type, Mapping[str, SentField]] = {
    Envelope: {
        "body": SentField("the message itself, one of those below"),
        "id": SentField("order of the messages of one start"),
        "task": _WORK,
        "run": _WORK,
        "epoch": _WORK,
        "round": _WORK,
        "version": SentField("version of the protocol"),
    },
    DeviceState: {
        "online": SentField(
            "devices that are there are asked; its time tells when the device is on", "fedpatch-agent stopped"
        ),
        "boot": SentField("a random number of this start, to detect a second device of this name"),
        "version": SentField("version of fedpatch, so that no newer message is sent"),
        "tasks": SentField("the tasks that it can train"),
        "encodings": SentField("encodings of tensors that it can read"),
        "job": SentField("the work that it is on"),
        "unwilling": SentField(
            "the unmet preference, so that it is not asked in vain: other_ssid tells that it is away", _REASONS
        ),
        "features": SentField("messages that it understands"),
        "path": SentField("only a relay sends it: its id, and those of relays below it"),
    },
    TaskCapability: {
        "task": _TASK,
        "schema": _TASK,
        "num_examples": SentField("the count of training examples weighs its update", 'secure = "required" sends 1'),
        "members": SentField("only a relay sends it: its devices"),
    },
    JobStatus: _all(JobStatus, "the work that it is on, and whether it downloads, trains or uploads"),
    Accept: {
        "num_examples": SentField("the count of training examples weighs its update", 'secure = "required" sends 1'),
        "keys": SentField("public keys of a masked round", _MASKED),
    },
    MaskingKeys: {
        "share": _PUBLIC_KEY,
        "mask": _PUBLIC_KEY,
        "certificate": SentField("its certificate of the fleet's CA, with the device's name", _MASKED),
        "signature": SentField("proof that the keys are its own", _MASKED),
    },
    Decline: {
        "reason": SentField("the kind of the decline", _REASONS),
        "detail": SentField("names of unmet preferences, or the limit: no measured value", _REASONS),
        "condition": SentField("the unmet preference that lasts longest", _REASONS),
        "retry_after_s": SentField("time until another request makes sense: of quiet hours, their rest", _REASONS),
    },
    Need: _all(Need, "parts of the model that it downloads over MQTT and does not have yet"),
    Progress: {
        "phase": SentField(
            "a sign of life at the start of the training, and each 15 s: else the device counts as lost"
        ),
        "done": SentField("steps that are done: their times tell its speed", 'secure = "required" sends quarters'),
        "total": SentField("count of steps: with the plan, nearly that of examples", 'secure = "required" sends 100'),
    },
    Offer: {
        "manifest": SentField("the update that waits"),
        "codes": SentField("codes for the members of a masked group", _MASKED),
    },
    Manifest: {
        "digest": _UPDATE,
        "size_bytes": _UPDATE,
        "chunk_bytes": _UPDATE,
        "chunk_count": _UPDATE,
        "encoding": _UPDATE,
        "raw_bytes": _UPDATE,
        "schema": SentField("digest of names and shapes of its tensors, which are public ones only"),
        "url": SentField("never sent by a device"),
    },
    Failed: {
        "reason": SentField("the kind of the failure: no detail", _REASONS),
        "condition": SentField("the preference that was no longer met", _REASONS),
        "cause": SentField("data, metric, model, process or memory", _REASONS),
    },
    Evaluation: {
        "base": SentField("the model that was measured"),
        "user_accuracy": _MEASUREMENT,
        "num_examples": _MEASUREMENT,
        "seconds": _MEASUREMENT,
        "members": SentField("only a relay sends it: its devices"),
    },
    UpdateReport: {
        "base": SentField("the model that the training began with"),
        "num_examples": SentField("the count of training examples weighs the update", 'secure = "required" sends 1'),
        "steps": SentField("count of steps", 'secure = "required" leaves it out'),
        "train_loss": _FIGURES,
        "user_accuracy_before": _FIGURES,
        "user_accuracy_after": _FIGURES,
        "download_s": _TIMES,
        "train_s": _TIMES,
        "user_accuracy_independent": SentField(
            "figure of learning alone, where a run measures it", 'secure = "required" leaves it out'
        ),
        "members": SentField("only a relay sends it: its devices"),
    },
    Vitals: _all(Vitals, "health of the device, for the operator", _VITALS),
    LastRound: _all(LastRound, "durations and bytes of its last round, for the operator", _VITALS),
    Shares: _all(Shares, "encrypted shares of its secrets, so that a group survives a lost member", _MASKED),
    Agreement: _all(Agreement, "proof that the members open the same sum", _MASKED),
    Reveal: _all(Reveal, "shares with which the group's sum is opened, and no single update", _MASKED),
}
"""Fields of each type that a device sends. The update itself has the public tensors and an UpdateReport."""


def sent_types() -> frozenset[type]:
    """Return the messages that a device sends, and all types within them."""
    found: set[type] = set()
    waiting: list[type] = [Envelope, UpdateReport, *DEVICE_MESSAGES]
    while waiting:
        one = waiting.pop()
        if one not in found:
            found.add(one)
            if one is not Envelope:  # its body is any message, also one of the coordinator
                hints = get_type_hints(one)
                waiting += [part for hint in hints.values() for part in _dataclasses_in(hint)]
    return frozenset(found)


def _dataclasses_in(hint: Any) -> Iterator[type]:
    if isinstance(hint, type) and is_dataclass(hint):
        yield hint
    for part in get_args(hint):
        yield from _dataclasses_in(part)


def unlisted(value: Any) -> set[str]:
    """Return the fields of a message of a device, as TYPE.FIELD, that are not in the list; its parts are included."""
    if isinstance(value, tuple | list):
        return {name for part in value for name in unlisted(part)}
    if not is_dataclass(value) or isinstance(value, type):
        return set()
    known = WHAT_LEAVES.get(type(value), {})
    missing = {f"{type(value).__name__}.{one.name}" for one in fields(value) if one.name not in known}
    return missing.union(*(unlisted(getattr(value, one.name)) for one in fields(value)))
