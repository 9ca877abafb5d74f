"""Messages of a device or a coordinator that fit every type and limit of the wire, and are still hostile."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import strategies as st

from fedpatch.shared.wire.chunks import Bitmap, Chunk, cut
from fedpatch.shared.wire.messages import (
    MAX_BLOB_BYTES,
    MAX_CHUNKS,
    Accept,
    Body,
    Decline,
    DeviceState,
    Envelope,
    Failed,
    JobStatus,
    Manifest,
    Need,
    Offer,
    Progress,
    TaskCapability,
)
from fedpatch.shared.wire.reason_codes import JobPhase
from tests.shared.arbitrary_messages import envelopes, of_message
from tests.support.specs import RUN, SCHEMA, TASK, TASKS, model, update

RUNS = (RUN, "other", "")
EPOCHS = (0, 1, 2, 2**53)
BLOBS = (b"u" * 350, b"v" * 350, b"w", b"x" * 900)
MODEL = b"m" * 250
BOOTS = ("b1", "b2", "")


def _manifests() -> tuple[Manifest, ...]:
    """Return manifests of correct updates, and manifests that are false or at a limit."""
    honest = tuple(map(update, BLOBS))
    first = honest[0]
    return (
        *honest,
        replace(first, chunk_bytes=1, chunk_count=350),
        replace(first, size_bytes=10_000, chunk_bytes=1, chunk_count=10_000),
        replace(first, size_bytes=MAX_CHUNKS, chunk_bytes=1, chunk_count=MAX_CHUNKS),
        replace(first, size_bytes=MAX_BLOB_BYTES, chunk_bytes=MAX_BLOB_BYTES, chunk_count=1),
        replace(first, raw_bytes=MAX_BLOB_BYTES),
        replace(first, chunk_count=MAX_CHUNKS),
        replace(first, chunk_bytes=MAX_BLOB_BYTES),
        replace(first, encoding="fp16"),
        replace(first, schema="00" * 32),
        replace(first, digest=model().digest),
        model(MODEL),
    )


MANIFESTS = st.sampled_from(_manifests()) | of_message(Manifest)
PHASES = st.sampled_from(JobPhase)
BITMAPS = st.one_of(
    st.binary(max_size=8),
    st.sampled_from([b"", b"\x0f", b"\x07", b"\xff", b"\xff" * (MAX_CHUNKS // 8), Bitmap(10_000).to_bytes()]),
)
DIGESTS = st.sampled_from([model(MODEL).digest, *(update(blob).digest for blob in BLOBS), "00" * 32])


def up_bodies() -> st.SearchStrategy[Body]:
    """Return any message of a device; messages that a round acts upon are more frequent."""
    return st.one_of(
        st.builds(Accept, st.sampled_from([1, 10, 2**53])),
        st.builds(Offer, MANIFESTS),
        st.builds(Offer, MANIFESTS),
        st.builds(Progress, PHASES, st.sampled_from([0, 1, 2**53]), st.sampled_from([0, 1, 2**53])),
        st.builds(Need, DIGESTS, BITMAPS),
        of_message(Decline),
        of_message(Failed),
        envelopes().map(lambda envelope: envelope.body),
    )


def presences(last_round: st.SearchStrategy[int]) -> st.SearchStrategy[DeviceState]:
    """Return any presence: of any boot, with any job, and with this task, another task or too many tasks."""
    jobs = st.none() | st.builds(JobStatus, st.sampled_from(RUNS), st.sampled_from(EPOCHS), last_round, PHASES)
    crowd = tuple(TaskCapability(f"task-{i}", SCHEMA, 1) for i in range(64))
    tasks = st.sampled_from([TASKS, TASKS, (), (TaskCapability(TASK, "00" * 32, 0),), crowd])
    online = st.sampled_from([True, True, True, False])
    boots = st.sampled_from(BOOTS)
    return st.builds(DeviceState, online, boots, st.just("1"), tasks, st.just(("fp32",) * 64), jobs) | of_message(
        DeviceState
    )


@st.composite
def chunks(draw, blobs: tuple[bytes, ...] = BLOBS) -> Chunk:
    """A chunk that decodes: of an announced blob, of no known blob, or with foreign data."""
    blob = draw(st.sampled_from(blobs))
    manifest = update(blob)
    chunk = cut(blob, manifest, draw(st.integers(0, manifest.chunk_count - 1)))
    match draw(st.sampled_from(("honest", "honest", "honest", "data", "count", "digest"))):
        case "data":
            chunk = replace(chunk, data=draw(st.sampled_from([b"!" * len(chunk.data), b"", b"!" * 100, b"!"])))
        case "count":
            chunk = replace(chunk, count=MAX_CHUNKS, index=draw(st.sampled_from([0, 3, MAX_CHUNKS - 1])))
        case "digest":
            chunk = replace(chunk, digest=draw(DIGESTS))
    return chunk


def addressed(bodies: st.SearchStrategy[Body], rounds: st.SearchStrategy[int]) -> st.SearchStrategy[Envelope]:
    """Return messages of any round; most belong to this run and epoch."""
    here = st.builds(Envelope, bodies, st.just(7), st.just(TASK), st.just(RUN), st.just(1), rounds)
    anywhere = st.builds(
        Envelope,
        bodies,
        st.just(7),
        st.sampled_from([TASK, "foreign"]),
        st.sampled_from(RUNS),
        st.sampled_from(EPOCHS),
        rounds,
    )
    return st.one_of(here, here, here, anywhere)


def weight(thing: object, _seen: set[int] | None = None) -> int:
    """Return the memory that `thing` refers to, as the sum of container entries and bytes."""
    seen = set() if _seen is None else _seen
    if id(thing) in seen or isinstance(thing, type) or callable(thing):
        return 0
    seen.add(id(thing))
    if isinstance(thing, bytes | bytearray | str):
        return len(thing)
    if isinstance(thing, dict):
        return len(thing) + sum(weight(one, seen) for pair in thing.items() for one in pair)
    if isinstance(thing, list | tuple | set | frozenset):
        return len(thing) + sum(weight(one, seen) for one in thing)
    return weight(vars(thing), seen) if hasattr(thing, "__dict__") else 1
