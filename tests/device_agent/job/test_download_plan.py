"""The download of a model: the smallest usable one, and the whole model in any doubt."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpatch.device_agent.job.download_plan import DownloadPlan, expected_bytes, plan_download
from fedpatch.shared.wire.messages import ENCODINGS, Manifest, ModelDelta, WorkRequest
from tests.device_agent.delta_jobs import CONTENT, STEPS, VERSIONS, delta_request

LIMIT = 10_000


@pytest.mark.parametrize("begins", range(len(STEPS)))
def test_plan_from_a_held_version_has_the_remaining_deltas(begins):
    request = delta_request()
    way = plan_download(request, VERSIONS[begins].digest, LIMIT)
    assert way == DownloadPlan(request.model, VERSIONS[begins].digest, request.deltas[begins:])
    assert way.blobs == tuple(step.manifest for step in request.deltas[begins:])
    assert way.saved_bytes == request.model.size_bytes - sum(one.size_bytes for one in way.blobs) > 0


def test_plan_is_described_in_words():
    ways = [plan_download(delta_request(), held, LIMIT) for held in ("", *(one.digest for one in VERSIONS[-3:]))]
    texts = [
        "the whole model",
        "the model held and 2 steps from there",
        "the model held and 1 step from there",
        "the model held",
    ]
    assert list(map(str, ways)) == texts


def test_plan_with_the_held_model_downloads_nothing():
    for request in (delta_request(), replace(delta_request(), deltas=())):
        way = plan_download(request, request.model.digest, LIMIT)
        assert (way.held, way.blobs) == (request.model.digest, ())


@pytest.mark.parametrize("held", ["", "77" * 32], ids=["nothing", "another"])
def test_plan_without_a_useful_version_downloads_the_whole_model(held):
    assert plan_download(delta_request(), held, LIMIT) == DownloadPlan(delta_request().model)
    assert plan_download(delta_request(), held, LIMIT).blobs == (delta_request().model,)


@pytest.mark.parametrize(
    "spoilt",
    [
        {"encoding": "delta-of-tomorrow"},
        {"schema": "77" * 32},
        {"size_bytes": LIMIT + 1, "chunk_count": 101},
        {"raw_bytes": LIMIT + 1},
        {"chunk_count": 9},
        {"digest": STEPS[0].digest},
        {"size_bytes": 250, "chunk_count": 3},
    ],
    ids=["foreign", "another schema", "too large", "too large unpacked", "contradictory", "twice", "no shorter"],
)
def test_steps_that_cannot_be_gone_are_no_reason_against_the_work(spoilt):
    """The whole model is always available; a device with a version after the bad delta is not affected."""
    request = delta_request()
    bad = replace(request.deltas[1], manifest=replace(request.deltas[1].manifest, **spoilt))
    request = replace(request, deltas=(request.deltas[0], bad, request.deltas[2]))
    assert plan_download(request, VERSIONS[0].digest, LIMIT) == DownloadPlan(request.model)
    assert plan_download(request, VERSIONS[2].digest, LIMIT).blobs == (request.deltas[2].manifest,)


@pytest.mark.parametrize("saved_bytes", [0, 1])
def test_plan_with_deltas_saves_a_byte_at_least(saved_bytes):
    request = delta_request()
    sizes = [delta.manifest.size_bytes for delta in request.deltas]
    size = request.model.size_bytes - sizes[0] - sizes[2] - saved_bytes
    large = replace(request.deltas[1].manifest, size_bytes=size, chunk_count=-(-size // 100))
    request = replace(
        request, deltas=(request.deltas[0], replace(request.deltas[1], manifest=large), request.deltas[2])
    )
    plan = plan_download(request, VERSIONS[0].digest, LIMIT)
    assert (plan.saved_bytes, bool(plan.held)) == (saved_bytes, saved_bytes > 0)


def test_steps_that_begin_twice_at_what_is_held_are_gone_from_the_last():
    """A coordinator went back and forth; the plan begins with the last delta from the held version."""
    request = delta_request()
    twice = replace(request, deltas=(replace(request.deltas[0], base=VERSIONS[2].digest), *request.deltas[1:]))
    assert plan_download(twice, VERSIONS[2].digest, LIMIT).steps == twice.deltas[2:]


@pytest.mark.parametrize(
    ("encoding", "held", "expected"),
    [("fp32", "", 500), ("fp32", VERSIONS[1].digest, 350), ("delta-int8", VERSIONS[2].digest, 145)],
    ids=["as ever", "by steps", "both by steps"],
)
def test_an_owner_who_pays_for_traffic_is_asked_for_what_the_work_will_take(encoding, held, expected):
    """The download, and an update that counts as large as the model, or as half of the model if it is a delta."""
    request = replace(delta_request(), encoding=encoding)
    assert expected_bytes(request, plan_download(request, held, LIMIT)) == expected


digests = st.sampled_from([one.digest for one in VERSIONS] + ["77" * 32])
sizes = st.integers(1, 400)
blobs = st.builds(
    lambda digest, size, encoding: Manifest(digest, size, 100, -(-size // 100), encoding, size, VERSIONS[0].schema),
    digests,
    sizes,
    st.sampled_from((*ENCODINGS, "delta-of-tomorrow")),
)
requests = st.builds(
    lambda model, deltas: replace(delta_request(), model=model, deltas=tuple(deltas)),
    blobs,
    st.lists(st.builds(ModelDelta, digests, st.just(CONTENT[0]), blobs), max_size=16),
)


@given(requests, st.just("") | digests)
def test_a_way_begins_with_what_is_held_ends_with_the_model_and_costs_no_more_than_that(request_, held):
    request: WorkRequest = request_
    way = plan_download(request, held, LIMIT)
    assert way.model == request.model
    assert way.saved_bytes >= 0
    assert way.held in ("", held)
    if way.steps:
        assert way.steps[0].base == held
        assert way.steps == request.deltas[-len(way.steps) :]
        assert {one.encoding for one in way.blobs} <= set(ENCODINGS)
