"""Files that say by themselves whether they are whole: a line that tells the format, the SHA-256 of what follows, and that."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgpack

from fedpatch.shared.errors import StateError

_DIGEST_BYTES = hashlib.sha256().digest_size


def seal(line: bytes, content: bytes) -> bytes:
    """The bytes of such a file; `line` ends with a newline."""
    return line + hashlib.sha256(content).digest() + content


def content_start(line: bytes) -> int:
    """Where the content begins: whoever reads no further than a part of it cannot know whether it is whole."""
    return len(line) + _DIGEST_BYTES


def unseal(path: Path, line: bytes, data: bytes, what: str) -> memoryview:
    """The content of what was read from `path`; StateError where that is damaged, or not `what` its line should say."""
    start = content_start(line)
    if not data.startswith(line):
        raise StateError(f"{path}: is not {what}, or one of another version of fedpatch")
    content = memoryview(data)[start:]
    if hashlib.sha256(content).digest() != data[len(line) : start]:
        raise StateError(f"{path}: is damaged (its SHA-256 does not fit)")
    return content


def read_header(path: Path, content: memoryview | bytes, fields: Mapping[str, type]) -> tuple[dict[str, Any], int]:
    """The msgpack map at the start of a content, and how many bytes it takes; StateError unless it is of just these fields."""
    unpacker = msgpack.Unpacker(max_buffer_size=len(content))
    unpacker.feed(content)
    try:
        header = unpacker.unpack()
    except (ValueError, msgpack.exceptions.UnpackException) as error:
        raise StateError(f"{path}: does not say what it holds ({error})") from error
    if not isinstance(header, dict) or {name: type(value) for name, value in header.items()} != fields:
        raise StateError(f"{path}: does not say what it holds")
    return header, unpacker.tell()
