"""The output of real processes: MQTT messages in the bytes that they sent, and lines of their logs, as marks."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from fedpatch.shared.errors import FedpatchError
from fedpatch.shared.wire.codec import decode
from fedpatch.shared.wire.messages import Committed, Envelope, Offer, WorkRequest
from tests.power_cut.disk import Output, Record

_PUBLISH = 3
_LINES = {
    "settled": re.compile(rb"job over: committed"),
    "published": re.compile(rb"personal model: that of round (\d+) is in use now"),
}


def with_marks(record: Record) -> Record:
    """The same record, in which all output is turned into marks."""
    streams: dict[str, bytearray] = defaultdict(bytearray)
    steps = []
    offered = 0
    for step in record.steps:
        if not isinstance(step.what, Output):
            steps.append(step)
            continue
        if step.what.place.startswith("/"):
            marks = [_line_mark(step.what.data, offered)]
        else:
            streams[step.what.place] += step.what.data
            marks = [_mark(*message) for message in _messages(streams[step.what.place])]
        known = [mark for mark in marks if mark]
        offered = max([offered, *(mark["round"] for mark in known if mark["what"] == "offered")])
        if known:
            data = b"\n".join(json.dumps(mark).encode() for mark in known)
            steps.append(replace(step, what=Output(data, step.what.place)))
    return replace(record, steps=steps)


def _line_mark(line: bytes, offered: int) -> dict[str, Any]:
    for what, sign in _LINES.items():
        if found := sign.search(line):
            return {"what": what, "round": int(found[1]) if found.groups() else offered}
    return {}


def _mark(topic: str, payload: bytes) -> dict[str, Any]:
    if "chunk" in topic or not payload:
        return {}
    try:
        envelope: Envelope = decode(payload)
    except FedpatchError:
        return {}
    at = {"round": envelope.round, "epoch": envelope.epoch, "device": topic.split("/")[-2]}
    match envelope.body:
        case Committed():
            return {"what": "committed", **at}
        case WorkRequest():
            return {"what": "asked", **at}
        case Offer():
            return {"what": "offered", "digest": envelope.body.manifest.digest, **at}
    return {}


def _messages(stream: bytearray) -> Iterator[tuple[str, bytes]]:
    """Remove whole packets from the beginning; yield the MQTT 5 packets that publish."""
    while len(stream) > 1:
        length, begin = _number(stream, 1)
        if begin == 0 or len(stream) < begin + length:
            return
        kind, body = stream[0], bytes(stream[begin : begin + length])
        del stream[: begin + length]
        if kind >> 4 != _PUBLISH:
            continue
        end = 2 + int.from_bytes(body[:2], "big")
        properties, after = _number(body, end + (2 if kind & 0b110 else 0))
        yield body[2:end].decode(), body[after + properties :]


def _number(data: bytes | bytearray, at: int) -> tuple[int, int]:
    """A variable byte integer and its end; (0, 0) if it is not complete."""
    value = 0
    for index, byte in enumerate(data[at : at + 4]):
        value |= (byte & 0x7F) << (7 * index)
        if not byte & 0x80:
            return value, at + index + 1
    return 0, 0
