"""Attacks of a lying broker between an honest coordinator and nine honest agents whose owners require masks.

Seven of the nine must reveal. Each test plays a row of the table of masked groups in docs/explanation/threat-model.md by the
broker. The adversary has all messages; a true vector is read from the disk of its device, for the comparison alone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest

from fedpatch.shared.masking.group_context import bitmap_of
from fedpatch.shared.masking.masked_blob import HEADER_BYTES
from fedpatch.shared.tensors.arrays import values_digest
from fedpatch.shared.tensors.packing import pack
from fedpatch.shared.wire import topics
from fedpatch.shared.wire.chunks import cut, decode_chunk, encode_chunk
from fedpatch.shared.wire.masking_messages import (
    Agreed,
    Agreement,
    Inbox,
    Reveal,
    Roster,
    Shares,
    ThresholdRule,
    Unmask,
)
from fedpatch.shared.wire.messages import (
    Accept,
    Ack,
    Committed,
    CoordinatorState,
    DeviceState,
    Grant,
    Manifest,
    Offer,
    Refused,
    WorkRequest,
)
from tests.attacks.learned import Learned, Names, closest, signed
from tests.attacks.lying_broker import FLEET, Between, Lie, Passing, Transcript, changing, honest, lying_broker
from tests.system.commands import wait_for

pytestmark = [pytest.mark.system, pytest.mark.broker, pytest.mark.timeout(600)]

VICTIM, OTHER, INVENTED = "pi-0", "pi-1", "mallory"
ALL = tuple(f"pi-{place}" for place in range(9))
EVERYBODY, WITHOUT = frozenset(ALL), frozenset(ALL) - {VICTIM}
NOBODY: Names = frozenset()
HIDDEN = 0.35
"""Correlation of two unrelated vectors of the small model at most: five standard deviations."""
_WINDOW = 64
SHORT = {"recruit_deadline_s": 20, "share_deadline_s": 20, "unmask_s": 10, "grace_s": 5, "deadline_s": 60}


@pytest.fixture(scope="module")
def between(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Between]:
    """Nine agents, and the actor between them and a coordinator."""
    with lying_broker(tmp_path_factory.mktemp("between"), ALL) as between:
        yield between


def sums_of(played: Transcript) -> dict[Names, Any]:
    """Return the sums that open. Each is that of its devices' vectors, and has as many devices as must reveal."""
    found = dict(Learned(played).sums()) if played.reveals else {}
    for names, total in found.items():
        assert np.array_equal(total, sum(played.truth[name].astype(total.dtype) for name in names)), names
        assert len(names) >= played.group.threshold
    assert len(found) <= 1
    return found


def assert_hidden(*rounds: Transcript) -> None:
    """Check that no vector, no sum without the device and no difference of these resembles its update."""
    for played in rounds:
        computed = [signed(played, vector) for vector in played.vectors.values()]
        for name, vector in played.truth.items():
            sums = [signed(played, total) for names, total in sums_of(played).items() if name not in names]
            assert closest([*computed, *sums], signed(played, vector)) < HIDDEN, name


def of(device: str, kind: type, change: Callable[[Any], Any]) -> Lie:
    """Return the lie that changes the bodies of one kind of message to or from a device."""
    return changing(kind, lambda name, body: change(body) if name == device else body)


def in_turn(*lies: Lie) -> Lie:
    """Return the lie that tells each of some lies about a message."""

    def lie(message: Passing) -> Iterable[Passing]:
        messages = [message]
        for one in lies:
            messages = [changed for each in messages for changed in one(each)]
        return messages

    return lie


def in_half(body: WorkRequest) -> WorkRequest:
    assert body.secure
    return replace(body, secure=replace(body.secure, threshold=ThresholdRule.HALF, strict=False))


def unmasked(body: WorkRequest) -> WorkRequest:
    return replace(body, secure=None, encoding="fp32+zstd")


def without_box(body: Inbox) -> Inbox:
    return replace(body, boxes=(b"", b"", *body.boxes[2:]))


def reversed_codes(body: Any) -> Any:
    return replace(body, codes=tuple(one[::-1] for one in body.codes))


def sum_of(*places: int) -> Callable[[Unmask], Unmask]:
    """Return the change to the sum of some members, with the codes of these."""

    def change(body: Unmask) -> Unmask:
        codes = tuple(code if place in places else b"" for place, code in enumerate(body.codes))
        return replace(body, reported=bitmap_of(frozenset(places), len(ALL)), codes=codes)

    return change


def nothing(_body: Any) -> None:
    """Hold the message back."""


@dataclass
class OtherKeys:
    """The victim's keys are those of another device, as this sent them."""

    known: dict[str, Any] = field(default_factory=dict)

    def __call__(self, message: Passing) -> Iterable[Passing]:
        if not isinstance(message.body, Accept):
            return [message]
        self.known[message.device] = message
        if message.device == VICTIM:
            return []
        copy = message.of_device(VICTIM)
        return [message, copy] if message.device == OTHER else [message]


class InventedMember:
    """While a run goes on, a device that nobody has is there, and says all that another one says."""

    def __init__(self, between: Between) -> None:
        seen = [one for one in between.liar.passed if one.device == OTHER and isinstance(one.body, DeviceState)]
        self._present = seen[-1].of_device(INVENTED)

    def __call__(self, message: Passing) -> Iterable[Passing]:
        match message.body:
            case CoordinatorState(online=True):
                return [message, self._present]
            case CoordinatorState():
                return [message, self._present.with_bytes(b"")]
            case Accept() | Shares() | Offer() if message.device == OTHER:
                return [message.of_device(INVENTED), message]
        return [] if message.device == INVENTED else [message]


class OtherUpdate:
    """The victim's update is replaced by other bytes, and each side hears of the bytes that it knows.

    Args:
        change: Returns the other bytes.
    """

    def __init__(self, change: Callable[[bytes], bytes]) -> None:
        self._change = change
        self._offer: Passing | None = None
        self._sent: Manifest | None = None
        self._other = b""

    def __call__(self, message: Passing) -> Iterable[Passing]:
        if message.device != VICTIM:
            return [message]
        match message.body:
            case Offer():
                self._offer, self._sent = message, message.body.manifest
                down = topics.down(FLEET, VICTIM)
                return [message.at(FLEET, down).with_body(Grant(message.body.manifest.digest, _WINDOW, bytes(1)))]
            case Grant() if self._sent is not None:
                chunk = cut(self._other, self._manifest, 0)
                topic = topics.update_chunk(FLEET, VICTIM, self._manifest.digest, 0)
                return [message.at(FLEET, topic).with_bytes(encode_chunk(chunk))]
            case Committed() | Refused() | Ack() if self._sent is not None:
                return [message.with_body(replace(message.body, digest=self._sent.digest))]
            case None if message.where.kind == "update_chunk" and self._offer is not None:
                self._other = self._change(decode_chunk(message.payload).data)
                assert isinstance(self._offer.body, Offer)
                return [self._offer.with_body(replace(self._offer.body, manifest=self._manifest))]
        return [message]

    @property
    def _manifest(self) -> Manifest:
        assert self._sent is not None
        return replace(self._sent, digest=hashlib.sha256(self._other).hexdigest())


def inverted(blob: bytes) -> bytes:
    """Return a masked update with other values."""
    return blob[:HEADER_BYTES] + bytes(255 - one for one in blob[HEADER_BYTES:])


class EarlierUpdate:
    """Replaces an update by that of the same device in an earlier round."""

    def __init__(self) -> None:
        self._first = b""

    def __call__(self, blob: bytes) -> bytes:
        self._first = self._first or blob
        return self._first


class OtherModel:
    """The victim gets a model of zeros, and its request the manifest and, if `named`, the digest of these values."""

    def __init__(self, between: Between, *, named: bool) -> None:
        self._schema = between.liar.prepared.travelling
        zeros = {spec.name: np.zeros(spec.shape, spec.dtype) for spec in self._schema.specs}
        self._packed = pack(zeros, self._schema, {}, "fp32+zstd")
        self._content = values_digest(zeros, self._schema) if named else ""

    def __call__(self, message: Passing) -> Iterable[Passing]:
        if message.device != VICTIM or not isinstance(message.body, WorkRequest):
            return [message]
        manifest = self._packed.manifest(2**16, self._schema)
        topic = topics.model_chunk(FLEET, manifest.digest, 0)
        chunk = message.at(FLEET, topic).with_bytes(encode_chunk(cut(self._packed.blob, manifest, 0)))
        body = replace(message.body, model=manifest, deltas=(), content=self._content or message.body.content)
        return [chunk, message.with_body(body)]


@dataclass(frozen=True)
class Row:
    """A lie and its effect.

    Attributes:
        lie: Returns the lie.
        counted: Devices whose sum the coordinator counts; none: the round fails.
        shown: Reason in the record for each device that is left out, in any of its fields.
        rounds: Rounds of the run.
        opened: Devices of the sum that opens, if they are not those that count.
    """

    lie: Callable[[Between], Lie]
    counted: Names
    shown: str = ""
    rounds: int = 1
    opened: Names | None = None


def told(lie: Lie) -> Callable[[Between], Lie]:
    return lambda _between: lie


def all_told(*lies: Lie) -> Callable[[Between], Lie]:
    return told(in_turn(*lies))


QUICK = ("another inbox for the victim",)
"""Rows that each check plays, beside the honest run."""
ROWS = {
    "a threshold of a half": Row(all_told(*(of(one, WorkRequest, in_half) for one in ALL)), NOBODY, "secure_terms"),
    "an unmasked request": Row(told(of(VICTIM, WorkRequest, unmasked)), WITHOUT, "insecure_request"),
    "another model by its name": Row(lambda between: OtherModel(between, named=True), WITHOUT, "no_keys"),
    "another model in the name of the true one": Row(lambda between: OtherModel(between, named=False), WITHOUT),
    "keys of another device": Row(lambda _: OtherKeys(), WITHOUT, "no_keys"),
    "an invented member": Row(InventedMember, EVERYBODY, "no_keys", rounds=2),
    "another roster for the victim": Row(
        told(of(VICTIM, Roster, lambda body: replace(body, members=body.members[:-1]))), WITHOUT, "no_shares"
    ),
    "shares held back": Row(told(of(VICTIM, Shares, nothing)), WITHOUT, "no_shares"),
    "another inbox for the victim": Row(told(of(VICTIM, Inbox, without_box)), WITHOUT, "damaged"),
    "false codes of an update": Row(told(of(VICTIM, Offer, reversed_codes)), WITHOUT, "damaged"),
    "other values of an update": Row(lambda _: OtherUpdate(inverted), NOBODY, opened=EVERYBODY),
    "the update of an earlier round": Row(lambda _: OtherUpdate(EarlierUpdate()), WITHOUT, "not_invited", rounds=2),
    "another sum for the victim": Row(told(of(VICTIM, Unmask, sum_of(*range(1, 8)))), EVERYBODY),
    "two sums, each for a half": Row(
        all_told(*(of(one, Unmask, sum_of(*range(1, 9))) for one in ALL[:4])), NOBODY, "group_lost"
    ),
    "agreements held back": Row(all_told(*(of(one, Agreement, nothing) for one in ALL[:3])), NOBODY, "group_lost"),
    "false agreements": Row(all_told(*(of(one, Agreed, reversed_codes) for one in ALL[:3])), NOBODY, "group_lost"),
    "false shares of a reveal": Row(
        told(of(VICTIM, Reveal, lambda body: replace(body, shares=tuple(one[::-1] for one in body.shares)))), EVERYBODY
    ),
}


def play(between: Between, row: Row) -> None:
    done, rounds = between.run(row.lie(between), rounds=row.rounds, **SHORT)
    record = done.document["rounds"][-1]
    assert record["reported"] == len(row.counted), done.err
    assert record["outcome"] == ("aggregated" if row.counted else "failed")
    reasons = {word for part in ("failures", "refused", "decline_reasons") for word in record[part]}
    assert row.shown in reasons or not row.shown, record
    opened = [names for played in rounds[-1:] for names in sums_of(played)]
    right = row.counted if row.opened is None else row.opened
    assert opened == ([right] if right else [])
    assert_hidden(*rounds)


@pytest.mark.parametrize("name", [one if one in QUICK else pytest.param(one, marks=pytest.mark.slow) for one in ROWS])
def test_broker_with_a_lie_opens_no_sum_but_that_of_the_honest_devices_that_are_left(between, name):
    play(between, ROWS[name])


def test_honest_broker_opens_the_sum_of_all_devices(between):
    """So the computation of the adversary is right."""
    play(between, Row(told(honest), EVERYBODY))


@pytest.mark.slow
def test_messages_of_a_run_that_are_sent_again_get_only_the_answers_that_they_got(between):
    """The device has erased its secrets: it repeats its agreement and its reveal, and masks no second update."""
    liar = between.liar
    before = len(liar.passed)
    play(between, Row(told(honest), EVERYBODY))
    # On a busy machine a group may open its sum before each of its devices was asked to reveal.
    device = next(one.device for one in liar.passed[before:] if isinstance(one.body, Reveal))
    run = [one for one in liar.passed[before:] if one.device == device]
    known, since = {one.body for one in run if one.where.kind == "up"}, len(liar.passed)
    for one in run:
        if one.where.kind == "down":
            liar.send(one)

    def answers() -> list[Any]:
        return [one.body for one in liar.passed[since:] if (one.device, one.where.kind) == (device, "up")]

    wait_for(lambda: True, lambda: any(isinstance(one, Reveal) for one in answers()), lambda: f"{answers()}", 60.0)
    assert set(answers()) <= known
