"""Every function that reads bytes or text from others, with the errors that it may raise and examples that it should read.

Readers of network data are here; readers of files are in tests.fuzz.file_decoders.
"""

from __future__ import annotations

import io
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgpack
import numpy as np
import zstandard

from fedpatch.coordinator.aggregation.received_update_checks import UpdateRequirements, decode_and_validate_update
from fedpatch.device_agent.job.job_effects import JobKey
from fedpatch.device_agent.job.training_messages import (
    Ready,
    Trained,
    WorkerSetup,
    read_answer,
    read_command,
    write_message,
)
from fedpatch.device_agent.policy.admission_mode import decide, parse_admission_mode
from fedpatch.shared.errors import SchemaMismatch, UpdateRefused, UsageError, WireError
from fedpatch.shared.masking.masked_blob import MaskedUpdate, read_masked_blob, write_masked_blob
from fedpatch.shared.masking.vector_layout import VectorLayout
from fedpatch.shared.mqtt.url import parse_broker_url
from fedpatch.shared.tasks.bundled.partition import parse_data_spec
from fedpatch.shared.tensors.arrays import MOMENTS, Schema, TensorSpec
from fedpatch.shared.tensors.packing import pack, unpack
from fedpatch.shared.tensors.patches import parse_policy
from fedpatch.shared.wire.chunks import Bitmap, Chunk, decode_chunk, encode_chunk
from fedpatch.shared.wire.codec import decode, from_bytes, to_bytes, to_plain
from fedpatch.shared.wire.messages import ENCODINGS, MAX_CHUNKS, Manifest, UpdateReport, is_delta
from fedpatch.shared.wire.topics import parse_topic
from tests.support.masked_group import terms_of
from tests.support.paths import ROOT
from tests.support.specs import model, report

GOLDEN = ROOT / "tests" / "golden"
PUBLIC = Schema(
    (
        TensorSpec("fc.weight", (3, 2), "float32", "weight"),
        TensorSpec("bn.running_var", (3,), "float32", "stats"),
        TensorSpec("bn.num_batches_tracked", (), "int64", "stats"),
    )
)
TENSORS = {spec.name: np.ones(spec.shape, spec.dtype) for spec in PUBLIC.specs}
MOVED = PUBLIC.with_moments(MOMENTS)
BASE = {spec.name: np.full(spec.shape, 0.75).astype(spec.dtype) for spec in MOVED.specs}

Form = Literal["bytes", "msgpack", "json", "text"]


@dataclass(frozen=True)
class Decoder:
    """One reader: `run(data, folder)` may raise only `errors`; a reader `on_disk` gets an empty `folder`.

    `seeds` are valid examples, and `form` is their format, so that damage can keep the format. With `frugal`, memory is bounded
    by the length of the data, whatever sizes they state. `found` are inputs that once raised another error.
    """

    name: str
    run: Callable[[bytes, Path], Any]
    errors: tuple[type[Exception], ...]
    seeds: tuple[bytes, ...]
    form: Form = "bytes"
    frugal: bool = True
    on_disk: bool = False
    found: tuple[bytes, ...] = ()


# Short-lived files: in memory, if the system has such a place.
_SCRATCH = "/dev/shm" if Path("/dev/shm").is_dir() else None


def attempt(decoder: Decoder, data: bytes) -> Exception | None:
    """Return the documented error that `decoder` raises, or None; any other error is not caught."""
    try:
        if not decoder.on_disk:
            decoder.run(data, Path())
        else:
            with tempfile.TemporaryDirectory(prefix="fedpatch-fuzz-", dir=_SCRATCH) as folder:
                decoder.run(data, Path(folder))
    except decoder.errors as error:
        return error
    return None


def blob_of(encoding: str, **meta: Any) -> bytes:
    """Return the index of an encoding, the stated size, and an update's blob, as one byte string."""
    packed = pack(TENSORS, PUBLIC, meta or to_plain(report()), encoding, base=BASE)
    return bytes([ENCODINGS.index(encoding)]) + packed.raw_bytes.to_bytes(4, "big") + packed.blob


def _announced(data: bytes) -> tuple[bytes, str, int]:
    """Split any bytes into a blob, its encoding and its stated size."""
    return data[5:], ENCODINGS[data[0] % len(ENCODINGS)] if data else "", int.from_bytes(data[1:5], "big")


def _unpack(data: bytes, _: Path) -> None:
    blob, encoding, raw_bytes = _announced(data)
    tensors = unpack(blob, encoding=encoding, raw_bytes=raw_bytes, schema=PUBLIC, base=BASE)[1]
    PUBLIC.check(tensors)


_LAYOUT = VectorLayout(PUBLIC, terms_of(3, grid=np.ones(2, "<f4").tobytes()))
_MASKED = write_masked_blob(MaskedUpdate(bytes(32), "ab" * 32, np.ones(_LAYOUT.size, _LAYOUT.dtype)))


def _read_masked(data: bytes, _folder: Path) -> MaskedUpdate:
    return read_masked_blob(data, _LAYOUT)


def _read_update(data: bytes, _: Path) -> None:
    blob, encoding, raw_bytes = _announced(data)
    terms = UpdateRequirements(PUBLIC, ("bn.weight",), model().digest, model=BASE)
    got, tensors = decode_and_validate_update(blob, terms, encoding=encoding, raw_bytes=raw_bytes)
    assert got.base == model().digest
    assert all(np.isfinite(array).all() for array in tensors.values())


def _step_of(encoding: str) -> bytes:
    """Return the index of an encoding, and the uncompressed container of a step with moments, as one byte string."""
    tensors = {spec.name: np.ones(spec.shape, spec.dtype) for spec in MOVED.specs}
    packed = pack(tensors, MOVED, {}, encoding, base=BASE, seed=1)
    return bytes([_DELTAS.index(encoding)]) + zstandard.decompress(packed.blob)


def _read_step(data: bytes, _: Path) -> None:
    """Read a complete step with its true size, so that the checks of delta encodings are reached."""
    encoding = _DELTAS[data[0] % len(_DELTAS)] if data else _DELTAS[0]
    blob = zstandard.compress(data[1:], 1)
    tensors = unpack(blob, encoding=encoding, raw_bytes=len(data[1:]), schema=MOVED, base=BASE)[1]
    MOVED.check(tensors)


def _read_raw_update(data: bytes, folder: Path) -> None:
    """Read an update with its true size, so that the checks after the size are reached too."""
    _read_update(bytes([ENCODINGS.index("fp32")]) + len(data).to_bytes(4, "big") + data, folder)


def _decode_message(data: bytes, _: Path) -> None:
    decode(data)


def _decode_chunk(data: bytes, _: Path) -> None:
    assert encode_chunk(decode_chunk(data)) == data


def _bitmap(data: bytes, _: Path) -> None:
    count = 1 + int.from_bytes(data[:2], "big") % MAX_CHUNKS
    assert Bitmap.from_bytes(count, data[2:]).to_bytes() == data[2:]


def _schema(data: bytes, _: Path) -> None:
    try:
        lists = msgpack.unpackb(data)
    except Exception:  # errors of msgpack are not tested here
        return
    schema = Schema.from_lists(lists)
    assert Schema.from_lists(schema.to_lists()) == schema


def _kept(kind: type) -> Callable[[bytes, Path], Any]:
    return lambda data, _: from_bytes(data, kind)


def _words(read: Callable[[str], Any]) -> Callable[[bytes, Path], Any]:
    """Make a decoder of a reader of text: it gets the bytes decoded as the system decodes arguments."""
    return lambda data, _: read(data.decode("utf-8", "surrogateescape"))


def _topic(text: str) -> None:
    parsed = parse_topic("field", text)
    assert parsed is None or 0 <= parsed.index < MAX_CHUNKS


def _order(text: str) -> None:
    decide(parse_admission_mode("file:/order"), text)
    if text in ("always", "never") or text.startswith("file:"):
        decide(parse_admission_mode(text), None)


def _stream(read: Callable[[io.BytesIO], object | None]) -> Callable[[bytes, Path], Any]:
    """Make a decoder that reads all messages of a pipe."""

    def run(data: bytes, _: Path) -> None:
        stream = io.BytesIO(data)
        while read(stream) is not None:
            pass

    return run


def _frames(*messages: Any) -> bytes:
    stream = io.BytesIO()
    for message in messages:
        write_message(stream, message)
    return stream.getvalue()


_DELTAS = tuple(encoding for encoding in ENCODINGS if is_delta(encoding))
_KEY = JobKey("run", 1, 2, "digits")
_MESSAGES = tuple(
    bytes.fromhex(path.read_text("ascii")) for path in sorted(GOLDEN.glob("*.hex")) if path.stem != "chunk"
)
_DIGEST = model().digest
_TOPICS = ("coord", "dev/pi-1/state", "dev/pi-1/up", f"blob/{_DIGEST}/3", f"dev/pi-1/blob/{_DIGEST[:16]}/65535")

WIRE_DECODERS: tuple[Decoder, ...] = (
    Decoder("message", _decode_message, (WireError,), _MESSAGES, "msgpack"),
    Decoder("report", _kept(UpdateReport), (WireError,), (to_bytes(report()),), "msgpack"),
    Decoder("manifest", _kept(Manifest), (WireError,), (to_bytes(model()),), "msgpack"),
    Decoder(
        "chunk",
        _decode_chunk,
        (WireError,),
        (bytes.fromhex((GOLDEN / "chunk.hex").read_text("ascii")), encode_chunk(Chunk(_DIGEST, 2, 5, b"data" * 9))),
    ),
    Decoder("bitmap", _bitmap, (WireError,), (b"\0\x0b\xff\x0f", b"\x0f\xff" + bytes(512))),
    Decoder("blob", _unpack, (WireError, SchemaMismatch), tuple(map(blob_of, ENCODINGS))),
    Decoder("update", _read_update, (UpdateRefused,), tuple(map(blob_of, ENCODINGS))),
    Decoder("masked update", _read_masked, (UpdateRefused,), (_MASKED,)),
    Decoder("raw update", _read_raw_update, (UpdateRefused,), (blob_of("fp32")[5:],), "msgpack"),
    Decoder("step", _read_step, (WireError, SchemaMismatch), tuple(map(_step_of, _DELTAS))),
    Decoder("schema", _schema, (WireError,), (msgpack.packb(PUBLIC.to_lists()),), "msgpack"),
    Decoder("topic", _words(_topic), (), tuple(f"fedpatch/1/field/{end}".encode() for end in _TOPICS), "text"),
    Decoder("policy", _words(parse_policy), (UsageError,), (b"affine", b"names:fc2.*,bn1.[wb]*"), "text"),
    Decoder(
        "broker URL",
        _words(parse_broker_url),
        (UsageError,),
        (b"mqtt://localhost", b"mqtts://pi%40home@[fe80::1]:8883/"),
        "text",
    ),
    Decoder(
        "data spec",
        _words(parse_data_spec),
        (UsageError,),
        (b"shard:0/10", b"aligned:3/200,seed=7,noise=2.5,noisy-fraction=0.2"),
        "text",
    ),
    Decoder("order", _words(_order), (UsageError,), (b"always", b"file:/run/order", b"decline: asleep\n"), "text"),
    Decoder(
        "command", _stream(read_command), (WireError,), (_frames(WorkerSetup("digits", "shard:0/1", "/d", "/p", "a")),)
    ),
    Decoder(
        "answer",
        _stream(read_answer),
        (WireError,),
        (_frames(Ready("digits", _DIGEST, 10), Trained(_KEY, model(), report())),),
    ),
)
