"""Data files are verified, and fetched over a network that fails, from a test server on loopback."""

from __future__ import annotations

import hashlib
import logging
import sys
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest

from fedpatch.shared.errors import DataError
from fedpatch.shared.tasks.downloads import DataFile, fetch

CONTENT = bytes(range(256)) * 1024
SHA256 = hashlib.sha256(CONTENT).hexdigest()


@dataclass
class Server:
    """Answers each request with the next of `answers`: the whole content, other content, half of it, or a status."""

    url: str
    answers: deque[str] = field(default_factory=deque)
    asked: list[str] = field(default_factory=list)


@pytest.fixture
def server(monkeypatch) -> Iterator[Server]:
    """A web server for data files whose failures are set by the test."""
    monkeypatch.setenv("no_proxy", "127.0.0.1")

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            state.asked.append(self.path)
            answer = state.answers.popleft()
            self.send_response(404 if answer == "absent" else 200)
            self.send_header("Content-Length", str(len(CONTENT)))
            self.end_headers()
            sent = {"whole": CONTENT, "half": CONTENT[: len(CONTENT) // 2], "other": CONTENT[::-1], "absent": CONTENT}
            self.wfile.write(sent[answer])

        def log_message(self, format: str, *args: object) -> None:
            """Log nothing."""

    httpd = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    state = Server(f"http://127.0.0.1:{httpd.server_port}")
    thread = Thread(target=httpd.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield state
    httpd.shutdown()
    thread.join()
    httpd.server_close()


def _file(*urls: str) -> DataFile:
    return DataFile("toys", "blocks.bin", SHA256, urls)


def test_a_file_that_is_there_is_used_without_network(tmp_path):
    path = tmp_path / "toys/blocks.bin"
    path.parent.mkdir()
    path.write_bytes(CONTENT)
    assert fetch(_file("http://127.0.0.1:9/blocks.bin"), tmp_path) == path


def test_damaged_file_is_named_with_both_checksums_and_a_remedy(tmp_path):
    """A file with other content is never used and never overwritten: it may be the user's."""
    path = tmp_path / "toys/blocks.bin"
    path.parent.mkdir()
    path.write_bytes(CONTENT[:-1])
    found = hashlib.sha256(CONTENT[:-1]).hexdigest()
    expected = f"toys: blocks.bin has sha256 {found}, expected {SHA256}; delete it to fetch it again"
    with pytest.raises(DataError, match=expected):
        fetch(_file("http://127.0.0.1:9/blocks.bin"), tmp_path)
    with pytest.raises(DataError, match="replace it"):
        fetch(_file(), tmp_path)
    assert path.read_bytes() == CONTENT[:-1]


def test_an_absent_file_is_fetched_once(tmp_path, server, caplog):
    caplog.set_level(logging.INFO, "fedpatch.data")
    server.answers.append("whole")
    file = _file(f"{server.url}/blocks.bin")
    assert fetch(file, tmp_path).read_bytes() == CONTENT
    assert fetch(file, tmp_path).read_bytes() == CONTENT
    assert server.asked == ["/blocks.bin"]
    assert f"toys: fetching blocks.bin from {server.url}/blocks.bin" in caplog.messages
    assert caplog.messages[-1] == "toys: blocks.bin: 100 % of 0.3 MB"


def test_a_broken_connection_is_tried_again(tmp_path, server):
    server.answers.extend(["half", "whole"])
    assert fetch(_file(f"{server.url}/blocks.bin"), tmp_path, retries=1).read_bytes() == CONTENT
    assert len(server.asked) == 2


@pytest.mark.parametrize("failure", ["absent", "other", "half"])
def test_the_next_address_is_asked_when_one_fails(tmp_path, server, failure, caplog):
    server.answers.extend([failure, "whole"])
    file = _file(f"{server.url}/first", f"{server.url}/second")
    assert fetch(file, tmp_path, retries=0).read_bytes() == CONTENT
    assert server.asked == ["/first", "/second"]
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert f"{server.url}/first" in caplog.text


@pytest.mark.parametrize(
    ("failure", "reason"),
    [("absent", "404"), ("other", f"what came has another sha256 than {SHA256}"), ("half", "IncompleteRead")],
)
def test_failed_download_has_a_remedy_and_leaves_no_file(tmp_path, server, failure, reason):
    server.answers.append(failure)
    with pytest.raises(DataError) as caught:
        fetch(_file(f"{server.url}/blocks.bin"), tmp_path, retries=0)
    message = str(caught.value)
    assert message.startswith(f"toys: blocks.bin could not be downloaded ({server.url}/blocks.bin: ")
    assert reason in message
    assert f"as {tmp_path}/toys/blocks.bin, or set FEDPATCH_DATA to a folder that holds toys/blocks.bin" in message
    assert list((tmp_path / "toys").iterdir()) == []


def test_no_server_at_all_is_a_data_error(tmp_path, monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with pytest.raises(DataError, match=r"could not be downloaded.*ConnectionError"):
        fetch(_file("http://127.0.0.1:9/blocks.bin"), tmp_path, retries=0)


def test_a_file_without_public_address_must_be_brought(tmp_path):
    with pytest.raises(DataError, match=r"it has no public address.*toys/blocks\.bin"):
        fetch(_file(), tmp_path)


def test_without_pooch_the_message_names_it(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pooch", None)
    with pytest.raises(DataError, match="pip install pooch"):
        fetch(_file("http://127.0.0.1:9/blocks.bin"), tmp_path)


def test_a_data_folder_that_cannot_be_written_is_a_data_error(tmp_path, server):
    (tmp_path / "toys").write_text("a file where the folder should be")
    server.answers.append("whole")
    with pytest.raises(DataError, match="toys"):
        fetch(_file(f"{server.url}/blocks.bin"), tmp_path, retries=0)
