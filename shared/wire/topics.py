"""MQTT topics: one table, `TOPICS`, of every topic with its writer, readers, QoS and retention.

Topics, subscription filters, the parser and the broker's access rules are all derived from this table. The identity of a
device is the name in its topics, which the access rules protect; a payload cannot change it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
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
    """One row of the table.

    Attributes:
        name: Name of the row.
        pattern: The topic, with the placeholders {fleet}, {device}, {digest}, {transfer} and {index}.
        writer: The party that publishes there.
        readers: The parties that subscribe.
        qos: Quality of service.
        retain: Whether messages are retained.
        purpose: The messages, for documentation.
        also_read_by: Parties whose user may read the topic too, for programs beside them: `fedpatch console` and
            `fedpatch watch` without a login of their own use the coordinator's.
    """

    name: Kind
    pattern: str
    writer: Party
    readers: tuple[Party, ...]
    qos: TopicQos
    retain: bool
    purpose: str
    also_read_by: tuple[Party, ...] = ()

    def may_read(self, party: Party) -> bool:
        """Return whether the access rules let a party read the topic."""
        return party in (*self.readers, *self.also_read_by)


@dataclass(frozen=True)
class ParsedTopic:
    """The parts of a received topic. For an update's chunk, `digest` is its transfer id: the first 16 digits only.

    Example:
        >>> parse_topic("kitchen", up("kitchen", "pi-1"))
        ParsedTopic(kind='up', device='pi-1', digest='', index=0)
    """

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
        purpose="`coordinator_state`, its last will; `claim`, not retained",
    ),
    Topic(
        "run_status",
        "fedpatch/1/{fleet}/coord/progress",
        writer="coordinator",
        readers=("watcher",),
        qos=0,
        retain=False,
        purpose="`run_status`",
        also_read_by=("coordinator",),
    ),
    Topic(
        "device_state",
        "fedpatch/1/{fleet}/dev/{device}/state",
        writer="device",
        readers=("coordinator", "device"),
        qos=1,
        retain=True,
        purpose="`device_state`, its last will",
    ),
    Topic(
        "down",
        "fedpatch/1/{fleet}/dev/{device}/dn",
        writer="coordinator",
        readers=("device",),
        qos=1,
        retain=False,
        purpose="messages to one device",
    ),
    Topic(
        "up",
        "fedpatch/1/{fleet}/dev/{device}/up",
        writer="device",
        readers=("coordinator",),
        qos=1,
        retain=False,
        purpose="messages of one device",
    ),
    Topic(
        "model_chunk",
        "fedpatch/1/{fleet}/blob/{digest}/{index}",
        writer="coordinator",
        readers=("device",),
        qos=1,
        retain=True,
        purpose="chunks of the global model, while the round lasts",
    ),
    Topic(
        "update_chunk",
        "fedpatch/1/{fleet}/dev/{device}/blob/{transfer}/{index}",
        writer="device",
        readers=("coordinator",),
        qos=1,
        retain=False,
        purpose="chunks of an update",
    ),
)

BY_KIND: dict[Kind, Topic] = {row.name: row for row in TOPICS}


def check_name(kind: str, name: str) -> str:
    """Return `name` if it has the form NAME. Raises UsageError, which calls it the name of a `kind` (fleet, device)."""
    if not re.fullmatch(NAME.regex, name):
        raise UsageError(f"{kind} name {name!r} is not possible; use {NAME.words}")
    return name


def transfer_id(digest: str) -> str:
    """Return the part of an update's digest that is in the topics of its chunks: the first 16 digits."""
    return digest[:16]


def coordinator_state(fleet: str) -> str:
    """Return the topic of the coordinator's presence."""
    return _fill("coordinator_state", fleet)


def run_status(fleet: str) -> str:
    """Return the topic of the run's status."""
    return _fill("run_status", fleet)


def device_state(fleet: str, device: str) -> str:
    """Return the topic of a device's presence."""
    return _fill("device_state", fleet, device=device)


@lru_cache(maxsize=16_384)
def down(fleet: str, device: str) -> str:
    """Return the topic of the messages to a device."""
    return _fill("down", fleet, device=device)


def up(fleet: str, device: str) -> str:
    """Return the topic of the messages of a device."""
    return _fill("up", fleet, device=device)


def model_chunk(fleet: str, digest: str, index: int) -> str:
    """Return the topic of a chunk of the global model.

    Args:
        digest: SHA-256 of the blob, 64 lower-case hexadecimal digits.
        index: Index of the chunk, 0 to MAX_CHUNKS - 1.

    Returns:
        The topic.

    Raises:
        UsageError: An argument cannot be part of a topic.
    """
    return _fill("model_chunk", fleet, digest=digest, index=index)


def model_chunks(fleet: str, digest: str, indices: Iterable[int]) -> list[str]:
    """Return the topics of several chunks of one global model; the arguments are checked once.

    Args:
        digest: SHA-256 of the blob, 64 lower-case hexadecimal digits.
        indices: Indices of the chunks, each 0 to MAX_CHUNKS - 1.

    Returns:
        The topics, in the order of `indices`.

    Raises:
        UsageError: An argument cannot be part of a topic.

    Example:
        >>> [topic[-2:] for topic in model_chunks("kitchen", "ab" * 32, range(2))]
        ['/0', '/1']
    """
    wanted = list(indices)
    first = model_chunk(fleet, digest, max(wanted, default=0))
    return [f"{first.rpartition('/')[0]}/{index}" for index in wanted]


def update_chunk(fleet: str, device: str, digest: str, index: int) -> str:
    """Return the topic of a chunk of a device's update.

    Args:
        digest: SHA-256 of the blob, 64 lower-case hexadecimal digits; the topic has the first 16.
        index: Index of the chunk, 0 to MAX_CHUNKS - 1.

    Returns:
        The topic.

    Raises:
        UsageError: An argument cannot be part of a topic.
    """
    return _fill("update_chunk", fleet, device=device, digest=digest, index=index)


def coordinator_filters(fleet: str) -> tuple[str, ...]:
    """Return the coordinator's subscriptions: the topics that devices write, and those of another coordinator."""
    check_name("fleet", fleet)
    return tuple(_acl_filter(row, fleet, "+") for row in TOPICS if "coordinator" in row.readers)


def device_filters(fleet: str, device: str) -> tuple[str, ...]:
    """Return the permanent subscriptions of a device; chunks of a model are subscribed to only during a download.

    A device also reads its own state, which reveals a second device with the same id.
    """
    return (coordinator_state(fleet), device_state(fleet, device), down(fleet, device))


def watcher_filters(fleet: str) -> tuple[str, ...]:
    """Return the subscriptions of a program that watches a run."""
    check_name("fleet", fleet)
    return tuple(_acl_filter(row, fleet, "+") for row in TOPICS if "watcher" in row.readers)


def model_chunks_filter(fleet: str, digest: str) -> str:
    """Return the subscription for all chunks of the global model with SHA-256 `digest`."""
    return model_chunk(fleet, digest, 0).removesuffix("0") + "+"


@lru_cache(maxsize=4096)  # a message's topic is parsed twice, and most topics are used in every round
def parse_topic(fleet: str, topic: str) -> ParsedTopic | None:
    """Return the parts of `topic`, or None if it is not a topic of `fleet`. Never raises."""
    for kind, regex in _REGEXES.items():
        match = regex.fullmatch(topic)
        if match is None:
            continue
        parts = match.groupdict()
        index = int(parts.get("index", 0))
        if parts["fleet"] != fleet or index >= MAX_CHUNKS:
            return None
        digest = parts.get("digest") or parts.get("transfer") or ""
        return ParsedTopic(kind, device=parts.get("device", ""), digest=digest, index=index)
    return None


BROKER_DROPS = "$SYS/broker/publish/messages/dropped"
"""mosquitto's count of the messages that it has dropped since its start."""
BROKER_CLIENTS = "$SYS/broker/clients/connected"
"""mosquitto's count of the clients that are connected."""
BROKER_OPENED = "$SYS/broker/load/sockets/1min"
"""mosquitto's count of the connections that were opened in a minute, of which it refuses some unread."""
BROKER_CONNECTS = "$SYS/broker/load/connections/1min"
"""mosquitto's count of the CONNECT messages that it read in a minute."""
BROKER_COUNTS = (BROKER_DROPS, BROKER_CLIENTS, BROKER_OPENED, BROKER_CONNECTS)
CLIENTS_REMEDY = "raise max_connections in mosquitto.conf and LimitNOFILE of its unit"
DROPS_REMEDY = "raise max_queued_messages and max_queued_bytes in mosquitto.conf"


def mosquitto_acl(
    fleet: str,
    coordinator_user: str = "coordinator",
    devices: Sequence[str] | None = None,
    watchers: Sequence[str] = (),
) -> str:
    """Return the text of mosquitto's `acl_file`. mosquitto forbids everything that the file does not allow.

    mosquitto grants a forbidden SUBSCRIBE and then sends nothing: the symptom of a wrong rule is messages that never arrive.

    Args:
        coordinator_user: The coordinator's user name at the broker.
        devices: Device ids, which must be the devices' user names. Each gets rules of its own, and any other user gets
            none. With None the rules are patterns over the user name, which mosquitto applies to *every* user: a user
            with any password can join the fleet as the device of that name, though never as another one.
        watchers: Users that only read. With `devices`, even an empty sequence, they can write nothing.

    Returns:
        Lines of rules, each ended by a newline.

    Raises:
        UsageError: A name is not possible, or one user has two parts.
    """
    check_name("fleet", fleet)
    _check_user("coordinator", coordinator_user)
    if coordinator_user in (devices or ()):
        raise UsageError(f"{coordinator_user!r} is both the coordinator's user and a device; rename the device")
    for watcher in watchers:
        _check_user("watcher", watcher)
        if watcher in (coordinator_user, *(devices or ())):
            raise UsageError(f"watcher {watcher!r} is also the coordinator's user or a device; use another user")
    lines = [f"# fedpatch fleet {fleet}: generated from the topic table, do not edit", f"user {coordinator_user}"]
    lines += [*_rules("coordinator", fleet, "+", "topic"), *(f"topic read {topic}" for topic in BROKER_COUNTS)]
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


def _check_user(party: Party, name: str) -> None:
    if not re.fullmatch(r"[^\s+#/]+", name):
        raise UsageError(f"{party} user {name!r} is not possible; leave out blanks, +, # and /")


def _rules(party: Party, fleet: str, device: str, keyword: Literal["topic", "pattern"]) -> list[str]:
    lines = []
    for row in TOPICS:
        access = ("read" if row.may_read(party) else "") + ("write" if row.writer == party else "")
        if access:
            lines.append(f"{keyword} {access} {_acl_filter(row, fleet, device)}")
    return lines


def _acl_filter(row: Topic, fleet: str, device: str) -> str:
    names = {"fleet": fleet, "device": device}
    return _PLACEHOLDER.sub(lambda match: names.get(match[1], "+"), row.pattern)


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
    return re.compile(_PLACEHOLDER.sub(lambda match: f"(?P<{match[1]}>{parts[match[1]]})", row.pattern), re.ASCII)


_REGEXES: dict[Kind, re.Pattern[str]] = {row.name: _regex(row) for row in TOPICS}
