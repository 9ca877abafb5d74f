"""Files with a checksum: a line that names the format, the SHA-256 of the content, and the content."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgpack

from fedpatch.shared.errors import StateError

_DIGEST_BYTES = hashlib.sha256().digest_size


def seal(line: bytes, content: bytes) -> bytes:
    """Return the bytes of a file with this format `line`, which ends with a newline, and `content`."""
    return file_head(line, content) + content


def file_head(line: bytes, content: bytes, digest: bytes = b"") -> bytes:
    """Return the bytes before the content, for a caller that writes a large content without a copy.

    Args:
        line: The format line.
        content: The content.
        digest: Its SHA-256, if it is known.
    """
    return line + (digest or hashlib.sha256(content).digest())


def content_start(line: bytes) -> int:
    """Return the offset of the content, for a caller that reads only a part of it and does not check the SHA-256."""
    return len(line) + _DIGEST_BYTES


def unseal(path: Path | str, line: bytes, data: bytes, kind: str) -> memoryview:
    """Check a file's bytes and return its content.

    Args:
        path: The file or its URL, for messages.
        line: The format line that it must begin with.
        data: All bytes of the file.
        kind: Noun for the file with its article, for messages: `a patch`.

    Returns:
        The content, without a copy.

    Raises:
        StateError: The file is damaged or has another format line.
    """
    start = content_start(line)
    if not data.startswith(line):
        if data.startswith(line.rstrip(b"\n0123456789")):
            raise StateError(f"{path}: is {kind} of another version of fedpatch; use that version, or remove the file")
        raise StateError(f"{path}: is not {kind}, or is damaged")
    content = memoryview(data)[start:]
    if hashlib.sha256(content).digest() != data[len(line) : start]:
        raise StateError(f"{path}: is damaged (its SHA-256 does not fit)")
    return content


def read_header(path: Path, content: memoryview | bytes, fields: Mapping[str, type]) -> tuple[dict[str, Any], int]:
    """Read the msgpack map at the start of a file's content.

    Args:
        path: The file, for messages.
        content: Content of the file.
        fields: Names and types of the map's values.

    Returns:
        The map, and the number of bytes that it takes.

    Raises:
        StateError: The content does not begin with a map of exactly these fields.
    """
    unpacker = msgpack.Unpacker(max_buffer_size=max(1, len(content)))  # 0 would be no limit
    unpacker.feed(content)
    try:
        header = unpacker.unpack()
    except (ValueError, msgpack.exceptions.UnpackException) as error:
        raise StateError(f"{path}: has no readable header ({error})") from error
    if not isinstance(header, dict) or {name: type(value) for name, value in header.items()} != fields:
        raise StateError(f"{path}: has no readable header")
    return header, unpacker.tell()
