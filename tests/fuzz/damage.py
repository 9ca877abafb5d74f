"""Hostile bytes: damaged valid bytes, some still well formed, and bombs."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import msgpack
from hypothesis import strategies as st

from tests.fuzz.decoders import Decoder, Form

# Large sizes without content: msgpack's containers and strings of 2^32 - 1, extensions, extremes of JSON and TOML.
_TALL = (b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff", b"\xdb\xff\xff\xff\xff")
_ODD = (b"\xc1", b"\xc7\xff\x01", b"\xd6\xff\0\0\0\0", b"\xcb\x7f\xf8" + bytes(6), b"\xff" * 8, b"\x7f" + b"\xff" * 7)
_WORDS = (b"NaN", b"-Infinity", b"1e999", b"9" * 4500, b"\\ud800", b"\xed\xa0\x80", b"\0", b"..", b"[::1", b"%00", b"=")
_FRAGMENTS = (*_TALL, *_ODD, *_WORDS)
_NESTS = (b"\x91", b"\x81\xa1a", b"\xdc\xff\xff", b"[", b'{"a":', b"a.", b"{a=", b"(", b'"', b"'''")
# Deeper than the recursion limit of any interpreter, also if the tests raise the limit.
_DEEP = 20_000
_SWEPT_PLACES = 40

_SCALARS = (
    st.none()
    | st.booleans()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from([0, -1, 1, 2**31, 2**53, 2**63, -(2**63)])
)
PLAIN = st.recursive(
    _SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=4,
)


def hostile(decoder: Decoder) -> st.SearchStrategy[bytes]:
    """Return bytes for `decoder`: random bytes, damaged valid bytes, bombs, and its own form with foreign values."""
    kinds = [st.binary(max_size=300), _damaged(decoder.seeds), _bombs(decoder.seeds)]
    if decoder.form in ("msgpack", "json"):
        kinds.append(_misshapen(decoder.seeds, decoder.form))
    return st.one_of(kinds)


def sweep(decoder: Decoder) -> Iterator[bytes]:
    """Yield the same classic attacks each time: fragments and nests at many places of the valid bytes, and cuts."""
    yield from (*decoder.found, b"", *_FRAGMENTS, *(nest * _DEEP for nest in _NESTS))
    for seed in decoder.seeds:
        step = max(1, len(seed) // _SWEPT_PLACES)
        for at in range(0, len(seed) + 1, step):
            yield seed[:at]
            fragment = _FRAGMENTS[at // step % len(_FRAGMENTS)]
            yield seed[:at] + fragment + seed[at + len(fragment) :]
            yield seed[:at] + fragment + seed[at:]
        yield from _replaced(decoder, seed)


def _replaced(decoder: Decoder, seed: bytes) -> Iterator[bytes]:
    """Yield `seed` with a nest or an extreme in place of each value of its form."""
    values = {"json": rb'"[^"]*"|[-0-9.]+|null|\[.*?\]', "text": rb"(?<== )[^\n#]+|[^=:/,]+"}.get(decoder.form)
    if values is None:
        return
    places = [found.span() for found in re.finditer(values, seed)][:_SWEPT_PLACES]
    for index, (start, end) in enumerate(places):
        for extreme in ((b"[" * _DEEP, b"9" * 4500, b"null")[index % 3], _FRAGMENTS[index % len(_FRAGMENTS)]):
            yield seed[:start] + extreme + seed[end:]


@st.composite
def _damaged(draw, seeds: tuple[bytes, ...]) -> bytes:
    data = bytearray(draw(st.sampled_from(seeds)))
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(data)))
        length = draw(st.integers(0, 12))
        match draw(st.sampled_from(("flip", "set", "cut", "drop", "repeat", "insert", "overwrite", "splice"))):
            case "flip" if at < len(data):
                data[at] ^= 1 << draw(st.integers(0, 7))
            case "set" if at < len(data):
                data[at] = draw(st.sampled_from((0, 1, 0x7F, 0x80, 0xFF)))
            case "cut":
                del data[at:]
            case "drop":
                del data[at : at + length]
            case "repeat":
                data[at:at] = data[at : at + length] * draw(st.integers(1, 20))
            case "insert":
                data[at:at] = draw(st.sampled_from(_FRAGMENTS) | st.binary(max_size=8))
            case "overwrite":
                new = draw(st.sampled_from(_FRAGMENTS) | st.binary(max_size=8))
                data[at : at + len(new)] = new
            case "splice":
                other = draw(st.sampled_from(seeds))
                data[at:] = other[draw(st.integers(0, len(other))) :]
    return bytes(data)


@st.composite
def _bombs(draw, seeds: tuple[bytes, ...]) -> bytes:
    """A deeply nested value, alone or at a place in valid bytes."""
    bomb: bytes = draw(st.sampled_from(_NESTS)) * draw(st.sampled_from((2, 20, 200, 1100, _DEEP)))
    seed: bytes = draw(st.sampled_from((b"", *seeds)))
    at = draw(st.integers(0, len(seed)))
    return seed[:at] + bomb + seed[at:]


@st.composite
def _misshapen(draw, seeds: tuple[bytes, ...], form: Form) -> bytes:
    """Well formed bytes with a foreign value in one or two places, or without a value."""
    read, write = _FORMS[form]
    seed = draw(st.sampled_from([seed for seed in seeds if _reads(read, seed)]))
    parts = [read(part) for part in _split(seed)] if form == "msgpack" else [read(seed)]
    for _ in range(draw(st.integers(1, 2))):
        index = draw(st.integers(0, len(parts) - 1))
        parts[index] = _changed(draw, parts[index])
    return b"".join(map(write, parts))


def _changed(draw: Callable[[st.SearchStrategy], Any], value: Any) -> Any:
    """Return `value` with one part changed, removed or renamed."""
    if isinstance(value, dict) and value and draw(st.integers(0, 7)):
        key = draw(st.sampled_from(sorted(value)))
        rest = {name: item for name, item in value.items() if name != key}
        match draw(st.sampled_from(("change", "change", "drop", "rename"))):
            case "change":
                return {**value, key: _changed(draw, value[key])}
            case "rename":
                return {**rest, draw(st.text(max_size=4)): value[key]}
        return rest
    if isinstance(value, list) and value and draw(st.integers(0, 5)):
        at = draw(st.integers(0, len(value) - 1))
        new = [_changed(draw, value[at])] * draw(st.sampled_from((1, 1, 1, 0, 2)))
        return [*value[:at], *new, *value[at + 1 :]]
    return draw(PLAIN)


def _split(data: bytes) -> list[bytes]:
    """Split a stream of msgpack values."""
    unpacker = msgpack.Unpacker()
    unpacker.feed(data)
    ends = [0]
    while ends[-1] < len(data):
        unpacker.skip()
        ends.append(unpacker.tell())
    return [data[start:end] for start, end in pairwise(ends)]


def _reads(read: Callable[[bytes], Any], data: bytes) -> bool:
    try:
        return all(read(part) is not ... for part in (_split(data) if read is msgpack.unpackb else [data]))
    except ValueError:
        return False


def _pack(value: Any) -> bytes:
    return bytes(msgpack.packb(value, default=str, unicode_errors="surrogatepass"))


def _to_json(value: Any) -> bytes:
    return json.dumps(value if not isinstance(value, float) or math.isfinite(value) else None).encode()


_FORMS: dict[Form, tuple[Callable[[bytes], Any], Callable[[Any], bytes]]] = {
    "msgpack": (msgpack.unpackb, _pack),
    "json": (json.loads, _to_json),
}
