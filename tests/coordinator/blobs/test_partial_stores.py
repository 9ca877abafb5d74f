"""Stores that have only a part of S3's requests, and requests that a proxy of the environment takes."""

from __future__ import annotations

import os
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from fedpatch.coordinator.blobs import object_blobs
from fedpatch.coordinator.blobs.object_blobs import ObjectBlobs
from fedpatch.coordinator.pki.certificate_authority import BROKER
from fedpatch.shared.errors import StoreUnavailable, UsageError
from tests.support.identities import Certified

_DATE = "Thu, 01 Jan 2026 00:00:00 GMT"
_ENTRY = "<Contents><Key>{}</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified><ETag>e</ETag><Size>1</Size></Contents>"


class _Store(BaseHTTPRequestHandler):
    """A store without DeleteObjects, which refuses it with `refusal`."""

    protocol_version = "HTTP/1.1"
    objects: dict[str, bytes]
    refusal: tuple[int, bytes]
    posts: int
    etag = "e"
    put_refusal: tuple[int, bytes] | None = None

    def do_PUT(self) -> None:
        content = self.rfile.read(int(self.headers["Content-Length"]))
        if self.put_refusal is not None:
            self._answer(*self.put_refusal)
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
        if self.etag:
            self.send_header("ETag", self.etag)
        self.send_header("Last-Modified", _DATE)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: object) -> None:
        """Log nothing."""


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[_Store]]:
    handler = type("Store", (_Store,), {"objects": {}, "refusal": (501, b""), "posts": 0})
    with _served(handler) as port:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{port}")
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "b")
        yield handler


@contextmanager
def _served(handler: type[_Store], context: ssl.SSLContext | None = None) -> Iterator[int]:
    """Serve requests, with TLS if there is a context; yield the port."""
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        if context is not None:
            server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


@pytest.fixture
def tls_pair(tmp_path: Path) -> tuple[Path, ssl.SSLContext]:
    """The file of a CA, and the context of a server at localhost that it has signed."""
    made = Certified(tmp_path / "ca")
    with made.open() as authority:
        authority.issue(BROKER, "broker", now=time.time(), days=9, names=["localhost"])
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(made.directory / "broker" / "broker.crt", made.directory / "broker" / "broker.key")
    return made.ca_file, context


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
    store.put_refusal = 400, b"<Error><Code>StrangeThing</Code></Error>"
    with pytest.raises(StoreUnavailable, match=r"StrangeThing in answer to PUT http://127\.0\.0\.1:\d+/bucket/p/a"):
        ObjectBlobs("bucket", "p", 0.1).put("a", b"x")


@pytest.mark.parametrize(
    ("refusal", "problem", "remedy"),
    [
        ((403, b""), "answers 403 Forbidden", "allow s3:GetObject, s3:PutObject"),
        ((404, b"<html>nothing</html>"), "answers 404 Not Found", "which is not that of its web pages"),
        ((405, b""), "answers 405", "which is not that of its web pages"),
        ((502, b"<html>bad gateway</html>"), "answers 502 Bad Gateway", "start the store behind this address"),
        ((507, b""), "answers 507", "make room in the store"),
        ((507, b"<Error><Code>XMinioStorageFull</Code></Error>"), "XMinioStorageFull", "make room in the store"),
        ((301, b""), "points to another region", "set AWS_REGION"),
        ((413, b"<html>nginx</html>"), "answers 413", "client_max_body_size"),
        ((429, b""), "answers 429", "wait until it is less busy"),
        ((503, b"<Error><Code>SlowDown</Code></Error>"), "SlowDown", "wait until it is less busy"),
        ((400, b"<Error><Code>EntityTooLarge</Code></Error>"), "EntityTooLarge", "raise the size of an object"),
        ((501, b"<Error><Code>NotImplemented</Code></Error>"), "NotImplemented in answer to PUT", "use another store"),
        (
            (405, b"<Error><Code>MethodNotAllowed</Code></Error>"),
            "MethodNotAllowed in answer to PUT",
            "use another store",
        ),
        ((400, b"<Error><Code>KMS.NotFoundException</Code></Error>"), "KMS.NotFoundException", "see the log"),
        ((400, b"an HTTP request to an HTTPS server"), "answers 400 Bad Request", "write https:// in AWS_ENDPOINT_URL"),
    ],
)
def test_answer_that_is_no_success_is_not_called_silence(
    store: type[_Store], refusal: tuple[int, bytes], problem: str, remedy: str
):
    store.put_refusal = refusal
    with pytest.raises(StoreUnavailable) as raised:
        ObjectBlobs("bucket", "p", 0.1).put("a", b"x")
    assert problem in str(raised.value) and remedy in str(raised.value).rpartition("; ")[2]
    assert "does not answer" not in str(raised.value)


def test_web_server_that_is_no_store_is_called_so(store: type[_Store], monkeypatch: pytest.MonkeyPatch):
    """As the port of MinIO's web pages, which answers each request with a page."""
    monkeypatch.setattr(store, "do_PUT", store.do_POST)
    monkeypatch.setattr(store, "etag", "")
    store.refusal = 200, b"<html>log in</html>"
    with pytest.raises(StoreUnavailable, match=r"answers, but not as an object store; correct AWS_ENDPOINT_URL"):
        ObjectBlobs("bucket", "p", 0.1).put("a", b"x")


def test_login_page_that_requests_are_sent_to_is_not_called_silence(
    store: type[_Store], monkeypatch: pytest.MonkeyPatch
):
    def to_login(handler: _Store) -> None:
        handler.send_response(302)
        handler.send_header("Location", "/login")
        handler.send_header("Content-Length", "0")
        handler.end_headers()

    monkeypatch.setattr(store, "do_GET", to_login)
    with pytest.raises(StoreUnavailable, match=r"answers, but not as an object store; correct AWS_ENDPOINT_URL"):
        ObjectBlobs("bucket", "p", 0.1).list()


@pytest.mark.parametrize("name", ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_REGION"])
@pytest.mark.parametrize("value", ["hidden\r", "hidden\n", "hid\nden", "hidden\x7f"])
def test_variable_with_a_line_end_is_named_without_its_value(
    store: type[_Store], monkeypatch: pytest.MonkeyPatch, name: str, value: str
):
    """As of a file of Windows, which systemd or Docker reads as the environment."""
    monkeypatch.setenv(name, value)
    with pytest.raises(UsageError, match=f"{name} has a line end") as raised:
        ObjectBlobs("bucket", "p")
    assert "hid" not in str(raised.value)


def test_store_with_a_certificate_of_an_unknown_ca_is_named_with_the_way_to_trust_it(
    tls_pair: tuple[Path, ssl.SSLContext], store: type[_Store], monkeypatch: pytest.MonkeyPatch
):
    ca_file, context = tls_pair
    with _served(store, context) as port:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"https://localhost:{port}")
        with pytest.raises(StoreUnavailable, match=r"of an unknown CA; .*update-ca-certificates.* SSL_CERT_FILE"):
            ObjectBlobs("bucket", "p", 0.1).put("a", b"x")
        monkeypatch.setenv("SSL_CERT_FILE", str(ca_file))
        ObjectBlobs("bucket", "p", 0.1).put("a", b"x")
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"https://127.0.0.1:{port}")
        with pytest.raises(StoreUnavailable, match="has a certificate for other names; correct AWS_ENDPOINT_URL"):
            ObjectBlobs("bucket", "p", 0.1).put("a", b"x")
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://localhost:{port}")
        with pytest.raises(StoreUnavailable, match="write https:// if it has TLS"):
            ObjectBlobs("bucket", "p", 0.1).put("a", b"x")


def test_store_without_tls_is_named_with_the_scheme_to_write(store: type[_Store], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", os.environ["AWS_ENDPOINT_URL"].replace("http:", "https:"))
    with pytest.raises(StoreUnavailable, match="speaks no TLS; write http:// in AWS_ENDPOINT_URL"):
        ObjectBlobs("bucket", "p", 0.1).put("a", b"x")


def test_unknown_name_of_a_store_is_not_called_silence(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://no-such-store.invalid:9000")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "b")
    with pytest.raises(StoreUnavailable, match=r"no-such-store\.invalid:9000 cannot be resolved; correct AWS_ENDPOINT"):
        ObjectBlobs("bucket", "p", 0.1).put("a", b"x")


@pytest.mark.parametrize(
    "endpoint", ["store.lan:9000", "127.0.0.1:9000", "s3://store.lan", "http://", "/var/run/store"]
)
def test_endpoint_that_is_no_url_is_refused_with_its_form(monkeypatch: pytest.MonkeyPatch, endpoint: str):
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    with pytest.raises(UsageError, match="AWS_ENDPOINT_URL is no URL; write http://HOST:PORT"):
        ObjectBlobs("bucket", "p")


@pytest.mark.parametrize("given", ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"])
def test_half_of_the_credentials_is_refused_with_both_names(monkeypatch: pytest.MonkeyPatch, given: str):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(given, "a")
    with pytest.raises(UsageError, match="set both AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"):
        ObjectBlobs("bucket", "p")


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
