"""Every topic that fedpatch uses, as one table: who writes it, who reads it, how it is kept.

Building a topic, subscribing, reading a topic back and the broker's access rules all follow from `TOPICS`, so they
cannot disagree. A device's identity is the name in the topic, which the access rules guard; no payload can change it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from fedpatch.shared.config.fields import NAME
from fedpatch.shared.errors import UsageError
from fedpatch.shared.wire.messages import MAX_CHUNKS

Kind = Literal["coordinator_state", "run_status", "device_state", "down", "up", "model_chunk", "update_chunk"]
Party = Literal["coordinator", "device", "watcher"]
TopicQos = Literal[0, 1]

_DIGEST = r"[0-9a-f]{64}"
_TRANSFER = r"[0-9a-f]{16}"
_INDEX = r"0|[1-9][0-9]{0,4}"
_PLACEHOLDER = re.compile(r"\{(\w+)\}")


@dataclass(frozen=True)
class Topic:
    """One row: `pattern` with {fleet}, {device}, {digest}, {transfer} and {index} where they vary."""

    name: Kind
    pattern: str
    writer: Party
    readers: tuple[Party, ...]
    qos: TopicQos
    retain: bool
    purpose: str


@dataclass(frozen=True)
class ParsedTopic:
    """What a received topic says; `digest` of an update's chunk is its transfer id, the first 16 digits only."""

    kind: Kind
    device: str = ""
    digest: str = ""
    index: int = 0


TOPICS: tuple[Topic, ...] = (
    Topic(
        "coordinator_state",
        "fedpatch/1/{fleet}/coord",
        writer="coordinator",
        readers=("device", "coordinator", "watcher"),
        qos=1,
        retain=True,
        purpose="presence of the coordinator and the nonce of its start; its last will; the claim of another one",
    ),
    Topic(
        "run_status",
        "fedpatch/1/{fleet}/coord/progress",
        writer="coordinator",
        readers=("watcher",),
        qos=0,
        retain=False,
        purpose="how the run stands, for people who watch it; nothing depends on it",
    ),
    Topic(
        "device_state",
        "fedpatch/1/{fleet}/dev/{device}/state",
        writer="device",
        readers=("coordinator", "device"),
        qos=1,
        retain=True,
        purpose="presence and capabilities of a device and the nonce of its start; its last will; shows it a namesake",
    ),
    Topic(
        "down",
        "fedpatch/1/{fleet}/dev/{device}/dn",
        writer="coordinator",
        readers=("device",),
        qos=1,
        retain=False,
        purpose="messages to one device: work request, grant, ack, committed, refused, retry-after, cancel",
    ),
    Topic(
        "up",
        "fedpatch/1/{fleet}/dev/{device}/up",
        writer="device",
        readers=("coordinator",),
        qos=1,
        retain=False,
        purpose="messages of one device: accept, decline, need, progress, offer, failed",
    ),
    Topic(
        "model_chunk",
        "fedpatch/1/{fleet}/blob/{digest}/{index}",
        writer="coordinator",
        readers=("device",),
        qos=1,
        retain=True,
        purpose="chunks of the global model, published once for all devices and kept while the round lasts",
    ),
    Topic(
        "update_chunk",
        "fedpatch/1/{fleet}/dev/{device}/blob/{transfer}/{index}",
        writer="device",
        readers=("coordinator",),
        qos=1,
        retain=False,
        purpose="chunks of a device's update; the transfer id is the first 16 digits of its digest",
    ),
)

BY_KIND: dict[Kind, Topic] = {row.name: row for row in TOPICS}


def check_name(what: str, name: str) -> str:
    """`name`, if a topic can hold it; `what` (fleet, device) says in the error which name was wrong."""
    if not re.fullmatch(NAME.regex, name):
        raise UsageError(f"{what} name {name!r} is not possible; use {NAME.words}")
    return name


def transfer_id(digest: str) -> str:
    """The part of an update's digest that its chunks' topics carry."""
    return digest[:16]


def coordinator_state(fleet: str) -> str:
    """Topic of the coordinator's presence."""
    return _fill("coordinator_state", fleet)


def run_status(fleet: str) -> str:
    """Topic of what watchers are told of the run."""
    return _fill("run_status", fleet)


def device_state(fleet: str, device: str) -> str:
    """Topic of a device's presence."""
    return _fill("device_state", fleet, device=device)


def down(fleet: str, device: str) -> str:
    """Topic of the messages to a device."""
    return _fill("down", fleet, device=device)


def up(fleet: str, device: str) -> str:
    """Topic of the messages of a device."""
    return _fill("up", fleet, device=device)


def model_chunk(fleet: str, digest: str, index: int) -> str:
    """Topic of chunk `index` of the global model with SHA-256 `digest`."""
    return _fill("model_chunk", fleet, digest=digest, index=index)


def update_chunk(fleet: str, device: str, digest: str, index: int) -> str:
    """Topic of chunk `index` of a device's update with SHA-256 `digest`."""
    return _fill("update_chunk", fleet, device=device, digest=digest, index=index)


def coordinator_filters(fleet: str) -> tuple[str, ...]:
    """What a coordinator subscribes to: everything that devices write, and what another coordinator would."""
    check_name("fleet", fleet)
    return tuple(_acl_filter(row, fleet, "+") for row in TOPICS if "coordinator" in row.readers)


def device_filters(fleet: str, device: str) -> tuple[str, ...]:
    """What a device subscribes to for as long as it runs; the chunks of a model only while it needs them.

    Its own state tells it whether somebody else writes there.
    """
    return (coordinator_state(fleet), device_state(fleet, device), down(fleet, device))


def watcher_filters(fleet: str) -> tuple[str, ...]:
    """What somebody who watches a run subscribes to."""
    check_name("fleet", fleet)
    return tuple(_acl_filter(row, fleet, "+") for row in TOPICS if "watcher" in row.readers)


def model_chunks_filter(fleet: str, digest: str) -> str:
    """What a device subscribes to in order to get the global model with SHA-256 `digest`."""
    return model_chunk(fleet, digest, 0).removesuffix("0") + "+"


@lru_cache(maxsize=4096)  # each is asked for twice, and most of them in every round
def parse_topic(fleet: str, topic: str) -> ParsedTopic | None:
    """What `topic` says, or None when it is not one of `fleet`'s; never raises."""
    for kind, regex in _REGEXES.items():
        match = regex.fullmatch(topic)
        if match is None:
            continue
        found = match.groupdict()
        index = int(found.get("index", 0))
        if found["fleet"] != fleet or index >= MAX_CHUNKS:
            return None
        digest = found.get("digest") or found.get("transfer") or ""
        return ParsedTopic(kind, device=found.get("device", ""), digest=digest, index=index)
    return None


def mosquitto_acl(
    fleet: str,
    coordinator_user: str = "coordinator",
    devices: Sequence[str] | None = None,
    watchers: Sequence[str] = (),
) -> str:
    """Text of mosquitto's `acl_file`: what is not allowed here is forbidden.

    With `devices`, each of them gets its own lines and any other user nothing. Without, the rules are patterns over the
    user name: mosquitto applies those to *every* user, so whoever has a password of any kind can join the fleet as the
    device of that name (though never as another). Either way a device's user name must be its device id. `watchers` are
    users who look on: with a list of `devices`, even an empty one, they can write nothing. mosquitto grants a forbidden
    SUBSCRIBE and then stays silent, so a wrong rule shows as messages that never come.
    """
    check_name("fleet", fleet)
    _check_user("coordinator", coordinator_user)
    if coordinator_user in (devices or ()):
        raise UsageError(f"{coordinator_user!r} is both the coordinator's user and a device; rename the device")
    for watcher in watchers:
        _check_user("watcher", watcher)
        if watcher in (coordinator_user, *(devices or ())):
            raise UsageError(f"{watcher!r} watches, but is the coordinator's user or a device too; use another user")
    lines = [f"# fedpatch fleet {fleet}: generated from the topic table, do not edit", f"user {coordinator_user}"]
    lines += _rules("coordinator", fleet, "+", "topic")
    if devices is None:
        lines += ["", "# every other user: only the device of its own name"]
        lines += _rules("device", fleet, "%u", "pattern")
    for device in devices or ():
        lines += ["", f"user {check_name('device', device)}"]
        lines += _rules("device", fleet, device, "topic")
    for watcher in watchers:
        lines += ["", f"user {watcher}"]
        lines += _rules("watcher", fleet, "+", "topic")
    return "\n".join(lines) + "\n"


def _check_user(who: str, name: str) -> None:
    if not re.fullmatch(r"[^\s+#/]+", name):
        raise UsageError(f"{who} user {name!r} is not possible; leave out blanks, +, # and /")


def _rules(party: Party, fleet: str, device: str, word: str) -> list[str]:
    lines = []
    for row in TOPICS:
        access = ("read" if party in row.readers else "") + ("write" if row.writer == party else "")
        if access:
            lines.append(f"{word} {access} {_acl_filter(row, fleet, device)}")
    return lines


def _acl_filter(row: Topic, fleet: str, device: str) -> str:
    names = {"fleet": fleet, "device": device}
    return _PLACEHOLDER.sub(lambda found: names.get(found[1], "+"), row.pattern)


def _fill(kind: Kind, fleet: str, *, device: str = "", digest: str = "", index: int = 0) -> str:
    pattern = BY_KIND[kind].pattern
    check_name("fleet", fleet)
    if "{device}" in pattern:
        check_name("device", device)
    if "{index}" in pattern:
        if not re.fullmatch(_DIGEST, digest):
            raise UsageError(f"digest {digest!r} is not a SHA-256 in 64 lower-case hexadecimal digits")
        if not 0 <= index < MAX_CHUNKS:
            raise UsageError(f"chunk index {index} is not in 0 to {MAX_CHUNKS - 1}; use larger chunks")
    return pattern.format(fleet=fleet, device=device, digest=digest, transfer=transfer_id(digest), index=index)


def _regex(row: Topic) -> re.Pattern[str]:
    parts = {"fleet": NAME.regex, "device": NAME.regex, "digest": _DIGEST, "transfer": _TRANSFER, "index": _INDEX}
    return re.compile(_PLACEHOLDER.sub(lambda found: f"(?P<{found[1]}>{parts[found[1]]})", row.pattern), re.ASCII)


_REGEXES: dict[Kind, re.Pattern[str]] = {row.name: _regex(row) for row in TOPICS}
