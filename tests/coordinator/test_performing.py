"""What is made of a round's updates, and what is safe when."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from coordinator.checkpoint import load_checkpoint, store_update
from coordinator.effects import Count, Finish
from coordinator.engine import Engine
from coordinator.performing import Performer
from coordinator.preparation import Prepared, prepare, run_spec
from coordinator.publisher import ModelPublisher
from coordinator.records import StoredUpdate
from coordinator.registry import REGISTRY_FILE, Registry
from coordinator.run_spec import Stopped
from coordinator.settings import RunSettings
from shared.codec import to_plain
from shared.compression import pack
from shared.errors import StateError
from shared.messages import Accept, Envelope, Failed, FailReason, Offer, UpdateReport
from shared.transfer import cut, describe
from tests.coordinator.links import RecordedLink
from tests.specs import there


@pytest.fixture(scope="module")
def prepared() -> Prepared:
    """FedAvg of the whole digits model."""
    return prepare(RunSettings(strategy="fedavg", private="none"))


class Bench:
    """A round with devices a and b that wait for nothing else."""

    def __init__(self, directory: Path, prepared: Prepared, registry: Registry) -> None:
        self.prepared, self.registry, self.directory = prepared, registry, directory
        self.said: list[str] = []
        link = RecordedLink()
        info = registry.create_run(
            created_at=0.0, task="digits", strategy="fedavg", private="none", settings={}, schema=prepared.schema.digest
        )
        spec = run_spec(info.id, 1, RunSettings(devices=2, rounds=1, quorum=0.1), prepared, 2**16)
        self.engine = Engine(spec, jitter=random.Random(1))
        connection: Any = SimpleNamespace(send=lambda device, envelope: None, fleet="demo", link=link)
        view: Any = SimpleNamespace(say=self.said.append)
        self.performer = Performer(
            self.engine,
            prepared,
            prepared.initial,
            connection=connection,
            publisher=ModelPublisher(link, "demo", directory / "note"),
            registry=registry,
            directory=directory,
            view=view,
        )
        self.perform(self.engine.start(0.0))
        for device in "ab":
            self.perform(self.engine.on_state(device, there(), 0.0))
        for device in "ab":
            self.hear(device, Accept(10))

    def perform(self, effects: list[Any]) -> None:
        """As the service does."""
        self.performer.perform(effects)

    def hear(self, device: str, body: Any) -> None:
        """A message of the open round."""
        spec = self.engine.spec
        envelope = Envelope(body, task=spec.task, run=spec.run, epoch=1, round=1)
        self.perform(self.engine.on_message(device, envelope, 0.0))

    def update(self, value: float) -> tuple[bytes, Any]:
        """An update in which everything is `value`."""
        assert self.engine.open is not None
        schema = self.prepared.travelling
        tensors = {spec.name: np.full(spec.shape, value, spec.dtype) for spec in schema.specs}
        report = UpdateReport(self.performer.base, 10, 1, 0.5, 0.5, 0.5, 0.0, 0.0)
        packed = pack(tensors, schema, to_plain(report), "fp32+zstd")
        manifest = describe(
            packed.blob, chunk_bytes=2**16, encoding="fp32+zstd", raw_bytes=packed.raw_bytes, schema=schema.digest
        )
        return packed.blob, manifest

    def upload(self, device: str, value: float) -> None:
        """The update arrives whole."""
        blob, manifest = self.update(value)
        self.hear(device, Offer(manifest))
        for index in range(manifest.chunk_count):
            self.perform(self.engine.on_chunk(device, cut(blob, manifest, index), 0.0))


@pytest.fixture
def bench(tmp_path: Path, prepared: Prepared) -> Iterator[Bench]:
    """A round in which both devices have accepted."""
    with Registry(tmp_path / REGISTRY_FILE) as registry:
        yield Bench(tmp_path, prepared, registry)


def test_only_updates_that_the_round_counts_are_folded_in(bench):
    """What lies on the disk of a device that was counted out is not in the mean."""
    blob, manifest = bench.update(1000.0)
    store_update(bench.directory, 1, "b", blob)
    bench.registry.add_update(bench.engine.spec.run, StoredUpdate(1, "b", manifest.digest, manifest.raw_bytes, 10))
    bench.upload("a", 1.0)
    bench.hear("b", Failed(FailReason.TRAINING))
    [record] = bench.registry.rounds(bench.engine.spec.run)
    assert (record.outcome, record.reported) == ("aggregated", 1)
    assert {float(array.max()) for array in bench.performer.state.tensors.values()} == {1.0}


def test_model_and_record_are_saved_together(bench):
    """After a crash the one does not know of a round that the other does not."""
    bench.upload("a", 1.0)
    bench.upload("b", 3.0)
    state, _, meta = load_checkpoint(bench.directory)
    assert {float(array.max()) for array in state.tensors.values()} == {2.0}
    assert meta["record"] == bench.registry.rounds(bench.engine.spec.run)[0].to_dict()


def test_a_device_cannot_write_to_the_terminal(bench):
    """Its own words are shown without what a terminal would obey."""
    bench.perform([Count("a", "declined", "unwilling", "\x1b[2Jowned\n")])
    assert bench.said == ["a declined: unwilling ?[2Jowned"]


def test_the_last_word_of_a_run_is_cleaned_too(bench):
    """It may quote why a device declined."""
    bench.perform([Finish(Stopped.FAILED, "a: \x1b]0;owned\x07")])
    assert bench.said == ["a: ?]0;owned?"]


def test_a_model_that_could_not_be_saved_is_not_taken_for_the_state(bench, monkeypatch):
    """What a run tells in the end is what a resume finds."""

    def full(*_: object) -> None:
        raise StateError("no space left")

    monkeypatch.setattr("coordinator.performing.save_checkpoint", full)
    bench.upload("a", 1.0)
    with pytest.raises(StateError):
        bench.upload("b", 3.0)
    assert bench.performer.state is bench.prepared.initial


def test_the_order_of_arrival_changes_no_bit(tmp_path, prepared):
    """Updates are folded in the order of device names."""
    bits = []
    for order in ("ab", "ba"):
        directory = tmp_path / order
        directory.mkdir()
        with Registry(directory / REGISTRY_FILE) as registry:
            current = Bench(directory, prepared, registry)
            for device in order:
                current.upload(device, {"a": 0.1, "b": 0.7}[device])
            bits.append({name: array.tobytes() for name, array in current.performer.state.tensors.items()})
    assert bits[0] == bits[1]
