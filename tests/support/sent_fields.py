"""Fields of a message on the wire that are not in the list of what leaves a device."""

from __future__ import annotations

from typing import Any

import msgpack

from fedpatch.shared.wire.codec import decode, to_plain
from fedpatch.shared.wire.what_leaves import unlisted


def unlisted_in(payload: bytes) -> set[str]:
    """Return the fields of a message that the list does not have, or that this version does not know."""
    body = decode(payload).body
    return unlisted(body) | _unknown(msgpack.unpackb(payload)["b"], to_plain(body), type(body).__name__)


def _unknown(sent: Any, known: Any, place: str) -> set[str]:
    if isinstance(sent, dict) and isinstance(known, dict):
        extra = {f"{place}.{key}" for key in sent.keys() - known.keys()}
        return extra.union(*(_unknown(sent[key], known[key], f"{place}.{key}") for key in sent.keys() & known.keys()))
    if isinstance(sent, list) and isinstance(known, list):
        return set().union(*(_unknown(one, other, place) for one, other in zip(sent, known, strict=False)))
    return set()
