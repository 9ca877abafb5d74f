"""The global model's chunks on the broker, and their removal."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedpatch.coordinator.blobs.blob_store import FileBlobs
from fedpatch.coordinator.blobs.served_models import ServedModels
from fedpatch.coordinator.runtime.model_publisher import Blob, ModelPublisher
from fedpatch.shared.errors import BrokerError
from fedpatch.shared.wire.chunks import decode_chunk
from tests.coordinator.fake_link import RecordedLink
from tests.support.specs import model

BLOB = b"m" * 250


@pytest.fixture
def link() -> RecordedLink:
    return RecordedLink()


class TestServed:
    """Blobs that devices fetch by URL."""

    BASE = "https://cdn.example/kitchen/"

    @pytest.fixture
    def store(self, tmp_path: Path) -> Path:
        return tmp_path / "served"

    @pytest.fixture
    def served(self, link: RecordedLink, store: Path, tmp_path: Path) -> ModelPublisher:
        models = ServedModels(FileBlobs(store, (0o644, 0o755)), self.BASE.__add__)
        return ModelPublisher(link, "kitchen", tmp_path / "published.txt", served=models)

    def test_model_that_all_devices_fetch_is_in_the_store_and_not_on_the_broker(self, served, link, store):
        urls = served.publish(Blob(BLOB, model()), chunks=False)
        served.republish()
        assert urls == {model().digest: f"{self.BASE}{model().digest}"}
        file = store / model().digest
        assert (file.read_bytes(), file.stat().st_mode & 0o777, link.published) == (BLOB, 0o644, [])

    def test_first_request_for_a_chunk_publishes_the_whole_model(self, served, link, tmp_path):
        served.publish(Blob(BLOB, model()), chunks=False)
        served.repair(model().digest, (1,))
        assert len(link.retained()) == 3
        assert publisher(RecordedLink(), tmp_path)._leaving.keys() == {model().digest}
        served.repair(model().digest, (1,))
        assert len(link.published) == 4

    def test_broker_without_retained_messages_is_sent_requested_chunks_only(self, served, link):
        served.retain = False
        served.publish(Blob(BLOB, model()), chunks=False)
        served.repair(model().digest, (2,))
        assert [decode_chunk(payload).index for _, payload, _ in link.published] == [2]

    def test_model_of_the_round_before_is_published_once_a_device_needs_chunks(self, served, link):
        served.publish(Blob(BLOB, model()), chunks=False)
        served.publish(Blob(BLOB, model()), chunks=True)
        served.publish(Blob(BLOB, model()), chunks=False)
        assert len(link.retained()) == len(link.published) == 3

    def test_store_holds_the_blobs_of_the_last_call_and_none_after_the_end(self, served, link, store):
        store.mkdir()
        (store / ("ab" * 32)).write_bytes(b"of a coordinator that was killed")
        (store / "of-somebody-else").mkdir()
        other = model(b"n" * 150)
        served.publish(Blob(BLOB, model()), [Blob(b"n" * 150, other)], chunks=False)
        assert {path.name for path in store.iterdir()} == {model().digest, other.digest, "of-somebody-else"}
        served.publish(Blob(b"n" * 150, other), chunks=False)
        assert {path.name for path in store.iterdir()} == {other.digest, "of-somebody-else"}
        served.close()
        assert [path.name for path in store.iterdir()] == ["of-somebody-else"]
        assert link.published == []

    def test_model_that_the_store_refuses_is_published_in_chunks(self, served, link, store, caplog):
        store.touch()
        assert served.publish(Blob(BLOB, model()), chunks=False) == {}
        assert len(link.retained()) == 3
        assert "published as chunks" in caplog.text
        store.unlink()
        assert served.publish(Blob(BLOB, model()), chunks=False).keys() == {model().digest}


@pytest.fixture
def current(link: RecordedLink, tmp_path: Path) -> ModelPublisher:
    """A publisher that has published a model."""
    made = publisher(link, tmp_path)
    made.publish(Blob(BLOB, model()))
    return made


def publisher(link: RecordedLink, directory: Path) -> ModelPublisher:
    """Return the publisher of a coordinator that just started in `directory`."""
    return ModelPublisher(link, "kitchen", directory / "published.txt")


def test_chunks_are_retained_under_their_digest(current, link):
    chunks = [decode_chunk(payload) for _, payload, _ in link.published]
    assert b"".join(chunk.data for chunk in chunks) == BLOB
    assert link.retained() == {f"fedpatch/1/kitchen/blob/{model().digest}/{index}" for index in range(3)}


def test_close_retracts_the_model_and_its_note(current, link, tmp_path):
    current.close()
    assert link.retained() == set()
    assert list(tmp_path.iterdir()) == []


def test_next_model_replaces_the_one_before(current, link):
    other = model(b"n" * 150)
    current.publish(Blob(b"n" * 150, other))
    assert link.retained() == {f"fedpatch/1/kitchen/blob/{other.digest}/{index}" for index in range(2)}


def test_model_of_a_killed_coordinator_is_retracted_by_the_next(current, link, tmp_path):
    publisher(link, tmp_path).drain()
    assert link.retained() == set()


def test_broker_without_retained_messages_is_sent_no_retraction(link, tmp_path):
    publisher(link, tmp_path).publish(Blob(BLOB, model()))
    later = RecordedLink()
    current = publisher(later, tmp_path)
    current.retain = False
    current.drain()
    assert later.published == []


def test_note_is_kept_until_the_retraction_arrived(current, link, tmp_path, monkeypatch):
    monkeypatch.setattr("fedpatch.coordinator.runtime.model_publisher.CLOSE_TIMEOUT_S", 0.0)
    link.idle = False
    current.close()
    later = RecordedLink()
    publisher(later, tmp_path).drain()
    assert [(payload, retain) for _, payload, retain in later.published] == [(b"", True)] * 3


def test_broker_without_retained_messages_is_sent_requested_chunks_only(link, tmp_path):
    current = publisher(link, tmp_path)
    current.retain = False
    current.publish(Blob(BLOB, model()))
    current.republish()
    assert link.published == []
    current.repair(model().digest, (1,))
    current.close()
    assert [decode_chunk(payload).index for _, payload, _ in link.published] == [1]
    assert link.retained() == set()


def test_smaller_packet_limit_raises_with_the_remedy(link, tmp_path, monkeypatch):

    def refuse(*_: object, **__: object) -> bool:
        raise BrokerError("localhost:1883 takes packets of 9000 bytes, less than a message; use smaller chunks")

    monkeypatch.setattr(link, "publish", refuse)
    with pytest.raises(BrokerError, match=r"fedpatch resume.*--chunk-kib"):
        publisher(link, tmp_path).publish(Blob(BLOB, model()))


def test_full_queue_loses_chunks_that_can_be_requested(link, tmp_path):
    link.full = True
    current = publisher(link, tmp_path)
    current.publish(Blob(BLOB, model()))
    link.full = False
    current.repair(model().digest, (2,))
    assert [decode_chunk(payload).index for _, payload, _ in link.published] == [2]


def test_note_holds_any_number_of_models(link, tmp_path):
    link.idle = False
    current = publisher(link, tmp_path)
    blobs = [bytes([index]) * 150 for index in range(100)]
    for blob in blobs:
        current.publish(Blob(blob, model(blob)))
    later = RecordedLink()
    publisher(later, tmp_path).drain()
    assert len({topic for topic, payload, _ in later.published if payload == b""}) == 200


def test_retraction_that_found_no_room_is_repeated(current, link, tmp_path):
    link.full = True
    current.retract()
    link.full = False
    current.drain()
    current.drain()
    assert link.retained() == set()
    assert list(tmp_path.iterdir()) == []


def test_model_published_again_is_not_retracted(current, link):
    link.idle = False
    current.retract()
    current.publish(Blob(BLOB, model()))
    link.idle = True
    current.drain()
    assert len(link.retained()) == 3


def test_damaged_note_loses_the_damaged_lines(link, tmp_path):
    (tmp_path / "published.txt").write_text(f"{model().digest} 3\n{model().digest} 99999\nrubbish\n")
    publisher(link, tmp_path).drain()
    assert len(link.published) == 3
