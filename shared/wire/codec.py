"""Codec: messages to msgpack bytes and back. `decode` raises WireError, and nothing else, for any bytes.

msgpack bounds each string, byte string and container before it is built. msgspec then checks every field against the types
and limits in shared.wire.messages. A message of an unknown type raises UnknownMessage, a WireError of its own: the receiver
counts and ignores such messages of a newer peer.
"""

from __future__ import annotations

import dataclasses
from typing import Any, TypeVar, get_args

import msgpack
import msgspec

from fedpatch.shared.errors import WireError
from fedpatch.shared.typed_values import learn_types
from fedpatch.shared.wire.field_types import Count, Word
from fedpatch.shared.wire.messages import MAX_CHUNKS, PROTOCOL_VERSION, Body, Cancel, Envelope, UpdateReport

T = TypeVar("T")

MAX_MESSAGE_BYTES = 64 * 1024

_LIMITS: dict[str, Any] = {
    "raw": False,
    "strict_map_key": True,
    "max_str_len": 4 * 500,  # bytes: a Text has at most 500 characters, each of at most four bytes in UTF-8
    "max_bin_len": MAX_CHUNKS // 8,
    "max_array_len": 64,
    "max_map_len": 64,
    "max_ext_len": 0,
}


def _wire_name(body_type: type) -> str:
    """Return the message type on the wire: `WorkRequest` -> `work_request`."""
    name = body_type.__name__
    return "".join(f"_{c.lower()}" if c.isupper() and i else c.lower() for i, c in enumerate(name))


BODY_TYPES: dict[str, type] = {_wire_name(t): t for t in get_args(Body)}
_TYPE_NAMES: dict[type, str] = {t: name for name, t in BODY_TYPES.items()}


class UnknownMessage(WireError):
    """A well-formed envelope with a message type, a protocol version or a closed term that this program does not know.

    Attributes:
        request: The envelope of a work request with such a term, with an empty body: its receiver declines it. None for other
            messages.
    """

    def __init__(self, text: str, request: Envelope | None = None) -> None:
        super().__init__(text)
        self.request = request


class _UnknownWord(WireError):
    """A value is not a member of its enumeration."""


@dataclasses.dataclass(frozen=True)
class _Frame:
    """The envelope in wire form: short keys, and a body that is not decoded yet."""

    v: int
    t: str
    i: Count
    k: Word
    r: Word
    e: Count
    n: Count
    b: dict[str, Any]


learn_types(_Frame, UpdateReport, *BODY_TYPES.values())


def encode(envelope: Envelope) -> bytes:
    """Return `envelope` as a msgpack map of version, type, id, task, run, epoch, round and body, in this order.

    Example:
        >>> from fedpatch.shared.wire.messages import Cancel
        >>> envelope = Envelope(Cancel("deadline"), run="run-1", round=7)
        >>> decode(encode(envelope)) == envelope
        True
    """
    return to_bytes(
        _Frame(
            v=envelope.version,
            t=_TYPE_NAMES[type(envelope.body)],
            i=envelope.id,
            k=envelope.task,
            r=envelope.run,
            e=envelope.epoch,
            n=envelope.round,
            b=to_plain(envelope.body),
        )
    )


def decode(payload: bytes) -> Envelope:
    """Return the envelope in `payload`, with every field checked.

    Raises:
        UnknownMessage: The type, the version or a closed term is unknown here: ignore the message, or decline a request.
        WireError: The bytes are damaged, foreign or beyond a limit.
    """
    if len(payload) > MAX_MESSAGE_BYTES:
        raise WireError(f"message of {len(payload)} bytes; the limit is {MAX_MESSAGE_BYTES}")
    frame = from_bytes(payload, _Frame)
    if frame.v != PROTOCOL_VERSION:
        raise UnknownMessage(f"message of protocol version {frame.v}; this program speaks {PROTOCOL_VERSION}")
    if frame.t not in BODY_TYPES:
        raise UnknownMessage(f"unknown message type {frame.t[:64]!r}")
    try:
        body: Body = from_plain(frame.b, BODY_TYPES[frame.t])
    except _UnknownWord as error:
        # Reasons, conditions, phases and link kinds have a general word. A term of a masked round has none: another rule would
        # protect less than was asked for.
        empty = Envelope(Cancel(""), id=frame.i, task=frame.k, run=frame.r, epoch=frame.e, round=frame.n)
        raise UnknownMessage(f"{frame.t}: {error}", empty if frame.t == "work_request" else None) from None
    return Envelope(body=body, id=frame.i, task=frame.k, run=frame.r, epoch=frame.e, round=frame.n)


def to_bytes(value: Any) -> bytes:
    """Return a dataclass as msgpack. A lone surrogate (from a file name that is not UTF-8) becomes a question mark."""
    return bytes(msgpack.packb(to_plain(value), unicode_errors="replace"))


def from_bytes(data: bytes, kind: type[T]) -> T:
    """Read the bytes that `to_bytes` wrote, and check limits and types. Raises WireError."""
    try:
        plain = msgpack.unpackb(data, **_LIMITS)
    except (ValueError, TypeError, RecursionError, msgpack.UnpackException, OverflowError) as error:
        raise WireError(f"not a msgpack message: {error or type(error).__name__}") from None
    return from_plain(plain, kind)


def to_plain(value: Any) -> Any:
    """Return a dataclass as maps, lists and scalars."""
    return msgspec.to_builtins(value, builtin_types=(bytes,))


def from_plain(plain: Any, kind: type[T]) -> T:
    """Build the dataclass `kind` from maps, lists and scalars. Raises WireError, which names the field."""
    try:
        return msgspec.convert(plain, kind, builtin_types=(bytes,))
    except (msgspec.ValidationError, RecursionError) as error:
        error_class = _UnknownWord if "Invalid enum value" in str(error) else WireError
        raise error_class(f"{kind.__name__.strip('_')}: {error}") from None
