"""A lying coordinator that is also the broker's operator: it reads every message, and sends each device what it likes.

It is built of the product's own parts, and plays one masked round with real agents step by step. A `Lie` changes the messages
for single devices. Colluders are members with certificates of the fleet that give the coordinator all that they know. What the
coordinator can compute is in tests.attacks.learned.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from fedpatch.coordinator.aggregation.masked_mean import vector_layout
from fedpatch.coordinator.aggregation.masked_scale import MaskedScale
from fedpatch.coordinator.aggregation.moved_base import moved
from fedpatch.coordinator.runtime.run_preparation import Prepared, prepare
from fedpatch.coordinator.settings import RunSettings
from fedpatch.device_agent.masking.masking_round import RoundName
from fedpatch.device_agent.runtime.key_certificates import CertificateFiles
from fedpatch.device_agent.state.revocation_file import RevocationFile
from fedpatch.shared.masking.agreement import Sets, statement
from fedpatch.shared.masking.group_context import MaskingGroup, bitmap_of, request_digest, write_grid
from fedpatch.shared.masking.group_threshold import threshold_of
from fedpatch.shared.masking.keys import PrivateKey, SecretKeys, commitment_to, open_box, seal_box
from fedpatch.shared.masking.masked_blob import read_masked_blob
from fedpatch.shared.masking.secret_sharing import split_secret
from fedpatch.shared.masking.vector_layout import VectorLayout
from fedpatch.shared.mqtt.client import MqttLink, Received
from fedpatch.shared.mqtt.tls_context import TlsFiles
from fedpatch.shared.tensors.arrays import Array, Tensors, values_digest
from fedpatch.shared.tensors.packing import Packed, pack
from fedpatch.shared.wire import topics
from fedpatch.shared.wire.chunks import cut, decode_chunk, encode_chunk
from fedpatch.shared.wire.codec import decode, encode
from fedpatch.shared.wire.features import COORDINATOR_FEATURES
from fedpatch.shared.wire.masking_messages import (
    Agreed,
    Agreement,
    GroupMember,
    Inbox,
    MaskingKeys,
    Reveal,
    Roster,
    SecureTerms,
    Shares,
    ThresholdRule,
    Unmask,
)
from fedpatch.shared.wire.messages import (
    Accept,
    Body,
    Cancel,
    Committed,
    Decline,
    Envelope,
    Failed,
    Grant,
    Manifest,
    Offer,
    WorkRequest,
)
from tests.attacks.learned import Names
from tests.support.identities import Certified, url_of
from tests.system.commands import wait_for
from tests.system.fleet import Fleet
from tests.system.oracle_task import REFERENCE

B = TypeVar("B")
Lie = Callable[[str, Any], Any]
"""Returns the message that a device gets in place of the honest one; None for none."""
FLEET, EXAMPLES = "kitchen", 16
PATIENCE_S = 60.0
_WINDOW = 64
_CHUNK_BYTES = 2**16
_REFUSED = "masking: "


def honest(device: str, body: Any) -> Any:
    """Change nothing."""
    return body


class Colluder:
    """A member with a certificate of the fleet that is in league with the coordinator; its vector is zero.

    Args:
        name: Name of the device.
        files: Its certificate and key.
        fleet: Name of the fleet.
        directory: Any directory.
    """

    def __init__(self, name: str, files: TlsFiles, fleet: str, directory: Path) -> None:
        self.name = name
        self.secrets = SecretKeys.new(os.urandom)
        self._certificates = CertificateFiles(files, name, fleet, RevocationFile(directory))

    def keys(self, request: bytes, **changes: bytes) -> MaskingKeys:
        """Return its signed keys; `changes` replace public keys, for example by copies."""
        return self._certificates.sign(replace(self.secrets.public(), **changes), request)

    def share(self, group: MaskingGroup) -> Shares:
        """Return its shares, which are those of an honest member."""
        index = group.index(self.name)
        assert index is not None
        parts = [
            split_secret(one, len(group), group.threshold, os.urandom)
            for one in (self.secrets.self_mask, self.secrets.mask)
        ]
        key = PrivateKey(self.secrets.share)
        boxes = tuple(
            b"" if place == index else self._box(key, group, (index, place), (parts[0][place], parts[1][place]))
            for place in range(len(group))
        )
        return Shares(group.context, boxes, commitment_to(self.secrets.self_mask, group.context))

    @staticmethod
    def _box(key: PrivateKey, group: MaskingGroup, ends: tuple[int, int], pair: tuple[bytes, bytes]) -> bytes:
        return seal_box(key, group.members[ends[1]].keys.share, group.context, ends, pair)

    def opened(self, group: MaskingGroup, sender: int, box: bytes) -> tuple[bytes, bytes]:
        """Return the shares of another member's secrets, of both kinds."""
        index = group.index(self.name)
        assert index is not None
        return open_box(self.secrets.share, group.members[sender].keys.share, group.context, (sender, index), box)

    def vouch(self, group: MaskingGroup, sets: Sets) -> bytes:
        """Sign any sets."""
        index = group.index(self.name)
        assert index is not None
        return self._certificates.sign_statement(statement(group, index, sets))


class LyingCoordinator:
    """The connection of the adversary, and all that it has read.

    Args:
        url: URL of the broker.
        fleet: The real agents.
        prepared: Task, plan and policy.
        options: Options of the connection, such as `tls`.
        colluders: Members in league with it.

    Attributes:
        heard: Each message of a device that was decoded, with its device, in the order of arrival.
        chunks: Bytes of each update, by device and chunk.
    """

    def __init__(
        self, url: str, fleet: Fleet, prepared: Prepared, *, colluders: Sequence[Colluder] = (), **options: Any
    ) -> None:
        self.fleet, self.prepared = fleet, prepared
        self.colluders = {one.name: one for one in colluders}
        self.heard: list[tuple[str, Envelope]] = []
        self.raw: list[tuple[str, bytes]] = []
        self.chunks: dict[tuple[str, str], bytes] = {}
        self._runs = 0
        self._refusals: dict[str, tuple[int, list[str]]] = {}  # by device, with the size of the log
        self._link = MqttLink(url, client_id="coordinator", events=self._take, **options)
        self._link.subscribe(f"fedpatch/1/{fleet.name}/#")
        self._link.start()

    def stop(self) -> None:
        self._link.stop()

    def refusals(self, device: str) -> list[str]:
        """Return the reasons in the log of a device for messages of its group that it refused."""
        log = self.fleet.agents[device].state_dir.with_suffix(".log")
        size = log.stat().st_size
        if self._refusals.get(device, (0, []))[0] != size:
            lines = log.read_text("utf-8").splitlines()
            found = [line.partition(_REFUSED)[2] for line in lines if _REFUSED in line and " refused: " in line]
            self._refusals[device] = size, found
        return self._refusals[device][1]

    def _take(self, event: object) -> None:
        if not isinstance(event, Received) or not event.payload:
            return
        topic = topics.parse_topic(self.fleet.name, event.topic)
        self.raw.append((event.topic, event.payload))
        if topic is not None and topic.kind == "update_chunk":
            chunk = decode_chunk(event.payload)
            self.chunks[topic.device, chunk.digest] = chunk.data  # small updates have one chunk
        elif topic is not None and topic.kind in ("up", "device_state"):
            self.heard.append((topic.device, decode(event.payload)))

    def base(self, tensors: Tensors, encoding: str = "fp32+zstd") -> tuple[Manifest, str]:
        """Publish a model; return its manifest and the digest of its values."""
        schema = self.prepared.travelling
        return self.publish(pack(tensors, schema, {}, encoding)), values_digest(tensors, schema)

    def publish(self, packed: Packed) -> Manifest:
        """Publish a blob, and return its manifest."""
        manifest = packed.manifest(_CHUNK_BYTES, self.prepared.travelling)
        for index in range(manifest.chunk_count):
            topic = topics.model_chunk(self.fleet.name, manifest.digest, index)
            self._link.publish(topic, encode_chunk(cut(packed.blob, manifest, index)), retain=True)
        return manifest

    def send(self, device: str, envelope: Envelope) -> None:
        """Send one device any message."""
        self._link.publish(topics.down(self.fleet.name, device), encode(envelope))

    def round(self, tensors: Tensors, devices: Iterable[str] = (), lie: Lie = honest, **changes: Any) -> LyingRound:
        """Return a round that is not begun yet, in a run of its own unless `changes` name one.

        Args:
            tensors: The global model.
            devices: Its devices (all).
            lie: Changes messages.
            changes: Fields of LyingRound.
        """
        self._runs += 1
        run = changes.pop("run", f"run-{self._runs}")
        return LyingRound(self, tensors, tuple(devices) or tuple(self.fleet.agents), lie, run=run, **changes)


@contextmanager
def lying_fleet(
    directory: Path,
    devices: Sequence[str],
    colluders: Sequence[str] = (),
    *,
    task: str = REFERENCE,
    data: str = f"n={EXAMPLES},test=20,seed={{}}",
    batch_size: int = EXAMPLES,
) -> Iterator[LyingCoordinator]:
    """Start agents whose owners require masks at a broker without rules, and the adversary.

    Args:
        directory: Any directory.
        devices: Names of the agents.
        colluders: Names of members in league with the adversary.
        task: Their task.
        data: Data of each, with {} for its place among the devices.
        batch_size: Examples in a minibatch; with all examples of a device a round has one step.
    """
    certificates = Certified(directory / "ca", FLEET).make(*devices, *colluders)
    with certificates.broker() as broker, Fleet(url_of(broker), directory / "agents", name=FLEET) as fleet:
        for place, device in enumerate(devices):
            cert, key = (str(path) for path in certificates.pair(device))
            files = ["--ca-file", str(certificates.ca_file), "--cert-file", cert, "--key-file", key]
            fleet.start(device, task, data.format(place), options=[*files, "--secure", "required", "--min-group", "4"])
        members = [Colluder(one, certificates.files(one), FLEET, directory) for one in colluders]
        fleet.wait_ready(600.0)
        settings = RunSettings(task=task, strategy="fedavg", private="affine", batch_size=batch_size)
        tls = certificates.files("coordinator")
        liar = LyingCoordinator(url_of(broker), fleet, prepare(settings), colluders=members, tls=tls)
        try:
            yield liar
        finally:
            liar.stop()


def base_of(prepared: Prepared, salt: str) -> dict[str, Array]:
    """Return the initial model, moved by a hair so that no device has offered an update from it."""
    return moved(prepared.initial.tensors, prepared.travelling, salt.encode())


@dataclass
class LyingRound:
    """One masked round, whose steps are methods: `ask`, `draw`, `distribute`, `collect`, `unmask`, `reveal`.

    Attributes:
        of: The coordinator.
        tensors: The global model.
        devices: The real devices that are asked.
        lie: Changes each message before it is sent.
        run: Name of the run.
        number: Number of the round.
        epoch: Epoch of the process that asks.
        terms: Changes of the terms.
        plan: Changes of the training plan.
        request: The request of devices to which no lie is told.
        accepted: Keys of the devices that accepted, and of the colluders.
        group: The group of the roster.
        truth: The vector of each device before masking, read from its disk by the test and not by the adversary.
        masking_sets: Masking set of each device, as its inbox named it.
        offers: Offers, by device.
        vectors: Masked vectors by device.
        agreements: Every agreement that came.
        reveals: Every reveal that came.
        answers: The last answer of each device that ended its part: a decline or a failure.
    """

    of: LyingCoordinator
    tensors: Tensors
    devices: tuple[str, ...]
    lie: Lie = honest
    run: str = "run-1"
    number: int = 1
    epoch: int = 1
    terms: Mapping[str, Any] = field(default_factory=dict)
    plan: Mapping[str, Any] = field(default_factory=dict)
    accepted: dict[str, MaskingKeys] = field(default_factory=dict)
    shares: dict[str, Shares] = field(default_factory=dict)
    truth: dict[str, Array] = field(default_factory=dict)
    masking_sets: dict[str, Names] = field(default_factory=dict)
    offers: dict[str, Offer] = field(default_factory=dict)
    vectors: dict[str, Array] = field(default_factory=dict)
    agreements: dict[tuple[str, Names], Agreement] = field(default_factory=dict)
    reveals: dict[str, Reveal] = field(default_factory=dict)
    answers: dict[str, Decline | Failed] = field(default_factory=dict)
    refused: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    group: MaskingGroup = field(init=False)
    roster: Roster = field(init=False)

    # ---- what all steps need

    @cached_property
    def request(self) -> WorkRequest:
        """The request of devices to which no lie is told."""
        prepared = self.of.prepared
        manifest, content = self.of.base(self.tensors)
        scale = MaskedScale.first(prepared.travelling, self.tensors)
        size = len(self.devices) + len(self.of.colluders)
        terms = SecureTerms(
            ThresholdRule.TWO_THIRDS,
            group_min=4,
            group_max=max(8, size),
            bits=16,
            keep=1,
            seed=bytes(16),
            clip=scale.clip,
            weight_cap=40,
            grid=write_grid(scale.ranges),
            strict=True,
        )
        return WorkRequest(
            prepared.schema.digest,
            str(prepared.policy),
            replace(prepared.plan, **self.plan),
            manifest,
            "masked-u16",
            _CHUNK_BYTES,
            300.0,
            features=COORDINATOR_FEATURES,
            secure=replace(terms, **self.terms),
            content=content,
        )

    @property
    def name(self) -> RoundName:
        return RoundName(self.of.prepared.task.name, self.run, self.number)

    @cached_property
    def digest(self) -> bytes:
        """Digest of the honest request."""
        return request_digest(self.name.task, self.run, self.number, self.request)

    @property
    def colluders(self) -> Mapping[str, Colluder]:
        return self.of.colluders

    @property
    def layout(self) -> VectorLayout:
        assert self.request.secure is not None
        return vector_layout(self.of.prepared.travelling, self.request.secure)

    def send(self, device: str, body: Body) -> bool:
        """Send a message, changed by the lie; return whether anything was sent."""
        sent = self.lie(device, body)
        if sent is None:
            return False
        envelope = Envelope(sent, task=self.name.task, run=self.run, epoch=self.epoch, round=self.number)
        self.of.send(device, envelope)
        return True

    def said(self, kind: type[B]) -> dict[str, B]:
        """Return the last message of a kind of each device in this round."""
        return {
            device: one.body
            for device, one in self.of.heard
            if isinstance(one.body, kind) and (one.run, one.round, one.epoch) == (self.run, self.number, self.epoch)
        }

    def _exchange(
        self, bodies: Mapping[str, Any], kind: type[B], fits: Callable[[Any, B], bool] = lambda _asked, _answer: True
    ) -> dict[str, B]:
        """Send messages, and return the answers; devices that refuse in their log, decline or fail have none."""
        before = {device: self._refusals(device) for device in bodies}
        asked = [device for device, body in bodies.items() if self.send(device, body)]
        found: dict[str, B] = {}

        def settled() -> bool:
            said = self.said(kind)
            found.update({one: said[one] for one in asked if one in said and fits(bodies[one], said[one])})
            self.answers.update(self.said(Decline))
            self.answers.update(self.said(Failed))
            for device in asked:
                self.refused[device] = self._refusals(device)
            return all(
                one in found or one in self.answers or len(self.refused[one]) > len(before[one]) for one in asked
            )

        agents = self.of.fleet.agents
        wait_for(lambda: True, settled, lambda: f"{kind.__name__} of {asked}, found {sorted(found)}", PATIENCE_S)
        assert all(agents[one].running for one in asked)
        return {device: found[device] for device in asked if device in found}

    def _refusals(self, device: str) -> list[str]:
        return self.of.refusals(device)

    # ---- the steps

    def ask(self) -> LyingRound:
        """Send the work requests."""
        accepts = self._exchange(dict.fromkeys(self.devices, self.request), Accept)
        self.accepted |= {device: one.keys for device, one in accepts.items() if one.keys is not None}
        return self

    def draw(self, **colluders: MaskingKeys) -> LyingRound:
        """Form a group of all that accepted and of the colluders (with these keys, or their own); take the shares."""
        own = {name: colluders.get(name) or one.keys(self.digest) for name, one in self.of.colluders.items()}
        self.accepted |= own
        members = tuple(GroupMember(name, keys) for name, keys in sorted(self.accepted.items()))
        self.roster = Roster(0, threshold_of(ThresholdRule.TWO_THIRDS, len(members)), members)
        self.group = MaskingGroup.of_roster(self.digest, self.roster)
        asked = [one for one in self.devices if one in self.accepted]
        self.shares |= self._exchange(dict.fromkeys(asked, self.roster), Shares)
        self.shares |= {name: one.share(self.group) for name, one in self.of.colluders.items()}
        return self

    def train(self) -> LyingRound:
        """Wait until the devices have trained, and read their true vectors for the test."""
        waiting = [one for one in self.devices if one in self.shares and one not in self.truth]

        def trained() -> bool:
            for device in waiting:
                path = self.of.fleet.agents[device].state_dir / "spool" / "vector.bin"
                if device not in self.truth and path.exists():
                    self.truth[device] = read_masked_blob(path.read_bytes(), self.layout).elements
            self.answers.update(self.said(Failed))
            return all(one in self.truth or one in self.answers for one in waiting)

        wait_for(lambda: True, trained, lambda: f"vectors of {sorted(self.truth)} only, {self.answers}", PATIENCE_S)
        return self

    def distribute(self, sets: Mapping[str, Names] | None = None) -> LyingRound:
        """Send each trained device its inbox with a masking set (all that sent shares), and take offers and updates."""
        asked = [one for one in self.devices if one in self.truth and one not in self.answers]
        chosen = {one: (sets or {}).get(one, frozenset(self.shares)) for one in asked}
        self.masking_sets |= chosen
        inboxes = {one: self._inbox(one, members) for one, members in chosen.items() if members}
        self.offers |= self._exchange(inboxes, Offer)
        for device, offer in self.offers.items():
            self.send(device, Grant(offer.manifest.digest, _WINDOW, bytes(1)))
        digests = {device: one.manifest.digest for device, one in self.offers.items()}
        wait_for(
            lambda: True,
            lambda: all(one in self.of.chunks for one in digests.items()),
            lambda: f"no updates of {sorted(digests)}",
            PATIENCE_S,
        )
        for device, digest in digests.items():
            self.vectors[device] = read_masked_blob(self.of.chunks[device, digest], self.layout).elements
            self.send(device, Committed(digest))
        return self

    def _inbox(self, device: str, members: Names) -> Inbox:
        place = self.group.index(device)
        assert place is not None
        boxes = (
            self.shares[one.device].boxes[place] if one.device in members and one.device != device else b""
            for one in self.group.members
        )
        return Inbox(self.group.context, tuple(boxes))

    def unmask(self, reported: Mapping[str, Names]) -> LyingRound:
        """Ask devices to agree to these sums, with the codes that the coordinator has; colluders sign what is needed."""
        bodies = {}
        for device, members in reported.items():
            sets = Sets(self._bitmap(self.masking_sets.get(device, frozenset(self.shares))))
            codes = (self._code(one.device, sets) if one.device in members else b"" for one in self.group.members)
            bodies[device] = Unmask(self.group.context, self._bitmap(members), tuple(codes))
        found = self._exchange(bodies, Agreement, _same_sum)
        self.agreements |= {(device, reported[device]): one for device, one in found.items()}
        return self

    def _code(self, device: str, sets: Sets) -> bytes:
        if device in self.of.colluders:
            return self.of.colluders[device].vouch(self.group, sets)
        codes = self.offers[device].codes if device in self.offers else ()
        return codes[0] if codes else b""

    def reveal(self, reported: Mapping[str, Names]) -> LyingRound:
        """Send devices all agreements to the sum that each of them was asked for; colluders agree to all."""
        bodies = {}
        for device, members in reported.items():
            sets = Sets(self._bitmap(self.masking_sets[device]), self._bitmap(members))
            codes = []
            for one in self.group.members:
                known = self.agreements.get((one.device, members))
                if one.device in self.of.colluders:
                    codes.append(self.of.colluders[one.device].vouch(self.group, sets))
                else:
                    codes.append(known.codes[0] if known is not None else b"")
            bodies[device] = Agreed(self.group.context, self._bitmap(members), tuple(codes))
        self.reveals |= self._exchange(bodies, Reveal, _same_sum)
        return self

    def end(self) -> LyingRound:
        """Cancel what is left, so that the devices are free."""
        for device in self.devices:
            self.of.send(
                device,
                Envelope(Cancel("round_over"), task=self.name.task, run=self.run, epoch=self.epoch, round=self.number),
            )
        return self

    def play(self) -> LyingRound:
        """Play all steps; all devices with an offer are in the sum."""
        self.ask().draw().train().distribute()
        reported = frozenset(self.offers) | frozenset(self.of.colluders)
        asked = dict.fromkeys(self.offers, reported)
        return self.unmask(asked).reveal(asked)

    def _bitmap(self, members: Collection[str]) -> bytes:
        places = (self.group.index(one) for one in members)
        return bitmap_of(frozenset(place for place in places if place is not None), len(self.group))


def _same_sum(asked: Unmask | Agreed, answer: Agreement | Reveal) -> bool:
    return (asked.context, asked.reported) == (answer.context, answer.reported)
