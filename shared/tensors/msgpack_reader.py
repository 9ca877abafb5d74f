"""msgpack from anybody, value by value: nothing is built before it is known to be whole and short."""

from __future__ import annotations

from typing import Any

import msgpack

from shared.errors import WireError

MAX_DEPTH = 16


class Reader:
    """Takes one msgpack value after the other, and builds only what is whole and short.

    A few bytes of msgpack can state hundreds of nested lists, each with room for as many entries as the blob has bytes,
    and every byte can be a list of its own. `skip` builds nothing, and so finds the end of a value for free.
    """

    def __init__(self, raw: bytes, limit: int) -> None:
        """`limit`: most bytes of a value of which nothing else is said."""
        self._limit = limit
        self._raw = memoryview(raw)
        self._unpacker = msgpack.Unpacker(max_buffer_size=max(1, len(raw)))
        self._unpacker.feed(raw)

    def map_size(self) -> int:
        """Enter a map, and return how many pairs it states."""
        return int(self._unpacker.read_map_header())

    def array_size(self) -> int:
        """Enter a list, and return how many values it states."""
        return int(self._unpacker.read_array_header())

    def skip(self) -> memoryview:
        """Bytes of the next value, whatever it is."""
        start = self._unpacker.tell()
        self._unpacker.skip()
        return self._raw[start : self._unpacker.tell()]

    def value(self, limit: int | None = None) -> Any:
        """Return the next value, of at most `limit` bytes."""
        return build(self.skip(), limit or self._limit)

    def binary(self) -> memoryview:
        """Bytes inside the next value, which must be binary; nothing is copied."""
        encoded = self.skip()
        header_bytes = {0xC4: 2, 0xC5: 3, 0xC6: 5}.get(encoded[0])
        if header_bytes is None:
            raise WireError("the values of a tensor are not binary")
        return encoded[header_bytes:]

    def expect_end(self) -> None:
        """Raise WireError where anything is left."""
        extra = len(self._raw) - self._unpacker.tell()
        if extra:
            raise WireError(f"{extra} bytes follow the last tensor")


def build(encoded: bytes | memoryview, limit: int) -> Any:
    """Value of a whole encoding: no list in it can have more entries than there are bytes."""
    if len(encoded) > limit:
        raise WireError(f"a value takes {len(encoded)} bytes where at most {limit} are allowed")
    return msgpack.unpackb(encoded, strict_map_key=True, ext_hook=_no_extension)


def _no_extension(code: int, data: bytes) -> None:
    raise ValueError(f"extension type {code} of {len(data)} bytes is not allowed")


def plain(value: Any, depth: int = 0) -> bool:
    """Whether `value` is nothing but what msgpack has by itself, with str keys, at most `MAX_DEPTH` deep."""
    match value:
        case None | bool() | int() | float() | str() | bytes():
            return True
        case dict() if depth < MAX_DEPTH:
            return all(isinstance(key, str) and plain(item, depth + 1) for key, item in value.items())
        case list() | tuple() if depth < MAX_DEPTH:
            return all(plain(item, depth + 1) for item in value)
    return False
