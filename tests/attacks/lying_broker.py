"""A lying broker between honest agents and an honest coordinator: it reads, changes, holds back, repeats and invents messages.

Two brokers without access rules, one for each side, and an actor that passes each message on. A `Lie` returns the messages that
take the place of one. `Transcript` holds each masked round as the actor saw it, for tests.attacks.learned.
"""

from __future__ import annotations

import shutil
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fedpatch.coordinator.aggregation.masked_mean import vector_layout
from fedpatch.coordinator.runtime.run_preparation import Prepared, prepare
from fedpatch.coordinator.settings import RunSettings
from fedpatch.shared.masking.group_context import MaskingGroup, request_digest
from fedpatch.shared.masking.masked_blob import read_masked_blob
from fedpatch.shared.masking.vector_layout import VectorLayout
from fedpatch.shared.mqtt.client import MqttLink, Received
from fedpatch.shared.tensors.arrays import Array
from fedpatch.shared.wire import topics
from fedpatch.shared.wire.chunks import decode_chunk
from fedpatch.shared.wire.codec import decode, encode
from fedpatch.shared.wire.masking_messages import Inbox, Reveal, Roster, Shares
from fedpatch.shared.wire.messages import Body, Claim, Envelope, Offer, WorkRequest
from tests.attacks.learned import Names
from tests.support.identities import Certified, url_of
from tests.system.commands import Done
from tests.system.fleet import Fleet
from tests.system.oracle_task import REFERENCE

FLEET, EXAMPLES = "kitchen", 16
_TURN_S = 0.05
_CHUNKS = ("model_chunk", "update_chunk")


@dataclass(frozen=True)
class Passing:
    """A message on its way.

    Attributes:
        topic: Its topic.
        payload: Its bytes.
        where: The parts of the topic.
        envelope: The message; None for a chunk, and for bytes that clear a retained message.
    """

    topic: str
    payload: bytes
    where: topics.ParsedTopic
    envelope: Envelope | None

    @property
    def device(self) -> str:
        return self.where.device

    @property
    def body(self) -> Body | None:
        return None if self.envelope is None else self.envelope.body

    @property
    def retain(self) -> bool:
        return topics.BY_KIND[self.where.kind].retain and not isinstance(self.body, Claim)

    def with_body(self, body: Body) -> Passing:
        """Return the message with another body."""
        assert self.envelope is not None
        envelope = replace(self.envelope, body=body)
        return replace(self, envelope=envelope, payload=encode(envelope))

    def with_bytes(self, payload: bytes) -> Passing:
        """Return the message with these bytes, which are a chunk or clear a retained message."""
        return replace(self, payload=payload, envelope=None)

    def at(self, fleet: str, topic: str) -> Passing:
        """Return the message on another topic."""
        where = topics.parse_topic(fleet, topic)
        assert where is not None
        return replace(self, topic=topic, where=where)

    def of_device(self, device: str) -> Passing:
        """Return the message under the name of another device."""
        where = replace(self.where, device=device)
        return replace(self, topic=self.topic.replace(f"/dev/{self.device}/", f"/dev/{device}/"), where=where)


Lie = Callable[[Passing], Iterable[Passing]]


def honest(message: Passing) -> Iterable[Passing]:
    """Pass each message on."""
    return [message]


@dataclass
class Transcript:
    """One masked round with one group, as the messages show it that were delivered.

    Attributes:
        group: The group of the roster.
        layout: The vector of an update.
        shares: Shares that the coordinator got.
        masking_sets: Masking set of each device, by its inbox.
        vectors: Masked vectors that devices sent.
        reveals: Reveals that devices sent.
        truth: The vector of each device before masking, read from its disk by the test and not by the adversary.
        colluders: None.
    """

    group: MaskingGroup
    layout: VectorLayout
    shares: dict[str, Shares] = field(default_factory=dict)
    masking_sets: dict[str, Names] = field(default_factory=dict)
    vectors: dict[str, Array] = field(default_factory=dict)
    reveals: dict[str, Reveal] = field(default_factory=dict)
    truth: dict[str, Array] = field(default_factory=dict)
    colluders: Mapping[str, Any] = field(default_factory=dict)


class LyingBroker:
    """The actor between two brokers.

    Args:
        sides: URLs of the broker of the agents, and of that of the coordinator.
        fleet: The agents.
        prepared: Task, plan and policy.
        options: Options of both connections, such as `tls`.

    Attributes:
        lie: Changes messages.
        passed: Each message that came, in the order of arrival.
        rounds: Masked rounds by run, number and epoch.
    """

    def __init__(self, sides: tuple[str, str], fleet: Fleet, prepared: Prepared, **options: Any) -> None:
        self.lie: Lie = honest
        self.fleet, self.prepared = fleet, prepared
        self.passed: list[Passing] = []
        self.rounds: dict[tuple[str, int, int], Transcript] = {}
        self._requests: dict[tuple[str, int, int], WorkRequest] = {}
        self._updates: dict[tuple[str, str], Transcript] = {}  # by device and digest of the update
        self._waiting: deque[Passing] = deque()
        self._arrived = threading.Event()
        self._stopped = False
        self._links: dict[topics.Party, MqttLink] = {}
        parties: tuple[topics.Party, topics.Party] = ("device", "coordinator")
        for writer, url in zip(parties, sides, strict=True):
            self._links[writer] = MqttLink(url, client_id="actor", events=self._taker(writer), **options)
        for link in self._links.values():
            link.subscribe(f"fedpatch/1/{fleet.name}/#")
            link.start()
        self._thread = threading.Thread(target=self._work)
        self._thread.start()

    def stop(self) -> None:
        self._stopped = True
        self._thread.join()
        for link in self._links.values():
            link.stop()

    def _taker(self, writer: topics.Party) -> Callable[[object], None]:
        """Return the taker of messages of one side: of those that its parties write, since the others are the actor's own."""

        def take(event: object) -> None:
            if not isinstance(event, Received):
                return
            where = topics.parse_topic(self.fleet.name, event.topic)
            if where is not None and topics.BY_KIND[where.kind].writer == writer:
                envelope = decode(event.payload) if event.payload and where.kind not in _CHUNKS else None
                self._waiting.append(Passing(event.topic, event.payload, where, envelope))
                self._arrived.set()

        return take

    def _work(self) -> None:
        while not self._stopped:
            self._arrived.wait(_TURN_S)
            self._arrived.clear()
            for _ in range(len(self._waiting)):
                message = self._waiting.popleft()
                if self._is_early(message):
                    self._waiting.append(message)
                else:
                    self._pass(message)

    def _pass(self, message: Passing) -> None:
        self.passed.append(message)
        self._note_sent(message)
        for one in self.lie(message):
            self.send(one)

    def send(self, message: Passing) -> None:
        """Deliver a message to the side that reads it."""
        self._note_delivered(message)
        side: topics.Party = "coordinator" if topics.BY_KIND[message.where.kind].writer == "device" else "device"
        self._links[side].publish(message.topic, message.payload, retain=message.retain)

    # ---- what it sees

    def _key(self, message: Passing) -> tuple[str, int, int]:
        assert message.envelope is not None
        return message.envelope.run, message.envelope.round, message.envelope.epoch

    def _is_early(self, message: Passing) -> bool:
        """Hold an inbox back until its device has trained, so that the test can read the true vector."""
        if not isinstance(message.body, Inbox):
            return False
        played = self.rounds[self._key(message)]
        path = self.fleet.agents[message.device].state_dir / "spool" / "vector.bin"
        if message.device not in played.truth and path.exists():
            played.truth[message.device] = read_masked_blob(path.read_bytes(), played.layout).elements
        return message.device not in played.truth

    def _note_sent(self, message: Passing) -> None:
        """Note the request and the roster as the coordinator sends them, and updates and reveals as devices send them."""
        match message.body:
            case WorkRequest() if message.body.secure:
                self._requests[self._key(message)] = message.body
            case Roster():
                self._begin(message, message.body)
            case Offer() if self._key(message) in self.rounds:
                self._updates[message.device, message.body.manifest.digest] = self.rounds[self._key(message)]
            case Reveal():
                self.rounds[self._key(message)].reveals[message.device] = message.body
            case None if message.where.kind == "update_chunk":
                chunk = decode_chunk(message.payload)  # small updates have one chunk
                played = self._updates.get((message.device, chunk.digest))
                if played is not None:
                    played.vectors[message.device] = read_masked_blob(chunk.data, played.layout).elements

    def _begin(self, message: Passing, roster: Roster) -> None:
        request = self._requests[self._key(message)]
        assert request.secure is not None
        assert message.envelope is not None
        group = MaskingGroup.of_roster(
            request_digest(message.envelope.task, message.envelope.run, message.envelope.round, request), roster
        )
        layout = vector_layout(self.prepared.travelling, request.secure)
        self.rounds.setdefault(self._key(message), Transcript(group, layout))

    def _note_delivered(self, message: Passing) -> None:
        """Note shares and inboxes as they are delivered."""
        match message.body:
            case Shares():
                self.rounds[self._key(message)].shares[message.device] = message.body
            case Inbox():
                members = self.rounds[self._key(message)].group.members
                boxes = zip(members, message.body.boxes, strict=True)
                named = {member.device for member, box in boxes if box}
                self.rounds[self._key(message)].masking_sets[message.device] = frozenset(named | {message.device})


@dataclass(frozen=True)
class Between:
    """A fleet with a lying broker, whose runs `run` plays."""

    liar: LyingBroker
    certificates: Certified
    url: str
    directory: Path
    _runs: list[int] = field(default_factory=list)

    def run(self, lie: Lie, **terms: Any) -> tuple[Done, list[Transcript]]:
        """Play a masked run of one round while the broker lies; return the result and the masked rounds of the run."""
        known = len(self.liar.rounds)
        self.liar.lie = lie
        public = self.directory / "public"
        cert, key = self.certificates.pair("coordinator")
        given: dict[str, Any] = {"task": REFERENCE, "strategy": "fedavg", "private": "affine", "secure": "groups"}
        given |= {"devices": len(self.liar.fleet.agents), "rounds": 1, "wait_s": 60, "max_failed_rounds": 1}
        given |= {"ca_file": public / "ca.crt", "ca_dir": public, "cert_file": cert, "key_file": key}
        given |= {"broker": self.url, "encoding": "masked-u16", **terms}
        self._runs.append(len(self._runs))
        state = self.directory / f"state-{len(self._runs)}"
        with self.liar.fleet.coordinator(state, **given) as command:
            done = command.done()
        self.liar.lie = honest
        return done, list(self.liar.rounds.values())[known:]


@contextmanager
def lying_broker(directory: Path, devices: Sequence[str]) -> Iterator[Between]:
    """Start agents whose owners require masks, two brokers, and the actor between them.

    Args:
        directory: Any directory.
        devices: Names of the agents.
    """
    certificates = Certified(directory / "ca", FLEET).make(*devices)
    public = directory / "public"  # no run with signed keys starts beside the CA's key
    public.mkdir()
    for name in ("ca.crt", "ca.crl"):
        shutil.copy(certificates.directory / name, public)
    with ExitStack() as stack:
        near, far = (stack.enter_context(certificates.broker()) for _ in range(2))
        fleet = stack.enter_context(Fleet(url_of(near), directory / "agents", name=FLEET))
        for place, device in enumerate(devices):
            cert, own_key = (str(path) for path in certificates.pair(device))
            files = ["--ca-file", str(certificates.ca_file), "--cert-file", cert, "--key-file", own_key]
            data = f"n={EXAMPLES},test=20,seed={place}"
            fleet.start(device, REFERENCE, data, options=[*files, "--secure", "required"])
        fleet.wait_ready(600.0)
        settings = RunSettings(task=REFERENCE, strategy="fedavg", private="affine")
        tls = certificates.files("coordinator")
        liar = LyingBroker((url_of(near), url_of(far)), fleet, prepare(settings), tls=tls)
        try:
            yield Between(liar, certificates, url_of(far), directory)
        finally:
            liar.stop()


Changes = Callable[[str, Any], Any]


def changing(kind: type, change: Changes) -> Lie:
    """Return the lie that changes the bodies of one kind; None holds a message back."""

    def lie(message: Passing) -> Iterable[Passing]:
        if not isinstance(message.body, kind):
            return [message]
        body = change(message.device, message.body)
        return [] if body is None else [message.with_body(body)]

    return lie
