"""A job whose chunks are fetched by URL, which needs no requests to the coordinator."""

from __future__ import annotations

from dataclasses import replace

from fedpatch.device_agent.job.job_effects import JobState, StartDownload, StartTraining
from fedpatch.device_agent.job.job_events import ChunkReceived, DownloadByBroker, DownloadStarted, LinkRestored
from fedpatch.device_agent.job.job_state_machine import Job
from fedpatch.shared.wire.chunks import cut
from fedpatch.shared.wire.messages import Need
from tests.device_agent.jobs import BLOB, REQUEST, ask, replies, requested
from tests.support.specs import envelope_of, model


def downloading_by_url() -> Job:
    """A job that fetches since second 10; its round ends at second 310."""
    job = Job(max_blob_bytes=10_000)
    ask(job)
    assert job.handle(DownloadStarted({model().digest: ()}, by_url=True), 10.0) == []
    return job


def test_nothing_is_asked_of_the_coordinator_while_chunks_are_fetched():
    job = downloading_by_url()
    assert job.next_deadline() == 310.0
    assert replies(job.tick(100.0)) == []
    job.handle(LinkRestored(), 100.0)
    assert replies(job.tick(200.0)) == []
    for index in range(2):
        assert job.handle(ChunkReceived(cut(BLOB, model(), index)), 200.0)
    *_, train = job.handle(ChunkReceived(cut(BLOB, model(), 2)), 201.0)
    assert isinstance(train, StartTraining) and train.download_s == 191.0


def test_missing_chunks_are_asked_for_once_the_fetch_has_failed():
    job = downloading_by_url()
    job.handle(ChunkReceived(cut(BLOB, model(), 1)), 20.0)
    assert job.handle(DownloadByBroker(), 30.0) == []
    assert job.next_deadline() == 31.0
    assert replies(job.tick(31.0)) == [Need(model().digest, b"\x05")]


def test_newer_epoch_without_a_url_leaves_the_fetch_alone():
    job = downloading_by_url()
    effects = job.handle(requested(envelope_of(REQUEST, 1, epoch=2)), 20.0)
    assert not [effect for effect in effects if isinstance(effect, StartDownload)]
    assert replies(job.tick(100.0)) == []


def test_newer_epoch_with_a_url_begins_another_fetch():
    job = downloading_by_url()
    envelope = envelope_of(replace(REQUEST, model=model().at("https://cdn.example/new")), 1, epoch=2)
    [start] = [effect for effect in job.handle(requested(envelope), 20.0) if isinstance(effect, StartDownload)]
    assert start.blobs[0].url == "https://cdn.example/new"


def test_event_of_a_fetch_that_is_over_changes_nothing():
    job = Job(max_blob_bytes=10_000)
    assert job.handle(DownloadByBroker(), 10.0) == []
    assert job.state is JobState.IDLE
