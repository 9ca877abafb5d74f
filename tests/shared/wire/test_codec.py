"""The codec: a decoded message equals the encoded one, and foreign bytes raise WireError only."""

from __future__ import annotations

import dataclasses
import typing
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Any, get_type_hints

import msgpack
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fedpatch.shared.errors import WireError
from fedpatch.shared.wire.codec import (
    BODY_TYPES,
    MAX_MESSAGE_BYTES,
    UnknownMessage,
    decode,
    encode,
    from_bytes,
    to_bytes,
)
from fedpatch.shared.wire.masking_messages import ThresholdRule
from fedpatch.shared.wire.messages import (
    Ack,
    Cancel,
    Decline,
    DeviceState,
    Envelope,
    Manifest,
    TaskCapability,
    UpdateReport,
)
from fedpatch.shared.wire.reason_codes import (
    Condition,
    DeclineReason,
    FailCause,
    FailReason,
    JobPhase,
    LinkKind,
    RefuseReason,
)
from tests.shared.arbitrary_messages import envelopes, of_message

DIGEST = "ab" * 32
GOLDEN = Path(__file__).parents[2] / "golden"
SCALARS = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text() | st.binary()
PLAIN = st.recursive(
    SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.binary(), inner), max_leaves=8
)


def fields(**changes) -> dict:
    """Return the fields of a Cancel on the wire, with changes."""
    return {"v": 1, "t": "cancel", "i": 1, "k": "t", "r": "r", "e": 1, "n": 1, "b": {"reason": "late"}} | changes


@pytest.mark.parametrize("name", sorted(BODY_TYPES))
def test_decode_of_encoded_body_returns_the_body(name):
    @given(of_message(BODY_TYPES[name]))
    def law(body):
        assert decode(encode(Envelope(body))) == Envelope(body)

    law()


@given(envelopes())
def test_decode_of_encoded_envelope_returns_the_envelope(envelope):
    assert decode(encode(envelope)) == envelope


@given(of_message(UpdateReport) | of_message(Manifest))
def test_from_bytes_of_to_bytes_returns_the_value(value):
    assert from_bytes(to_bytes(value), type(value)) == value


def test_largest_messages_are_within_the_limits():
    """A message is accepted with all fields at their longest, and with text of four-byte characters."""
    word, text = "~" * 64, "\U0001f353" * 500
    state = DeviceState(True, word, word, (TaskCapability(word, DIGEST, 2**53),) * 64, (word,) * 64, job=None)
    for body in (Decline(DeclineReason.UNWILLING, text), Ack(DIGEST, b"\xff" * 8192), state):
        envelope = Envelope(body, id=2**53, task=word, run=word, epoch=2**53, round=2**53)
        assert decode(encode(envelope)) == envelope


def test_text_with_a_lone_surrogate_is_sent_with_a_question_mark():
    """Error details may contain a file name that is not UTF-8; such a message must still be sent."""
    sent = encode(Envelope(Decline(DeclineReason.UNWILLING, "no room for \udcff.bin")))
    assert decode(sent).body == Decline(DeclineReason.UNWILLING, "no room for ?.bin")


@given(st.binary(max_size=300))
@example(b"")
@example(b"\xc1")
@example(b"\x91" * 2000)
@example(b"\xdf\xff\xff\xff\xff")
@example(b"\xdd\xff\xff\xff\xff")
@example(b"\xc6\xff\xff\xff\xff")
@example(b"\xc7\x00\xff")
@example(b"\xd7\xff" + bytes(8))
def test_decode_of_any_bytes_raises_wire_error(payload):
    with pytest.raises(WireError):
        decode(payload)


@pytest.mark.medium
@given(PLAIN | st.dictionaries(st.sampled_from("vtikrenb") | st.text(), PLAIN))
def test_decode_of_foreign_msgpack_raises_wire_error(plain):
    with pytest.raises(WireError):
        decode(msgpack.packb(plain))


@given(st.sampled_from(sorted(BODY_TYPES)), st.sampled_from("vikrenb"), PLAIN)
def test_field_of_another_type_raises_wire_error(name, key, value):
    payload = msgpack.packb(fields(t=name) | {key: value})
    try:
        decoded = decode(payload)
    except WireError:
        return
    assert decode(encode(decoded)) == decoded


@given(envelopes(), st.data())
def test_damaged_message_raises_wire_error_or_decodes_to_a_valid_one(envelope, data):
    payload = bytearray(encode(envelope))
    place = data.draw(st.integers(0, len(payload) - 1))
    damage = data.draw(st.sampled_from(("cut", "change", "insert")))
    if damage == "cut":
        del payload[place:]
    else:
        payload[place : place + (damage == "change")] = bytes([data.draw(st.integers(0, 255))])
    try:
        decoded = decode(bytes(payload))
    except WireError:
        return
    assert damage != "cut"
    assert decode(encode(decoded)) == decoded


@pytest.mark.parametrize(
    "changes",
    [
        {"b": {}},
        {"b": {"reason": "x" * 65}},
        {"b": {"reason": 1}},
        {"b": {b"reason": "late"}},
        {"i": -1},
        {"i": 2**53 + 1},
        {"i": True},
        {"n": 1.0},
        {"r": None},
        {"r": "run-1\n"},
        {"k": "\x1b[2J"},
        {"b": {"reason": "sp\xe4t"}},
        {"t": "committed", "b": {"digest": DIGEST + "\n"}},
        {"t": "committed", "b": {"digest": DIGEST.upper()}},
        {"t": "ack", "b": {"digest": DIGEST, "have": bytes(8193)}},
        {"t": "retry_after", "b": {"digest": DIGEST, "delay_s": float("nan")}},
        {"t": "retry_after", "b": {"digest": DIGEST, "delay_s": float("inf")}},
        {"t": "retry_after", "b": {"digest": DIGEST, "delay_s": -1.0}},
        {"t": "accept", "b": {"num_examples": 0}},
        {"t": "grant", "b": {"digest": DIGEST, "window": 0, "have": b""}},
    ],
    ids=str,
)
def test_field_beyond_its_limit_raises_wire_error(changes):
    with pytest.raises(WireError) as caught:
        decode(msgpack.packb(fields(**changes)))
    assert not isinstance(caught.value, UnknownMessage)


@pytest.mark.parametrize("accuracy", [2e12, -2e12, float("nan"), float("inf")])
@pytest.mark.parametrize("field", ["user_accuracy_before", "user_accuracy_after"])
def test_user_accuracy_that_is_not_a_measure_raises_wire_error(field, accuracy):
    """A value that would make a mean useless is refused; the codec does not check that it fits the task's metric."""
    fine = UpdateReport(DIGEST, 10, 5, 0.25, 0.0, 1.0, 1.0, 2.0)
    assert from_bytes(to_bytes(fine), UpdateReport) == fine
    with pytest.raises(WireError, match=field):
        from_bytes(to_bytes(replace(fine, **{field: accuracy})), UpdateReport)


def test_wire_error_names_message_and_field():
    with pytest.raises(WireError, match=r"Decline.*reason"):
        decode(msgpack.packb(fields(t="decline", b={"reason": 7})))


def test_unknown_fields_are_ignored():
    newer = fields(b={"reason": "late", "mood": "good"}, x=1)
    assert decode(msgpack.packb(newer)).body == Cancel("late")


def enumerations() -> list[tuple[str, str, type]]:
    """Return each field of a message, or of a part of it, that has an enumeration: message, dotted field and enumeration."""
    found = []

    def look(message: str, kind: type, path: str) -> None:
        for name, hint in get_type_hints(kind).items():
            for one in (hint, *typing.get_args(hint)):
                if isinstance(one, type) and issubclass(one, StrEnum):
                    found.append((message, f"{path}{name}", one))
                elif dataclasses.is_dataclass(one) and isinstance(one, type):
                    look(message, one, f"{path}{name}.")

    for message, kind in BODY_TYPES.items():
        look(message, kind, "")
    return found


ENUMERATIONS = enumerations()


def with_word(message: str, field: str, word: object) -> bytes:
    """Return a message whose `field` has a word; the other fields are those of its golden bytes."""
    known = msgpack.unpackb(bytes.fromhex((GOLDEN / f"{message}.hex").read_text("ascii")))
    place, parts = known["b"], field.split(".")
    for part in parts[:-1]:
        place = place[part]
    place[parts[-1]] = word
    return bytes(msgpack.packb(known))


@pytest.mark.parametrize(("message", "field", "kind"), ENUMERATIONS, ids=str)
def test_word_of_a_later_version_is_read_as_a_general_one(message, field, kind):
    """A peer that is newer is neither blamed nor unheard: an upgrade of the fleet may begin with it."""
    payload = with_word(message, field, "word_of_the_future")
    if kind is ThresholdRule:
        with pytest.raises(UnknownMessage, match="Invalid enum value") as caught:
            decode(payload)
        assert caught.value.request is not None
        return
    value: Any = decode(payload).body
    for part in field.split("."):
        value = getattr(value, part)
    assert value in set(kind)


@pytest.mark.parametrize(("message", "field", "kind"), ENUMERATIONS, ids=str)
@pytest.mark.parametrize("word", ["", "x" * 65, "tab\t", 7], ids=str)
def test_value_that_is_no_word_is_an_error(message, field, kind, word):
    with pytest.raises(WireError):
        decode(with_word(message, field, word))


def test_all_enumerations_of_messages_are_known_here():
    assert {kind for _, _, kind in ENUMERATIONS} == {
        Condition,
        DeclineReason,
        FailCause,
        FailReason,
        RefuseReason,
        JobPhase,
        LinkKind,
        ThresholdRule,
    }


@pytest.mark.parametrize("changes", [{"t": "sing"}, {"v": 2}, {"v": 0}, {"t": "update_report"}], ids=str)
def test_unknown_type_or_version_raises_unknown_message(changes):
    with pytest.raises(UnknownMessage):
        decode(msgpack.packb(fields(**changes)))


def test_message_beyond_the_size_limit_raises_wire_error():
    with pytest.raises(WireError, match=str(MAX_MESSAGE_BYTES)):
        decode(bytes(MAX_MESSAGE_BYTES + 1))


def test_reason_is_decoded_to_its_enumeration_member():
    body = decode(msgpack.packb(fields(t="decline", b={"reason": "unwilling"}))).body
    assert isinstance(body, Decline)
    assert body.reason is DeclineReason.UNWILLING
