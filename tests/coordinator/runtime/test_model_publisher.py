"""The global model's chunks on the broker, and that none are left there."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedpatch.coordinator.runtime.model_publisher import Blob, ModelPublisher
from fedpatch.shared.errors import BrokerError
from fedpatch.shared.wire.chunked_transfer import decode_chunk
from tests.coordinator.fake_link import RecordedLink
from tests.support.specs import model

BLOB = b"m" * 250


@pytest.fixture
def link() -> RecordedLink:
    """A broker that takes everything at once."""
    return RecordedLink()


def publisher(link: RecordedLink, directory: Path) -> ModelPublisher:
    """The publisher of a coordinator that just started in `directory`."""
    return ModelPublisher(link, "kitchen", directory / "published.txt")


def test_chunks_are_retained_under_the_name_of_their_content(link, tmp_path):
    """Whoever subscribes later gets them too."""
    publisher(link, tmp_path).publish(Blob(BLOB, model()))
    chunks = [decode_chunk(payload) for _, payload, _ in link.published]
    assert b"".join(chunk.data for chunk in chunks) == BLOB
    assert link.retained() == {f"fedpatch/1/kitchen/blob/{model().digest}/{index}" for index in range(3)}


def test_a_model_that_is_taken_back_leaves_nothing(link, tmp_path):
    """A broker keeps what is retained for ever."""
    current = publisher(link, tmp_path)
    current.publish(Blob(BLOB, model()))
    current.close()
    assert link.retained() == set()
    assert list(tmp_path.iterdir()) == []


def test_the_next_model_replaces_the_former(link, tmp_path):
    """There is one model on the broker at a time."""
    current = publisher(link, tmp_path)
    current.publish(Blob(BLOB, model()))
    other = model(b"n" * 150)
    current.publish(Blob(b"n" * 150, other))
    assert link.retained() == {f"fedpatch/1/kitchen/blob/{other.digest}/{index}" for index in range(2)}


def test_what_a_killed_coordinator_left_is_taken_back_by_the_next(link, tmp_path):
    """It finds the name in its directory, and acts when it knows whether the broker retains anything."""
    publisher(link, tmp_path).publish(Blob(BLOB, model()))
    publisher(link, tmp_path).drain()
    assert link.retained() == set()


def test_a_broker_that_retains_nothing_is_told_nothing_of_what_was_left(link, tmp_path):
    """It would close the connection at each retained message, even at an empty one."""
    publisher(link, tmp_path).publish(Blob(BLOB, model()))
    later = RecordedLink()
    current = publisher(later, tmp_path)
    current.retain = False
    current.drain()
    assert later.published == []


def test_a_model_is_remembered_until_the_broker_has_taken_it_back(link, tmp_path, monkeypatch):
    """To publish is not to arrive: a coordinator may be killed, or the broker away, before it does."""
    monkeypatch.setattr("fedpatch.coordinator.runtime.model_publisher.CLOSE_TIMEOUT_S", 0.0)
    current = publisher(link, tmp_path)
    current.publish(Blob(BLOB, model()))
    link.idle = False
    current.close()
    later = RecordedLink()
    publisher(later, tmp_path).drain()
    assert [(payload, retain) for _, payload, retain in later.published] == [(b"", True)] * 3


def test_nothing_is_retained_where_the_broker_cannot(link, tmp_path):
    """Such a broker would close the connection; devices ask for the chunks instead, and get those and no others."""
    current = publisher(link, tmp_path)
    current.retain = False
    current.publish(Blob(BLOB, model()))
    current.republish()
    assert link.published == []
    current.repair(model().digest, (1,))
    current.close()
    assert [decode_chunk(payload).index for _, payload, _ in link.published] == [1]
    assert link.retained() == set()


def test_a_broker_that_takes_smaller_packets_than_before_ends_the_run_with_the_mend(link, tmp_path, monkeypatch):
    """Its configuration may change while a run goes on; a resume measures again."""

    def refuse(*_: object, **__: object) -> bool:
        raise BrokerError("localhost:1883 takes packets of 9000 bytes, less than a message; use smaller chunks")

    monkeypatch.setattr(link, "publish", refuse)
    with pytest.raises(BrokerError, match=r"fedpatch resume.*--chunk-kib"):
        publisher(link, tmp_path).publish(Blob(BLOB, model()))


def test_a_full_queue_stops_the_flow_and_nothing_else(link, tmp_path):
    """Devices ask for what they miss."""
    link.full = True
    current = publisher(link, tmp_path)
    current.publish(Blob(BLOB, model()))
    link.full = False
    current.repair(model().digest, (2,))
    assert [decode_chunk(payload).index for _, payload, _ in link.published] == [2]


def test_any_number_of_models_is_remembered(link, tmp_path):
    """A broker far away acknowledges later than the next round begins."""
    link.idle = False
    current = publisher(link, tmp_path)
    blobs = [bytes([index]) * 150 for index in range(100)]
    for blob in blobs:
        current.publish(Blob(blob, model(blob)))
    later = RecordedLink()
    publisher(later, tmp_path).drain()
    assert len({topic for topic, payload, _ in later.published if payload == b""}) == 200


def test_what_found_no_room_is_taken_back_later(link, tmp_path):
    """A full queue must not leave chunks on the broker for ever."""
    current = publisher(link, tmp_path)
    current.publish(Blob(BLOB, model()))
    link.full = True
    current.retract()
    link.full = False
    current.drain()
    current.drain()
    assert link.retained() == set()
    assert list(tmp_path.iterdir()) == []


def test_the_same_model_again_is_not_taken_back(link, tmp_path):
    """After a failed round the model is what it was, and so is its name."""
    current = publisher(link, tmp_path)
    current.publish(Blob(BLOB, model()))
    link.idle = False
    current.retract()
    current.publish(Blob(BLOB, model()))
    link.idle = True
    current.drain()
    assert len(link.retained()) == 3


def test_a_damaged_note_costs_the_damaged_lines(link, tmp_path):
    """What can be read is taken back."""
    (tmp_path / "published.txt").write_text(f"{model().digest} 3\n{model().digest} 99999\nrubbish\n")
    publisher(link, tmp_path).drain()
    assert len(link.published) == 3
