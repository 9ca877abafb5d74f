"""Runs that send the model as deltas: the deltas offered to a device, also after a crash."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedpatch.coordinator.rounds.encoding_for_device import EVERYWHERE
from fedpatch.coordinator.rounds.run_events import DevicePresence, TimePassed
from fedpatch.coordinator.runtime.run_preparation import Prepared
from fedpatch.coordinator.storage.checkpoint import load_checkpoint
from fedpatch.coordinator.storage.delta_files import load_steps, save_step
from fedpatch.coordinator.storage.run_registry import Registry
from fedpatch.shared.tensors.arrays import Tensors, values_digest
from fedpatch.shared.tensors.packing import unpack
from fedpatch.shared.wire import topics
from fedpatch.shared.wire.chunks import Bitmap, decode_chunk
from fedpatch.shared.wire.messages import Accept, Failed, Manifest, Need, Progress, Refused, WorkRequest
from fedpatch.shared.wire.reason_codes import FailReason, JobPhase
from tests.coordinator.effect_runners import Bench
from tests.support.specs import there

OLD = replace(there(), encodings=("fp32+zstd", "fp16+zstd", "fp32", "fp16"))


@pytest.fixture
def bench(tmp_path: Path, prepared: Prepared, registry: Registry) -> Bench:
    """A run with encoding delta-int8, whose updates have realistic noise."""
    return noisy(Bench(tmp_path, prepared, registry, rounds=99, encoding="delta-int8"))


def noisy(bench: Bench) -> Bench:
    """Add noise to the updates, so that they cannot be compressed to almost nothing."""
    bench.noise = 0.01
    return bench


def play(bench: Bench, rounds: int, devices: str = "ab") -> None:
    """Run this number of whole rounds; devices other than a and b take part from the next round on."""
    for _ in range(rounds):
        bench.begin(devices)
        number = bench.engine.last_round
        assert bench.engine.open is not None
        for device in bench.engine.open.round.participants:
            bench.receive(device, Progress(JobPhase.TRAINING, 0, 1))
            bench.upload(device, 0.1 + 0.001 * number)


def request_to(bench: Bench, device: str) -> WorkRequest:
    found = [envelope.body for name, envelope in bench.sent if name == device]
    return [body for body in found if isinstance(body, WorkRequest)][-1]


def published(bench: Bench, manifest: Manifest) -> bytes:
    """Return a blob, joined from its chunks, which the broker retains."""
    prefix = topics.model_chunks_filter("demo", manifest.digest).removesuffix("+")
    assert {topic for topic in bench.link.retained() if topic.startswith(prefix)}
    chunks = [
        decode_chunk(payload) for topic, payload, _ in bench.link.published if topic.startswith(prefix) and payload
    ]
    return b"".join(one.data for one in sorted({one.index: one for one in chunks}.values(), key=lambda one: one.index))


def opened(bench: Bench, manifest: Manifest, base: Tensors | None = None) -> dict[str, Any]:
    return unpack(
        published(bench, manifest),
        encoding=manifest.encoding,
        raw_bytes=manifest.raw_bytes,
        schema=bench.prepared.travelling,
        base=base,
    )[1]


def digest_of(bench: Bench, tensors: Tensors) -> str:
    return values_digest(tensors, bench.prepared.travelling)


def test_request_lists_the_steps_from_the_version_of_the_device(bench):
    versions: dict[str, Any] = {}
    for _ in range(3):
        bench.begin()
        versions[bench.aggregator.base] = bench.aggregator.state.tensors
        play(bench, 1, "abc" if len(versions) == 3 else "ab")
    for device, count in (("a", 1), ("c", 3)):
        request = request_to(bench, device)
        assert (request.encoding, request.model.encoding, len(request.deltas)) == ("delta-int8", EVERYWHERE, count)
        held = versions[request.deltas[0].base]
        for delta in request.deltas:
            held = opened(bench, delta.manifest, held)
            assert digest_of(bench, held) == delta.content
        assert digest_of(bench, held) == digest_of(bench, opened(bench, request.model))
        assert digest_of(bench, held) == digest_of(bench, load_checkpoint(bench.directory)[0].tensors)


def test_record_counts_the_bytes_of_model_and_steps(bench):
    play(bench, 3)
    first, *later = [record.bytes_down for record in bench.engine.records]
    assert all(0 < down < first / 3 for down in later)
    [delta] = request_to(bench, "a").deltas
    play(bench, 1)
    assert bench.engine.records[-1].bytes_down == 2 * delta.manifest.size_bytes


def test_missing_chunks_of_a_step_are_published_again(bench):
    play(bench, 2)
    bench.begin()
    [delta] = request_to(bench, "a").deltas
    bench.link.published.clear()
    missing = Bitmap(delta.manifest.chunk_count, [0]).to_bytes()
    time.sleep(0.9)  # earlier requests after the publication are ignored
    bench.receive("a", Need(delta.manifest.digest, missing))
    assert [topic for topic, _, _ in bench.link.published] == [topics.model_chunk("demo", delta.manifest.digest, 0)]


def test_steps_are_published_once_and_retracted_at_the_end(bench):
    play(bench, 3)
    bench.begin()
    kept = request_to(bench, "a").deltas[0].manifest
    topic = topics.model_chunk("demo", kept.digest, 0)
    play(bench, 1)
    assert [payload != b"" for name, payload, _ in bench.link.published if name == topic] == [True]
    bench.publisher.close()
    assert bench.link.retained() == set()


@pytest.mark.medium
@pytest.mark.parametrize("damage", ["gone", "other bytes", "of another round", "a directory", "of an earlier version"])
def test_damaged_step_shortens_the_way(bench, damage):
    play(bench, 4)
    path = bench.directory / "delta-000003.fp"
    content = path.read_bytes()
    path.unlink()
    if damage == "other bytes":
        path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    elif damage == "of another round":
        path.write_bytes((bench.directory / "delta-000002.fp").read_bytes())
    elif damage == "a directory":
        path.mkdir()
    elif damage == "of an earlier version":
        step = next(one for one in load_steps(bench.directory) if one.round == 2)
        save_step(
            bench.directory, replace(step, round=3, packed=replace(step.packed, encoding="delta-int4")), (1, 2, 4)
        )
    later = noisy(bench.again())
    assert len(request_to(later, "a").deltas) == 1
    play(later, 1)
    play(later, 1, "abc")
    assert len(request_to(later, "c").deltas) == 3


def test_steps_of_a_lost_model_are_not_offered(bench):
    play(bench, 3)
    lost = request_to(bench, "a").model
    (bench.directory / "checkpoint-000003.fp").write_bytes(b"x" * 500)
    later = noisy(bench.again()).begin("abc")
    assert later.engine.last_round == 3
    request = request_to(later, "a")
    assert (len(request.deltas), request.model.digest != lost.digest) == (2, True)
    assert request.deltas[-1].content == digest_of(later, load_checkpoint(bench.directory)[0].tensors)
    later.upload("ab", 0.7)
    request = request_to(later, "c")
    assert len(request.deltas) == 3
    assert request.deltas[-1].content == digest_of(later, load_checkpoint(bench.directory)[0].tensors)


def test_run_resumed_with_another_encoding_keeps_the_model(bench):
    play(bench, 2)
    before = digest_of(bench, load_checkpoint(bench.directory)[0].tensors)
    plain = noisy(bench.again(encoding="fp32+zstd")).begin()
    assert digest_of(plain, opened(plain, request_to(plain, "a").model)) == before
    # The open round continues in its first encoding.
    assert (request_to(plain, "a").encoding, request_to(plain, "a").deltas) == ("delta-int8", ())
    plain.upload("ab", 0.5, "delta-int8")
    assert (request_to(plain, "a").encoding, request_to(plain, "a").deltas) == ("fp32+zstd", ())
    assert load_checkpoint(bench.directory)[0].server == {}
    finer = noisy(plain.again(encoding="delta-bf16")).begin()
    finer.upload("ab", 0.6, "fp32+zstd")
    [delta] = request_to(finer, "a").deltas
    assert (request_to(finer, "a").encoding, delta.manifest.encoding) == ("delta-bf16", "delta-bf16")


def test_failed_round_keeps_model_and_base(bench):
    play(bench, 1)
    bench.begin()
    name = bench.aggregator.base
    bench.receive("a", Progress(JobPhase.TRAINING, 0, 1))
    for device in "ab":
        bench.receive(device, Failed(FailReason.TRAINING))
    assert bench.engine.records[-1].outcome == "failed"
    bench.perform(bench.engine.handle(TimePassed(), time.monotonic() + 60.0))
    assert (bench.engine.last_round, bench.aggregator.base) == (3, name)
    assert (request_to(bench, "a").deltas, len(request_to(bench, "b").deltas)) == ((), 1)


class TestDeviceThatLacksTheEncoding:
    @pytest.fixture
    def mixed(self, bench):
        """Device a does not support deltas, b does; both are in round 2."""
        for _ in range(2):
            bench.perform(bench.engine.handle(DevicePresence("a", OLD), time.monotonic()))
            bench.perform(bench.engine.handle(DevicePresence("b", there()), time.monotonic()))
            for device, encoding in (("a", EVERYWHERE), ("b", "")):
                bench.receive(device, Accept(10))
                bench.receive(device, Progress(JobPhase.TRAINING, 0, 1))
                if bench.engine.last_round == 1:
                    bench.upload(device, 0.5, encoding)
        return bench

    def test_device_without_the_encoding_takes_part_in_another(self, mixed):
        assert [request_to(mixed, device).encoding for device in "ab"] == [EVERYWHERE, "delta-int8"]
        assert [len(request_to(mixed, device).deltas) for device in "ab"] == [0, 1]
        mixed.upload("a", 0.2, EVERYWHERE)
        mixed.upload("b", 0.4)
        assert [record.reported for record in mixed.engine.records] == [2, 2]
        weight = load_checkpoint(mixed.directory)[0].tensors["fc1.weight"]
        assert abs(weight.mean() - 0.3) < 3e-2

    def test_device_without_the_encoding_is_reported_once(self, mixed):
        [line] = [line for line in mixed.lines if "delta-int8" in line]
        assert line == "a does not know delta-int8; it is asked for fp32+zstd, which saves nothing"

    def test_update_in_another_encoding_than_requested_is_late(self, mixed):
        """The device was updated while its update waited, and was asked again."""
        mixed.upload("a", 0.2)
        mixed.upload("b", 0.4, EVERYWHERE)
        refused = [envelope.body for _, envelope in mixed.sent if isinstance(envelope.body, Refused)]
        assert [body.reason for body in refused] == ["late"] * 2

    def test_encodings_of_the_open_round_survive_a_crash(self, mixed):
        mixed.upload("a", 0.2, EVERYWHERE)
        later = mixed.again()
        assert set(later.engine.open.reports) == {"a"}
        assert [(name, envelope.body.encoding) for name, envelope in later.sent] == [("b", "delta-int8")]
        later = mixed.again(encoding="delta-bf16")
        assert [(name, envelope.body.encoding) for name, envelope in later.sent] == [("b", "delta-int8")]
        later.perform(later.engine.handle(DevicePresence("b", there()), time.monotonic()))
        later.upload("b", 0.4, "delta-int8")
        assert [record.reported for record in later.engine.records] == [2, 2]

    def test_updated_device_is_asked_for_the_encoding_from_its_next_start(self, mixed):
        mixed.perform(mixed.engine.handle(DevicePresence("a", there("b2")), time.monotonic()))
        assert request_to(mixed, "a").encoding == "delta-int8"


@pytest.mark.parametrize("encoding", ["delta-int8", "fp32+zstd", "fp16+zstd", "fp16"])
def test_request_names_the_values_that_a_device_decodes(tmp_path, prepared, registry, encoding):
    """Also where the model loses digits on its way: the digest is that of the device's values, not of the coordinator's."""
    bench = noisy(Bench(tmp_path, prepared, registry, rounds=9, encoding=encoding))
    play(bench, 1)
    bench.begin()
    request = request_to(bench, "a")
    assert request.content == digest_of(bench, opened(bench, request.model))
    if request.deltas:
        assert request.content == request.deltas[-1].content
