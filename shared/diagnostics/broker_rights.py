"""Check of a broker's access rules for write and read, with empty messages only.

With MQTT 5 a broker reports a refused message in its acknowledgement, so the doctor tests the rules for writing by messages. A
test of the rules for reading needs a delivery, and so a writer: the doctor itself, where the broker permits it. If the broker
accepts a message but does not deliver it to a subscriber, a rule for reading is missing.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Iterator
from dataclasses import dataclass, field

from fedpatch.shared.config.fields import NAME
from fedpatch.shared.diagnostics.checks import Checkup
from fedpatch.shared.diagnostics.probe import Probe, Taken
from fedpatch.shared.mqtt.broker_settings import BrokerSettings
from fedpatch.shared.wire import topics
from fedpatch.shared.wire.messages import MAX_CHUNKS
from fedpatch.shared.wire.topics import BY_KIND, TOPICS, Kind, Party

_DELIVERY_S = 1.0


@dataclass(frozen=True)
class AclParty:
    """The side that the doctor checks. `device` is the name of the device, empty on the coordinator.

    `client_id` is the client id of the program itself; the doctor adds a suffix. `stranger` is an unused name.
    """

    party: Party
    fleet: str
    device: str
    client_id: str
    user: str | None
    stranger: str = field(default_factory=lambda: f"doctor-{secrets.token_hex(4)}")

    def probe_id(self, which: str) -> str:
        """A client id that begins with the program's own, for rules that match the beginning."""
        return f"{self.client_id}.{self.stranger}.{which}"

    def echo_topic(self, which: str) -> str:
        """A topic that the side may write, without a reader: chunks of an invented blob."""
        digest = hashlib.sha256(f"{self.stranger} {which}".encode()).hexdigest()
        return self.example("model_chunk" if self.party == "coordinator" else "update_chunk", self.device, digest)

    def example(self, kind: Kind, device: str, digest: str = "") -> str:
        """A topic of one kind. Chunks have an index beyond that of any blob, so every receiver ignores them.

        Args:
            kind: The row of the table of topics.
            device: The device in the topic; empty for an invented name.
            digest: SHA-256 of the blob, in hex; empty for an invented one.
        """
        digest = digest or hashlib.sha256(self.stranger.encode()).hexdigest()
        row = BY_KIND[kind].pattern
        name = device or self.stranger
        return row.format(
            fleet=self.fleet, device=name, digest=digest, transfer=topics.transfer_id(digest), index=MAX_CHUNKS
        )

    def presence_filters(self) -> tuple[str, ...]:
        """The topics where the other side, and another program of this side's name, publish their presence."""
        if self.party == "coordinator":
            return (self.rule("device_state"), topics.coordinator_state(self.fleet))
        return (topics.coordinator_state(self.fleet), topics.device_state(self.fleet, self.device))

    def rule(self, kind: Kind) -> str:
        """The filter of an access rule for a row of the table, as `fedpatch broker acl` prints it."""
        return BY_KIND[kind].pattern.format(
            fleet=self.fleet, device=self.device or "+", digest="+", transfer="+", index="+"
        )

    def rule_line(self, kind: Kind) -> str:
        """The line of that rule; a line above it names the user."""
        access = ("read" if BY_KIND[kind].may_read(self.party) else "") + ("write" if self.writes(kind) else "")
        return f"topic {access} {self.rule(kind)}"

    def writes(self, kind: Kind) -> bool:
        """Return whether the topic is the side's to write."""
        return BY_KIND[kind].writer == self.party

    def reads(self, kind: Kind) -> bool:
        """Return whether the topic is the side's to read."""
        return self.party in BY_KIND[kind].readers


def check_rights(settings: BrokerSettings, side: AclParty, probe: Probe, checkup: Checkup) -> set[Kind]:
    """Check which topics the broker lets this side write and read: the findings `rights_write` and `rights_read`.

    Args:
        settings: The broker, and the login of this side.
        side: Whether this side is a coordinator or a device, and the names of its topics.
        probe: An open connection with that login.

    Returns:
        The kinds of topic that this side may write although only the other side should.
    """
    reports = probe.connected.protocol == "5"
    foreign: set[Kind] = set()
    _check_writing(settings, side, checkup, reports)
    _check_reading(settings, side, probe, checkup, foreign, reports)
    return foreign


def _check_writing(settings: BrokerSettings, side: AclParty, checkup: Checkup, reports: bool) -> None:
    if not reports:
        checkup.skip("rights_write", "in MQTT 3.1.1 a broker does not say that it refused a message")
        return
    kinds = [row.name for row in TOPICS if side.writes(row.name)]
    refused = [kind for kind in kinds if _try_to_write(settings, side, side.example(kind, side.device)) != "taken"]
    if not refused:
        checkup.good("rights_write", "the broker takes messages on every topic that is ours to write")
        return
    text = f"{_who(side)} may not write {', '.join(side.rule(kind) for kind in refused)}"
    checkup.fail("rights_write", text, _rules_remedy(side, refused))


def _check_reading(
    settings: BrokerSettings, side: AclParty, probe: Probe, checkup: Checkup, foreign: set[Kind], reports: bool
) -> None:
    kinds = [row.name for row in TOPICS if side.reads(row.name)]
    known = {found.kind for one in probe.received if (found := topics.parse_topic(side.fleet, one.topic))}
    # Single topics, because a wildcard would also deliver the updates of an open round.
    wanted = {side.example(kind, name): kind for kind in kinds for name in _names_to_write_as(side, kind)}
    missing = [kind for kind in kinds if kind in {wanted[topic] for topic in probe.subscribe(*wanted)}]
    unshown: list[Kind] = []
    for kind in kinds:
        if kind in missing:
            continue
        delivered = _is_delivered(settings, side, probe, kind, foreign)
        if delivered or kind in known:
            continue
        (missing if delivered is False and reports else unshown).append(kind)
    if missing:
        text = f"{_who(side)} may not read {', '.join(side.rule(kind) for kind in missing)}"
        checkup.fail("rights_read", text, _rules_remedy(side, missing))
    elif unshown:
        names = ", ".join(side.rule(kind) for kind in unshown)
        checkup.skip("rights_read", f"only the other side may write {names}, so no delivery could be tried alone")
    else:
        checkup.good("rights_read", "messages come on every topic that is ours to read")


def _is_delivered(
    settings: BrokerSettings, side: AclParty, probe: Probe, kind: Kind, foreign: set[Kind]
) -> bool | None:
    """Return whether an accepted message is delivered; None where the broker accepts no message from this side."""
    for device in _names_to_write_as(side, kind):
        topic = side.example(kind, device)
        if _try_to_write(settings, side, topic) == "taken":
            if not side.writes(kind):
                foreign.add(kind)
            return probe.gets(topic, timeout_s=_DELIVERY_S) is not None
    return None


def _names_to_write_as(side: AclParty, kind: Kind) -> Iterator[str]:
    """Yield the devices whose topics to write to.

    Rules by pattern make every user the device of its own name, also the coordinator's user. Device states are an exception:
    by these rules the user may read its own state, which proves nothing about the states of other devices.
    """
    if side.device:
        yield side.device
        return
    yield side.stranger
    if kind != "device_state" and side.user and re.fullmatch(NAME.regex, side.user):
        yield side.user


def _try_to_write(settings: BrokerSettings, side: AclParty, topic: str) -> Taken:
    """Publish on a separate connection, because some brokers close the connection at a forbidden message."""
    with Probe(settings, side.probe_id("w")) as probe:
        return probe.publish(topic)


def _who(side: AclParty) -> str:
    return f"user {side.user!r}" if side.user else "a client without a user name"


def _rules_remedy(side: AclParty, kinds: list[Kind]) -> str:
    if side.device and side.user and side.user != side.device:
        return f"log in as the user {side.device!r}: the generated rules allow a device only what is under its own name"
    lines = " and ".join(f"`{side.rule_line(kind)}`" for kind in kinds)
    acl = f"fedpatch broker acl --fleet {side.fleet}"
    acl += f" --device {side.device}" if side.device else f" --coordinator-user {side.user}" if side.user else ""
    return (
        f"add {lines} to the acl_file for that user, or make it anew with `{acl}`; rules that name client ids must fit "
        f"{side.client_id}.*"
    )
