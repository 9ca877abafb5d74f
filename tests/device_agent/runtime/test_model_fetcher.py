"""Fetches of models by URL, from nginx, an S3 server and servers that misbehave."""

from __future__ import annotations

import random
import ssl
from collections.abc import Iterator, Mapping
from contextlib import suppress
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from queue import SimpleQueue
from threading import Event
from time import sleep

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedpatch.coordinator.blobs.object_blobs import ObjectBlobs
from fedpatch.device_agent.runtime import model_fetcher
from fedpatch.device_agent.runtime.model_fetcher import (
    ChunkFetched,
    FetchEnded,
    FetchEvent,
    ModelFetch,
    ModelFetcher,
    shown,
)
from fedpatch.shared.errors import UsageError
from fedpatch.shared.mqtt.broker_settings import BrokerSettings
from fedpatch.shared.wire.chunks import describe
from fedpatch.shared.wire.messages import Manifest
from tests.support.brokers import HOST, PATIENCE_S
from tests.support.identities import Certified
from tests.support.nginx import Nginx
from tests.support.s3_server import S3Server
from tests.support.web_server import sends, server

BLOB = random.Random(1).randbytes(250_000)
CHUNK_BYTES = 16_384
MANIFEST = describe(BLOB, chunk_bytes=CHUNK_BYTES, encoding="fp32", raw_bytes=len(BLOB), schema="00" * 32)
ALL = set(range(MANIFEST.chunk_count))


def fetch(
    url: str, have: Mapping[str, set[int]] | None = None, *, plain_loopback: bool = True, ca_file: Path | None = None
) -> tuple[dict[int, bytes], FetchEnded]:
    """The received chunks, and the end of the fetch."""
    queue: SimpleQueue[FetchEvent] = SimpleQueue()
    fetcher = ModelFetcher(queue.put, ca_files=[ca_file] if ca_file else [], plain_loopback=plain_loopback)
    begun = fetcher.begin([MANIFEST.at(url)], have or {MANIFEST.digest: set()})
    assert begun is not None
    chunks: dict[int, bytes] = {}
    while isinstance(event := queue.get(timeout=PATIENCE_S), ChunkFetched):
        assert event.chunk.index not in chunks
        chunks[event.chunk.index] = event.chunk.data
        event.fetch.taken()
    return chunks, event


def unwanted(event: FetchEvent) -> None:
    """Fail on an event of a fetch that must not begin."""
    raise AssertionError(event)


def right(index: int) -> bytes:
    return BLOB[index * CHUNK_BYTES : (index + 1) * CHUNK_BYTES]


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[str, Path]]:
    """URL of the blob on an nginx server, and the server's CA."""
    with Nginx() as nginx:
        (nginx.root / "blob").write_bytes(BLOB)
        yield f"{nginx.url}blob", nginx.ca_file


@pytest.mark.medium
@given(held=st.sets(st.sampled_from(sorted(ALL))))
@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_missing_chunks_come_once_each_with_their_bytes(served, held):
    url, ca_file = served
    if held == ALL:
        return
    chunks, end = fetch(url, {MANIFEST.digest: held}, ca_file=ca_file)
    assert chunks == {index: right(index) for index in ALL - held}
    assert (end.problem, end.wasted_bytes) == ("", 0)


def test_presigned_url_gives_the_blob_until_it_expires(s3_server: S3Server, s3: str):
    store = ObjectBlobs("fleet", s3.removeprefix("s3://fleet/"))
    store.put("blob", BLOB)
    chunks, _ = fetch(store.sign("blob", 600.0))
    assert set(chunks) == ALL
    url = store.sign("blob", 1.0)
    assert "X-Amz-Signature" in url
    sleep(2.1)
    chunks, end = fetch(url)
    assert not chunks and "403" in end.problem and "expired" in end.problem
    assert "Amz" not in end.problem and shown(url) in end.problem


@pytest.mark.parametrize(
    ("code", "remedy"),
    [
        (20, "set models_ca_file to its CA"),
        (9, "set the clock"),
        (10, "renew the server's certificate; where it is not old, set the clock"),
        (62, "a name of the server's certificate"),
    ],
)
def test_refused_certificate_of_the_server_has_the_remedy_of_its_cause(code: int, remedy: str):
    error = ssl.SSLCertVerificationError()
    error.verify_code, error.verify_message = code, "the words of OpenSSL"
    fetch = ModelFetch((), {}, ssl.create_default_context(), unwanted, "models_ca_file")
    assert remedy in fetch._words(error)


def test_lost_connections_cost_no_chunk_that_came(monkeypatch):
    """The server closes each connection after two and a half chunks, until the whole blob was sent after five failures."""
    monkeypatch.setattr(model_fetcher, "PAUSE_S", 0.01)
    asked: list[str] = []

    def breaks_off(handler: BaseHTTPRequestHandler) -> None:
        asked.append(handler.headers["Range"])
        start, stop = map(int, asked[-1].removeprefix("bytes=").split("-"))
        body = BLOB[start : stop + 1]
        handler.send_response(206)
        handler.send_header("Content-Range", f"bytes {start}-{stop}/{len(BLOB)}")
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body[: CHUNK_BYTES * 5 // 2])
        handler.close_connection = True

    with server(breaks_off) as url:
        chunks, end = fetch(url)
    assert chunks == {index: right(index) for index in ALL}
    assert end.problem == "" and end.wasted_bytes == (len(asked) - 1) * CHUNK_BYTES // 2
    assert asked[1] == f"bytes={2 * CHUNK_BYTES}-{len(BLOB) - 1}"


def test_server_without_ranges_sends_all_and_what_was_there_is_counted_as_wasted():
    with server(sends(200, BLOB)) as url:
        chunks, end = fetch(url, {MANIFEST.digest: {0, 2}})
    assert set(chunks) == ALL - {0, 2}
    assert (end.problem, end.wasted_bytes) == ("", 2 * CHUNK_BYTES)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (sends(404), "404"),
        (sends(403), "403"),
        (sends(200, BLOB + b"more"), "another size"),
        (sends(206, BLOB[:100], Content_Range=f"bytes 0-99/{len(BLOB)}"), "another size"),
        (sends(206, BLOB), "another size"),
        (sends(200, BLOB, Content_Encoding="gzip"), "compressed"),
        (sends(302, Location="http://localhost:1/elsewhere"), "another server"),
        (sends(302, Location="file:///etc/passwd"), "another server"),
        (sends(302), "more than 3 redirects"),
        (sends(503), "503"),
        (sends(200, BLOB[:1000], Content_Length=str(len(BLOB))), "lost"),
    ],
    ids=lambda one: one if isinstance(one, str) else "",
)
def test_answer_that_is_not_the_blob_gives_no_chunk_and_a_reason_without_the_query(answer, words, monkeypatch):
    monkeypatch.setattr(model_fetcher, "PAUSE_S", 0.01)
    monkeypatch.setattr(model_fetcher, "SILENT_S", 0.5)
    with server(answer) as url:
        chunks, end = fetch(f"{url}?X-Amz-Signature=secret")
    assert not chunks
    assert (words in end.problem or "no answer" in end.problem) and url in end.problem
    assert "secret" not in end.problem


def test_slow_server_is_given_up(monkeypatch):
    monkeypatch.setattr(model_fetcher, "SLOW_S", 0.3)

    def trickles(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.send_header("Content-Length", str(len(BLOB)))
        handler.end_headers()
        for at in range(0, len(BLOB), 100):
            handler.wfile.write(BLOB[at : at + 100])
            sleep(0.05)

    with server(trickles) as url:
        chunks, end = fetch(url)
    assert not chunks and "no chunk within 0.3 s" in end.problem
    assert 0 < end.wasted_bytes < CHUNK_BYTES


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "TLS"])
def test_server_that_sends_its_head_byte_by_byte_is_given_up(tmp_path, monkeypatch, tls):
    monkeypatch.setattr(model_fetcher, "SLOW_S", 0.3)
    ended = Event()

    def trickles(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.flush_headers()
        handler.wfile.write(b"X-Slow: ")
        with suppress(OSError):
            while not ended.wait(0.05):
                handler.wfile.write(b"x")

    authority = Certified(tmp_path / "ca").make()
    place = authority.directory / "broker"
    with server(trickles, (place / "broker.crt", place / "broker.key") if tls else None) as url:
        try:
            chunks, end = fetch(url, ca_file=authority.ca_file)
        finally:
            ended.set()
    assert not chunks and "no chunk within 0.3 s" in end.problem


@pytest.mark.parametrize(("content", "words"), [(None, "No such file"), ("no certificate", "not a file of CA")])
@pytest.mark.parametrize("prefix", ["", "up_"])
def test_ca_file_that_cannot_be_used_is_an_error_at_the_start(tmp_path, content, words, prefix):
    path = tmp_path / "ca.crt"
    if content is not None:
        path.write_text(content)
    connection = BrokerSettings(broker=f"mqtt://{HOST}")
    with pytest.raises(UsageError, match=f"^{prefix}models_ca_file: {path}: .*{words}"):
        ModelFetcher.of(connection, path, lambda _: None, prefix=prefix)


def test_certificate_of_an_unknown_ca_is_refused(served):
    url, _ = served
    chunks, end = fetch(url)
    assert not chunks and "models_ca_file" in end.problem


@pytest.mark.parametrize(
    "url",
    [
        "http://cdn.example/demo/ab",
        "ftp://cdn.example/ab",
        "https://user:secret@cdn.example/ab",
        "https:///ab",
        "https://cdn.example/a b",
        "https://[broken/ab",
        "nothing",
        "file:///etc/passwd",
        f"http://{HOST}/ab",
    ],
)
def test_url_that_must_not_be_used_is_not_asked_for(url, caplog):
    """Without `insecure`, and with a broker that is not on this machine."""
    fetcher = ModelFetcher(unwanted)
    assert fetcher.begin([MANIFEST.at(url)], {MANIFEST.digest: set()}) is None
    assert "secret" not in caplog.text and "downloading by MQTT" in caplog.text


@pytest.mark.parametrize(
    ("manifest", "have"), [(MANIFEST, set()), (MANIFEST.at("https://cdn.example/ab"), ALL)], ids=["no URL", "complete"]
)
def test_blob_without_url_or_missing_chunks_needs_no_fetch(manifest: Manifest, have: set[int], caplog):
    assert ModelFetcher(unwanted).begin([manifest], {MANIFEST.digest: have}) is None
    assert not caplog.records


def test_fetch_that_is_stopped_ends_without_a_problem():
    """The server sends nothing more, and no consumer takes the chunks."""
    queue: SimpleQueue[FetchEvent] = SimpleQueue()
    with server(sends(200, BLOB)) as url:
        begun = ModelFetcher(queue.put, plain_loopback=True).begin([MANIFEST.at(url)], {MANIFEST.digest: set()})
        assert begun is not None
        for _ in range(model_fetcher.WAITING):
            assert isinstance(queue.get(timeout=PATIENCE_S), ChunkFetched)
        begun.stop()
        end = queue.get(timeout=PATIENCE_S)
    assert isinstance(end, FetchEnded) and end.problem == ""
