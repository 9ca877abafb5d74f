"""Stores that have only a part of S3's requests, and requests that a proxy of the environment takes."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

import pytest

from fedpatch.coordinator.blobs import object_blobs
from fedpatch.coordinator.blobs.object_blobs import ObjectBlobs
from fedpatch.shared.errors import StoreUnavailable

_DATE = "Thu, 01 Jan 2026 00:00:00 GMT"
_ENTRY = "<Contents><Key>{}</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified><ETag>e</ETag><Size>1</Size></Contents>"


class _Store(BaseHTTPRequestHandler):
    """A store without DeleteObjects, which refuses it with `refusal`."""

    protocol_version = "HTTP/1.1"
    objects: dict[str, bytes]
    refusal: tuple[int, bytes]
    posts: int
    puts_fail = False

    def do_PUT(self) -> None:
        content = self.rfile.read(int(self.headers["Content-Length"]))
        if self.puts_fail:
            self._answer(400, b"<Error><Code>StrangeThing</Code></Error>")
            return
        self.objects[urlsplit(self.path).path] = content
        self._answer(200)

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        if "list-type" not in parse_qs(parts.query):
            found = self.objects.get(parts.path)
            self._answer(200 if found is not None else 404, found or b"<Error><Code>NoSuchKey</Code></Error>")
            return
        entries = "".join(_ENTRY.format(key.removeprefix("/bucket/")) for key in sorted(self.objects))
        page = f"<ListBucketResult><Name>bucket</Name><IsTruncated>false</IsTruncated>{entries}</ListBucketResult>"
        self._answer(200, page.encode())

    def do_DELETE(self) -> None:
        self.objects.pop(urlsplit(self.path).path, None)
        self._answer(204)

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        type(self).posts += 1
        self._answer(*self.refusal)

    def _answer(self, status: int, body: bytes = b"") -> None:
        self.send_response(status)
        self.send_header("ETag", "e")
        self.send_header("Last-Modified", _DATE)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: object) -> None:
        """Log nothing."""


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[_Store]]:
    handler = type("Store", (_Store,), {"objects": {}, "refusal": (501, b""), "posts": 0})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{server.server_port}")
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "b")
        yield handler
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (501, b"<Error><Code>NotImplemented</Code></Error>"),
        (501, b""),
        (405, b"<Error><Code>MethodNotAllowed</Code></Error>"),
        (400, b"<Error><Code>MissingSecurityHeader</Code></Error>"),
    ],
)
def test_objects_are_deleted_singly_in_a_store_that_deletes_not_many(store: type[_Store], status: int, body: bytes):
    store.refusal = (status, body)
    blobs = ObjectBlobs("bucket", "p")
    for key in ("updates/a", "updates/b", "c", "kept"):
        blobs.put(key, b"x")
    blobs.delete("updates/a", "updates/b")
    blobs.delete("c", "absent")
    assert list(store.objects) == ["/bucket/p/kept"]
    assert store.posts == 1, "the store was asked again, although it had refused"


def test_check_of_a_store_needs_no_deletion_of_many(store: type[_Store]):
    ObjectBlobs("bucket", "p").check()
    assert (store.objects, store.posts) == ({}, 0)


def test_unknown_refusal_names_the_request(store: type[_Store]):
    store.puts_fail = True
    with pytest.raises(StoreUnavailable, match=r"StrangeThing in answer to PUT http://127\.0\.0\.1:\d+/bucket/p/a"):
        ObjectBlobs("bucket", "p", 0.1).put("a", b"x")


@pytest.mark.parametrize(("no_proxy", "named"), [("", True), ("store.internal", False)])
def test_proxy_of_the_environment_is_named_where_requests_go_through_it(
    monkeypatch: pytest.MonkeyPatch, no_proxy: str, named: bool
):
    monkeypatch.setattr(object_blobs, "_LOOK_S", 0.01)
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://store.internal:9000")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "b")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    monkeypatch.setenv("no_proxy", no_proxy)
    assert ("no_proxy has store.internal" in object_blobs._proxy_hint("http", "store.internal")) == named
