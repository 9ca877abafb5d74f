"""Attacks by devices that take part but never finish."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace

from fedpatch.shared.wire import topics
from fedpatch.shared.wire.chunks import Chunk, cut, describe, encode_chunk
from fedpatch.shared.wire.messages import Accept, Committed, Failed, Grant, Manifest, Offer
from fedpatch.shared.wire.reason_codes import FailReason
from tests.attacks.arena import HONEST, Arena
from tests.attacks.attack import Proof, part
from tests.system.rogue import NUM_EXAMPLES, Rogue, Upload


def _joined(rogue: Rogue, *, chunk_bytes: int = 64) -> tuple[Upload, Callable[[object], None]]:
    """Accept a work request; return a valid update in many chunks, and a function that sends messages of the round."""
    asked, request = rogue._wait_request(0)
    rogue._reply(asked, Accept(NUM_EXAMPLES))
    update = rogue._update(request)
    whole = update.upload()
    manifest = describe(
        whole.blob,
        chunk_bytes=chunk_bytes,
        encoding=request.encoding,
        raw_bytes=whole.manifest.raw_bytes,
        schema=request.model.schema,
    )
    return Upload(manifest, whole.blob), lambda body: rogue._reply(asked, body)


def _outlasts(arena: Arena, send: Callable[[object], None]) -> None:
    """Stall until every honest update of the round is committed; then send a failure, so that the test waits no longer."""
    for honest in HONEST:
        arena.spy.message(
            "down",
            lambda envelope, topic, of=honest: topic.device == of and isinstance(envelope.body, Committed),  # type: ignore[misc]
        )
    send(Failed(FailReason.TRAINING))


def _wait_grant(rogue: Rogue, manifest: Manifest) -> Grant:
    while True:
        body = rogue._wait_message(lambda envelope: True).body
        if isinstance(body, Grant) and body.digest == manifest.digest:
            return body


def _all_but_one(arena: Arena, device: str) -> Proof:
    """Never-ending upload: the last chunk is never sent, the first one is sent again and again."""
    with arena.rogue(device) as (rogue, voice):
        upload, send = _joined(rogue)
        send(Offer(upload.manifest))
        _wait_grant(rogue, upload.manifest)
        last = upload.manifest.chunk_count - 1
        for index in (*range(last), *[0] * 50):
            chunk = cut(upload.blob, upload.manifest, index)
            topic = topics.update_chunk(arena.fleet, device, chunk.digest, chunk.index)
            voice.link.publish(topic, encode_chunk(chunk))
        _outlasts(arena, send)
    return lambda outcome: outcome.devices[device]["reported"] == 0


def _silent(arena: Arena, device: str) -> Proof:
    with arena.rogue(device) as (rogue, _):
        _, send = _joined(rogue)
        _outlasts(arena, send)
    return lambda outcome: (outcome.devices[device]["accepted"], outcome.devices[device]["reported"]) == (1, 0)


def _hoards(arena: Arena, device: str) -> Proof:
    with arena.rogue(device) as (rogue, _):
        upload, send = _joined(rogue)
        send(Offer(upload.manifest))
        _wait_grant(rogue, upload.manifest)
        for _ in range(20):
            send(Offer(upload.manifest))
        _outlasts(arena, send)
    return lambda outcome: outcome.devices[device]["reported"] == 0


def _endless_offers(arena: Arena, device: str) -> Proof:
    with arena.rogue(device) as (rogue, _):
        upload, send = _joined(rogue)
        manifests = [
            replace(upload.manifest, digest=hashlib.sha256(f"{device} {number}".encode()).hexdigest())
            for number in range(300)
        ]
        for manifest in manifests:
            send(Offer(manifest))
        _wait_grant(rogue, manifests[-1])
        _outlasts(arena, send)
    return lambda outcome: outcome.devices[device]["reported"] == 0


def _wrong_chunks(arena: Arena, device: str) -> Proof:
    """Chunks that overlap, are misplaced, are damaged, or have another count, digest or length: none counts as received."""
    with arena.rogue(device) as (rogue, voice):
        upload, send = _joined(rogue)
        manifest = upload.manifest
        send(Offer(manifest))
        _wait_grant(rogue, manifest)
        good = cut(upload.blob, manifest, 0)
        wrong = [
            replace(good, data=good.data + b"x"),
            replace(good, data=good.data[:-1]),
            replace(good, count=good.count + 1),
            replace(good, digest="0" * 64),
            Chunk(manifest.digest, manifest.chunk_count - 1, manifest.chunk_count, good.data + b"!"),
        ]
        topic = topics.update_chunk(arena.fleet, device, manifest.digest, 0)
        for chunk in wrong:
            voice.link.publish(topic, encode_chunk(chunk))
        send(Offer(manifest))
        assert not any(_wait_grant(rogue, manifest).have), "a wrong chunk was taken"
        payload = encode_chunk(good)
        flipped = payload[:-1] + bytes([payload[-1] ^ 1])
        for payload in (flipped, encode_chunk(good)[:20], b"fp" + bytes(200)):
            voice.link.publish(topic, payload)
        send(Failed(FailReason.TRAINING))
        voice.settle()
    return lambda outcome: outcome.devices[device]["ignored"] >= 3 and outcome.devices[device]["reported"] == 0


STALLING_ATTACKS = (
    part("accepts, and does nothing", "keeps the round waiting", "grace after the quorum", _silent),
    part("upload without an end", "all chunks but one, repeatedly", "grace after the quorum", _all_but_one),
    part(
        "hoarded grant",
        "takes a slot and sends nothing",
        "slots are measured in chunks; idle ones are given away",
        _hoards,
    ),
    part(
        "offers without an end",
        "300 updates that are never sent",
        "one slot per device, for its last offer",
        _endless_offers,
    ),
    part(
        "wrong chunks", "overlap, place, count, length, digest, CRC", "each checked against the manifest", _wrong_chunks
    ),
)
