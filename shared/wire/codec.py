"""Message <-> msgpack bytes. `decode` raises WireError and nothing else, whatever the bytes are.

msgpack bounds each string, container and byte string before it is built; msgspec then checks every field against the
types and limits of shared.wire.messages. Unknown message types are an error of their own, so that a newer peer's messages
can be counted and ignored.
"""

from __future__ import annotations

import dataclasses
from typing import Any, TypeVar, get_args

import msgpack
import msgspec

from fedpatch.shared.errors import WireError
from fedpatch.shared.wire.field_types import Count, Word
from fedpatch.shared.wire.messages import MAX_CHUNKS, PROTOCOL_VERSION, Body, Envelope

T = TypeVar("T")

MAX_MESSAGE_BYTES = 64 * 1024

_LIMITS: dict[str, Any] = {
    "raw": False,
    "strict_map_key": True,
    "max_str_len": 4 * 500,  # bytes: a Text of 500 characters, none of which takes more than four
    "max_bin_len": MAX_CHUNKS // 8,
    "max_array_len": 64,
    "max_map_len": 64,
    "max_ext_len": 0,
}


def _wire_name(body_type: type) -> str:
    """`WorkRequest` -> `work_request`."""
    name = body_type.__name__
    return "".join(f"_{c.lower()}" if c.isupper() and i else c.lower() for i, c in enumerate(name))


BODY_TYPES: dict[str, type] = {_wire_name(t): t for t in get_args(Body)}
_TYPE_NAMES: dict[type, str] = {t: name for name, t in BODY_TYPES.items()}


class UnknownMessage(WireError):
    """A well-formed envelope of a type or version this program does not have, or with a word that its sets do not know."""


class _UnknownWord(WireError):
    """A value that is none of a closed set."""


@dataclasses.dataclass(frozen=True)
class _Frame:
    """The envelope as it lies on the wire: short keys, the body still undecoded."""

    v: int
    t: str
    i: Count
    k: Word
    r: Word
    e: Count
    n: Count
    b: dict[str, Any]


def encode(envelope: Envelope) -> bytes:
    """Msgpack map of version, type, id, task, run, epoch, round and body, always in this order."""
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
    """The envelope in `payload`, every field checked. Raises WireError; UnknownMessage for other types and versions."""
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
        # A newer version may know more reasons, conditions, or kinds of links; it is no offence to be newer.
        raise UnknownMessage(f"{frame.t}: {error}") from None
    return Envelope(body=body, id=frame.i, task=frame.k, run=frame.r, epoch=frame.e, round=frame.n)


def to_bytes(value: Any) -> bytes:
    """Any of our dataclasses as msgpack. A lone surrogate (of a file name that is no UTF-8) becomes a question mark."""
    return bytes(msgpack.packb(to_plain(value), unicode_errors="replace"))


def from_bytes(data: bytes, kind: type[T]) -> T:
    """The inverse of `to_bytes`, limits and types checked. Raises WireError."""
    try:
        plain = msgpack.unpackb(data, **_LIMITS)
    except (ValueError, TypeError, RecursionError, msgpack.UnpackException, OverflowError) as error:
        raise WireError(f"not a msgpack message: {error or type(error).__name__}") from None
    return from_plain(plain, kind)


def to_plain(value: Any) -> Any:
    """A dataclass as maps, lists and scalars."""
    return msgspec.to_builtins(value, builtin_types=(bytes,))


def from_plain(plain: Any, kind: type[T]) -> T:
    """Maps, lists and scalars as the dataclass `kind`. Raises WireError naming the field."""
    try:
        return msgspec.convert(plain, kind, builtin_types=(bytes,))
    except (msgspec.ValidationError, RecursionError) as error:
        fault = _UnknownWord if "Invalid enum value" in str(error) else WireError
        raise fault(f"{kind.__name__.strip('_')}: {error}") from None
