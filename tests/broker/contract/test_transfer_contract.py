"""Models and updates through real brokers: they arrive complete, whatever the broker retains, announces or drops."""

from __future__ import annotations

import random
from functools import partial
from pathlib import Path

import pytest

from fedpatch.coordinator.runtime.model_publisher import Blob, ModelPublisher
from fedpatch.shared.wire import topics
from fedpatch.shared.wire.chunk_sizes import MIN_CHUNK_BYTES
from tests.broker.contract.parties import CHUNK_BYTES, COORDINATOR, Getting, Giving, parties
from tests.broker.contract.targets import Target

pytestmark = pytest.mark.broker


@pytest.mark.medium
def test_a_model_reaches_every_device_whole(target: Target, fleet: str, tmp_path: Path):
    blob = random.Random(1).randbytes(40 * CHUNK_BYTES - 5)
    with parties(target, fleet, ("ann", "bob", "eve")) as together:
        publisher = ModelPublisher(together.links[COORDINATOR], fleet, tmp_path / "published.txt")
        publisher.retain = together.about.retain_available
        manifest = together.manifest(blob)
        assert manifest.chunk_count == 40
        publisher.publish(Blob(blob, manifest))
        together.settle()
        getting = Getting(together, manifest, partial(publisher.repair, manifest.digest))
        together.play(getting.receive, getting.tick)
        assert {name: getting.blob(name) == blob for name in getting.parts} == dict.fromkeys(getting.parts, True)
        # Retained chunks arrive without a request, except the lost ones; others arrive in windows of 32, which all devices
        # receive that listen at that time.
        assert min(getting.needs.values()) >= 1, getting.needs
        assert target.retains or max(getting.needs.values()) >= 2, getting.needs
        publisher.close()
        together.settle()
        with target.client(f"{fleet}.late", topics.model_chunks_filter(fleet, manifest.digest)) as late:
            late.settle()
            assert [topic for topic in late.topics if manifest.digest in topic] == []


@pytest.mark.medium
def test_a_model_of_more_chunks_than_a_queue_holds_arrives(target: Target, fleet: str, tmp_path: Path):
    """Three hundred small chunks: the device requests the chunks that a broker drops from a full queue."""
    blob = random.Random(3).randbytes(300 * MIN_CHUNK_BYTES)
    with parties(target, fleet, ("ann",)) as together:
        publisher = ModelPublisher(together.links[COORDINATOR], fleet, tmp_path / "published.txt")
        publisher.retain = together.about.retain_available
        manifest = together.manifest(blob, MIN_CHUNK_BYTES)
        publisher.publish(Blob(blob, manifest))
        together.settle()
        getting = Getting(together, manifest, partial(publisher.repair, manifest.digest))
        together.play(getting.receive, getting.tick)
        assert getting.blob("ann") == blob
        publisher.close()


def test_an_update_arrives_whole(target: Target, fleet: str):
    """Forty chunks, a window at a time; on a link without loss no chunk is sent twice."""
    blob = random.Random(2).randbytes(40 * CHUNK_BYTES - 7)
    with parties(target, fleet, ("ann",)) as together:
        giving = Giving(together, {"ann": blob})
        together.play(giving.receive, giving.tick)
    assert giving.received == {"ann": blob}
    assert giving.chunks == {"ann": 40}


def test_ten_devices_stay_below_the_shortest_queue(target: Target, fleet: str):
    """All finish training at once; devices with a grant share the chunks in flight, so the broker drops nothing."""
    names = [f"pi-{number:02}" for number in range(10)]
    blobs = {name: random.Random(name).randbytes(5 * CHUNK_BYTES - 3) for name in names}
    with parties(target, fleet, names) as together:
        giving = Giving(together, blobs)
        together.play(giving.receive, giving.tick)
    assert giving.received == blobs
    assert giving.chunks == dict.fromkeys(names, 5)
    assert giving.most <= 6  # of 32 chunks in flight, each takes 5
