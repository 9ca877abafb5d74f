"""Checks of a broker by `doctor`: login, round trip, retained messages, sessions, packet size.

The checks do not disturb a running fleet. The doctor's connections have client ids of their own. Messages on topics with
subscribers are empty, so both sides ignore them, and not retained; all others go to chunk topics without subscribers. A broker
may grant a forbidden subscription and then send nothing, so a check counts only delivered messages. A result that the access
rules hide from this side is reported as not proven.
"""

from __future__ import annotations

import hashlib
import statistics
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass

from fedpatch.shared.app.formatting import size
from fedpatch.shared.diagnostics.broker_reachability import Reached, reach
from fedpatch.shared.diagnostics.broker_rights import AclParty, check_rights
from fedpatch.shared.diagnostics.checks import Checkup, error_text
from fedpatch.shared.diagnostics.probe import ANSWER_TIMEOUT_S, Probe
from fedpatch.shared.errors import BrokerError, UsageError, problem_and_remedy
from fedpatch.shared.mqtt.broker_profile import PROFILES, fitting_profile
from fedpatch.shared.mqtt.broker_settings import BrokerSettings
from fedpatch.shared.mqtt.connection_errors import TEST_LARGE_PACKETS
from fedpatch.shared.mqtt.events import Received
from fedpatch.shared.mqtt.url import BrokerUrl, parse_broker_url
from fedpatch.shared.wire.chunk_sizes import chunk_bytes_within
from fedpatch.shared.wire.chunks import CHUNK_OVERHEAD_BYTES
from fedpatch.shared.wire.topics import BROKER_DROPS, DROPS_REMEDY, Kind

ROUND_TRIPS = 9
SLOW_ROUND_TRIP_MS = 35.0
"""Nagle's algorithm with delayed acknowledgements takes 40 ms or more, a local network a few ms."""

_PACKET_BYTES = 2000
"""More than the 1500 bytes of an Ethernet packet, less than any broker's limit."""

_QUIET_S = 0.5
_SMALL = b"fedpatch doctor"
_RULES = "the access rules let no device read its own chunks"


@dataclass
class Asked:
    """Results of the checks.

    Attributes:
        reached: How the broker was reached.
        foreign: Topics of the other side that this side may write to.
        presence: Messages since the subscription to the topics of presence: the retained ones first.
    """

    reached: Reached
    foreign: set[Kind]
    presence: list[Received]


def check_broker(settings: BrokerSettings, side: AclParty, chunk_bytes: int, checkup: Checkup) -> Asked | None:
    """Make all checks of a broker.

    Args:
        side: Coordinator or device, whose access rules apply.
        chunk_bytes: Data bytes of the chunks that the fleet uses.

    Returns:
        The results, or None if the broker cannot be reached or refuses the login.
    """
    broker = parse_broker_url(settings.broker)
    _check_profile(settings, broker, checkup)
    checkup.say(f"asking the broker at {broker}")
    reached = reach(broker, settings.tls_files, checkup)
    if reached is None:
        checkup.skip("broker_login", "the broker cannot be reached, so nothing was asked of it")
        return None
    with ExitStack() as stack:
        try:
            probe = stack.enter_context(Probe(settings, side.probe_id("a")))
        except BrokerError as error:
            checkup.fail("broker_login", *_login_failure(settings, side, error))
            return None
        except UsageError as error:  # a file of ours, such as a key that others may read
            checkup.fail("broker_login", *problem_and_remedy(str(error)))
            return None
        user = settings.username or broker.username
        anonymous = "with our certificate" if settings.cert_file else "without a user name"
        login = f"as user {user!r}" if user else anonymous
        checkup.good("broker_login", f"MQTT {probe.connected.protocol}, {login}")
        try:
            if _ids_are_tied(settings, side, probe):
                text = (
                    f"the broker gives all connections {login} one client id, and each ends the last one, that of an agent at "
                    "work too: the doctor can ask no more here; another listener may tie no ids (mosquitto.conf: 8884)"
                )
                checkup.skip("client_ids", text)
                return None
            return _Broker(settings, side, checkup, probe, reached).ask(chunk_bytes)
        except BrokerError as error:
            checkup.fail("broker", f"the broker let us in, but then: {error_text(error)}", "look into the broker's log")
            return None


def _check_profile(settings: BrokerSettings, broker: BrokerUrl, checkup: Checkup) -> None:
    """Check that a hosted broker has its profile, and state the limits that the connection keeps."""
    fitting = fitting_profile(broker.host)
    profile = settings.profile
    if fitting and settings.broker_profile != fitting:
        text = f"{broker.host} is a broker of {PROFILES[fitting].service}, whose limits are not kept"
        checkup.warn("broker_profile", text, f"set broker_profile = {fitting}, here and on every other side")
    elif profile.service:
        text = (
            f"{profile.service}: {profile.publishes_per_s:g} messages and {size(int(profile.bytes_per_s))} a second, "
            f"messages of {size(profile.packet_bytes)}, {profile.filters_per_subscribe} filters in a SUBSCRIBE"
        )
        if profile.tls_only and not broker.tls:
            checkup.warn("broker_profile", f"{text}; it accepts TLS only", "write mqtts:// in the broker's URL")
        else:
            checkup.good("broker_profile", text)


def _ids_are_tied(settings: BrokerSettings, side: AclParty, probe: Probe) -> bool:
    """Return whether a second connection ends the first one, although it has another client id."""
    with Probe(settings, side.probe_id("t")):
        pass
    return probe.publish(side.echo_topic("tied")) == "lost" and probe.ended


def _login_failure(settings: BrokerSettings, side: AclParty, error: BrokerError) -> tuple[str, str]:
    """Return the problem of a refused login and its remedy; the message about a refused certificate has both."""
    text = error_text(error)
    if error.remedy:
        return text.removesuffix(f"; {error.remedy}"), error.remedy
    return text, _login_remedy(settings, side, text)


def _login_remedy(settings: BrokerSettings, side: AclParty, text: str) -> str:
    password = f"--password-file or {settings.env_prefix}PASSWORD"
    ties = f"; where the broker ties clients to their ids, it must take those that begin with {side.client_id}"
    if "asks for a user name" in text:
        return (
            f"give --username, and the password by {password}; mosquitto_passwd adds users on the broker's host{ties}"
        )
    if "without a password" in text:
        return f"give the password by {password}{ties}"
    if "refused user" in text:
        return (
            f"correct --username, and the password of {password}, or set it anew with mosquitto_passwd and reload{ties}"
        )
    if "client id" in text:
        return f"let the broker take client ids that begin with {side.client_id}"
    return "look into the broker's log; is it an MQTT broker, and is this its MQTT port?"


class _Broker:
    """The checks of a broker that has accepted the login."""

    def __init__(
        self, settings: BrokerSettings, side: AclParty, checkup: Checkup, probe: Probe, reached: Reached
    ) -> None:
        self._settings = settings
        self._side = side
        self._checkup = checkup
        self._probe = probe
        self._reached = reached
        self._echoes = False

    def ask(self, chunk_bytes: int) -> Asked:
        side, probe = self._side, self._probe
        topic = side.echo_topic("first")
        probe.subscribe(topic)
        self._echoes = probe.publish(topic, _SMALL) == "taken" and probe.gets(topic, timeout_s=_QUIET_S) is not None
        self._check_round_trip()
        known = len(probe.received)
        presence = self._presence()
        foreign = check_rights(self._settings, side, probe, self._checkup)
        self._check_retained(any(one.retained for one in presence))
        self._check_session()
        if side.party == "coordinator":
            self._check_drops()
        self._check_chunk(chunk_bytes)  # last, because it may end the connection
        return Asked(self._reached, foreign, [one for one in probe.received[known:] if one.payload])

    def _presence(self) -> list[Received]:
        probe = self._probe
        known = len(probe.received)
        probe.subscribe(*self._side.presence_filters())
        probe.publish(self._side.echo_topic("first"), _SMALL)  # its answer comes after the retained messages
        probe.listen(_QUIET_S)
        return [one for one in probe.received[known:] if one.payload]

    def _check_round_trip(self) -> None:
        """Measure the time of a message and its answer between two connections or, without echoes, of the acknowledgement."""
        try:
            took_ms = sorted(self._echo_times_ms() if self._echoes else self._answer_times_ms())
        except TimeoutError:
            self._checkup.fail("round_trip", "messages of QoS 1 are not answered", "look into the broker's log")
            return
        median = statistics.median(took_ms)
        what = "a message and its answer take" if self._echoes else "the broker acknowledges a message in"
        text = f"{what} {median:.1f} ms (median of {len(took_ms)}, the slowest {took_ms[-1]:.1f} ms)"
        if median > SLOW_ROUND_TRIP_MS and self._reached.nearby:
            remedy = "set `set_tcp_nodelay true` in mosquitto.conf (TCP_NODELAY elsewhere); if it is set, look at the network"
            self._checkup.warn("round_trip", f"{text}, which is slow for a broker this near", remedy)
        else:
            self._checkup.good("round_trip", text)

    def _echo_times_ms(self) -> Iterator[float]:
        ping, pong = self._side.echo_topic("ping"), self._side.echo_topic("pong")
        with Probe(self._settings, self._side.probe_id("b")) as other:
            other.subscribe(ping)
            self._probe.subscribe(pong)
            for number in range(ROUND_TRIPS):
                payload = b"%d" % number
                began = time.perf_counter()
                self._probe.send(ping, payload)
                if other.gets(ping, payload) is None:
                    raise TimeoutError
                other.send(pong, payload)
                if self._probe.gets(pong, payload) is None:
                    raise TimeoutError
                yield 1e3 * (time.perf_counter() - began)

    def _answer_times_ms(self) -> Iterator[float]:
        topic = self._side.echo_topic("ping")
        for _ in range(ROUND_TRIPS):
            began = time.perf_counter()
            if self._probe.publish(topic, _SMALL) == "lost":
                raise TimeoutError
            yield 1e3 * (time.perf_counter() - began)

    def _check_retained(self, seen: bool) -> None:
        costs = "devices and the coordinator find each other late, and models are asked for chunk by chunk"
        remedy = "set `retain_available true` in mosquitto.conf, or what allows retained messages on another broker"
        if not self._probe.connected.retain_available:
            self._checkup.warn("retained", f"the broker keeps no retained messages, so {costs}", remedy)
        elif seen:
            self._checkup.good("retained", "the broker keeps retained messages: it had one of the fleet's")
        elif not self._echoes:
            self._checkup.skip(
                "retained", f"the broker says that it keeps retained messages; {_RULES}, so it is not proven"
            )
        elif self._keeps():
            self._checkup.good("retained", "the broker keeps retained messages: one came back to a later subscriber")
        else:
            self._checkup.warn(
                "retained", f"a retained message was not there for a later subscriber, so {costs}", remedy
            )

    def _keeps(self) -> bool:
        topic = self._side.echo_topic("kept")
        try:
            self._probe.publish(topic, _SMALL, retain=True)
            with Probe(self._settings, self._side.probe_id("b")) as other:
                other.subscribe(topic)
                got = other.gets(topic, timeout_s=ANSWER_TIMEOUT_S)
                return got is not None and got.retained
        finally:
            self._probe.publish(topic, b"", retain=True)

    def _check_session(self) -> None:
        """Check that the broker keeps session and messages of a client that disconnects and reconnects."""
        topic, name = self._side.echo_topic("away"), self._side.probe_id("s")
        with Probe(self._settings, name, keeps_session=True) as one:
            one.subscribe(topic)
        self._probe.publish(topic, _SMALL)
        with Probe(self._settings, name, keeps_session=True, topics=(topic,)) as again:
            kept = again.connected.session_present
            came = kept and self._echoes and again.gets(topic) is not None
        with Probe(self._settings, name):
            pass  # this connection keeps no session, so the broker deletes it
        costs = "what is sent while a device is away is asked for again when it is back, which takes longer"
        if not kept:
            remedy = "let the broker keep sessions for an hour (mosquitto: persistent_client_expiration not below 1h)"
            self._checkup.warn("session", f"the broker forgets who has left, so {costs}", remedy)
        elif came:
            self._checkup.good("session", "the broker keeps sessions: a message sent meanwhile came after the return")
        elif not self._echoes:
            self._checkup.good("session", f"the broker keeps sessions; {_RULES}, so no message was sent meanwhile")
        else:
            remedy = "let the broker queue messages for those who are away (mosquitto: max_queued_messages above 0)"
            self._checkup.warn("session", f"the broker keeps sessions, but no messages in them, so {costs}", remedy)

    def _check_drops(self) -> None:
        """Check mosquitto's count of dropped messages, which other brokers and older rules do not show."""
        self._probe.subscribe(BROKER_DROPS)
        found = self._probe.gets(BROKER_DROPS, timeout_s=_QUIET_S)
        if found is None or not found.payload.isdigit():
            return
        text = f"since its start the broker has dropped {found.payload.decode()} messages for clients with a full queue"
        if int(found.payload):
            self._checkup.warn("drops", text, DROPS_REMEDY)
        else:
            self._checkup.good("drops", text)

    def _check_chunk(self, chunk_bytes: int) -> None:
        limit = self._probe.connected.max_packet_bytes
        stated = "the broker states no packet limit" if limit is None else f"the broker takes packets of {size(limit)}"
        try:
            fits = chunk_bytes_within(chunk_bytes, limit)
        except BrokerError as error:
            self._checkup.fail(
                "chunk", error_text(error), "set max_packet_size in mosquitto.conf to 1000000, or take the line out"
            )
            return
        passes = self._chunk_passes(fits)
        text = f"{stated}, and a chunk of {size(fits)}"
        if passes:
            ways = "came back" if self._echoes else f"was taken ({_RULES})"
            less = f"; chunks will be that small instead of {size(chunk_bytes)}" if fits < chunk_bytes else ""
            self._checkup.good("chunk", f"{text} {ways}{less}")
        else:
            fault = f": {self._probe.fault}" if self._probe.fault else ""
            remedy = (
                f"raise the broker's limit (mosquitto: message_size_limit) above {size(fits)}, or give the coordinator "
            )
            remedy += "a smaller --chunk-kib"
            if not self._packet_passes():
                fault = f": messages of {_PACKET_BYTES} bytes do not pass, and small ones do (path MTU)"
                remedy = TEST_LARGE_PACKETS.format(host=parse_broker_url(self._settings.broker).host)
            self._checkup.fail("chunk", f"{text} does not pass{fault}", remedy)

    def _packet_passes(self) -> bool:
        """Return whether a message of more than one full packet passes on a connection of its own, where nothing waits.

        It must also come back, where it may: packets may be lost in one direction only.
        """
        topic = self._side.echo_topic("packet")
        try:
            with Probe(self._settings, self._side.probe_id("b")) as probe:
                if self._echoes:
                    probe.subscribe(topic)
                taken = probe.publish(topic, bytes(_PACKET_BYTES))
                return taken != "lost" and (taken == "refused" or not self._echoes or probe.gets(topic) is not None)
        except BrokerError:
            return True  # another fault: a broker that accepts no connection has no problem of packets

    def _chunk_passes(self, chunk_bytes: int) -> bool:
        topic = self._side.echo_topic("chunk")
        payload = hashlib.sha256(topic.encode()).digest() * (-(-(chunk_bytes + CHUNK_OVERHEAD_BYTES) // 32))
        payload = payload[: chunk_bytes + CHUNK_OVERHEAD_BYTES]
        if self._echoes:
            self._probe.subscribe(topic)
        taken = self._probe.publish(topic, payload) == "taken"
        return taken and (not self._echoes or self._probe.gets(topic, payload) is not None)
