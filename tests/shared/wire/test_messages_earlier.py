"""Devices and coordinators of the previous version: in a half-upgraded fleet both versions must understand each other.

tests/golden/earlier*.txt have messages of earlier versions, one of each type.
tests/system/test_versions.py runs rounds with the previous version.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgpack
import pytest

from fedpatch.shared.wire.codec import decode, encode
from tests.shared.wire.test_messages_golden import GOLDEN, envelope


def _read(path: Path) -> dict[str, bytes]:
    lines = path.read_text("ascii").splitlines()
    return {f"{path.stem}:{name}": bytes.fromhex(sent) for name, sent in (x.split() for x in lines if x[0] != "#")}


EARLIER = {name: sent for path in sorted(GOLDEN.glob("earlier*.txt")) for name, sent in _read(path).items()}


def _lacks(more: Any, less: Any, where: str = "") -> list[str]:
    """Return values of `less` that `more` lacks or changes: a map may have further keys, everything else is equal."""
    if isinstance(more, dict) and isinstance(less, dict):
        return [lack for key in less for lack in _lacks(more.get(key), less[key], f"{where}.{key}")]
    return [] if more == less else [f"{where}: {less!r} became {more!r}"]


def _is_unlike(more: Any, less: Any, where: str = "") -> list[str]:
    """Return where `more` lacks a value of `less` or has another type; None in one of them matches anything."""
    if isinstance(more, dict) and isinstance(less, dict):
        absent = [f"{where}.{key} is gone" for key in less if key not in more]
        return absent + [
            one for key in less if key in more for one in _is_unlike(more[key], less[key], f"{where}.{key}")
        ]
    if isinstance(more, list) and isinstance(less, list):
        return [one for pair in zip(more, less, strict=False) for one in _is_unlike(*pair, f"{where}[]")]
    return [] if None in (more, less) or type(more) is type(less) else [f"{where}: {less!r} became {more!r}"]


@pytest.mark.parametrize("name", sorted(EARLIER))
def test_message_of_the_previous_version_is_decoded(name):
    earlier = msgpack.unpackb(EARLIER[name])
    again = msgpack.unpackb(encode(decode(EARLIER[name])))
    assert _lacks(again, earlier) == []


@pytest.mark.parametrize("name", sorted(EARLIER))
def test_message_has_all_fields_that_the_previous_version_requires(name):
    """That version ignores unknown keys, but refuses absent keys and values of another type."""
    assert _is_unlike(msgpack.unpackb(encode(envelope(name.partition(":")[2]))), msgpack.unpackb(EARLIER[name])) == []
