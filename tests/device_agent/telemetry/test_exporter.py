"""An agent's gauges over HTTP and in a file."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import subprocess
import sys
import threading
import urllib.error
from urllib.parse import urlsplit
from urllib.request import urlopen

import pytest

from fedpatch.device_agent.telemetry import exporter
from fedpatch.device_agent.telemetry.exporter import CONTENT_TYPE, WRITE_EVERY_S, Endpoint, TextFile
from fedpatch.shared.config.listen_address import Address
from tests.monitoring.prometheus import fetch


def test_an_endpoint_serves_what_is_there_now():
    texts = iter(["first 1\n", "second 2\n"])
    endpoint = Endpoint(Address("127.0.0.1", 0), lambda: next(texts))
    try:
        with urlopen(endpoint.url, timeout=60) as answer:
            assert answer.read() == b"first 1\n"
            assert answer.headers["Content-Type"] == CONTENT_TYPE
        assert fetch(endpoint.url) == "second 2\n"
        with pytest.raises(urllib.error.HTTPError, match="404") as refused:
            fetch(endpoint.url.replace("/metrics", "/etc/passwd"))
        refused.value.close()
    finally:
        endpoint.stop()
    with pytest.raises(urllib.error.URLError):
        fetch(endpoint.url)


@pytest.mark.parametrize("rude", [b"", b"GET", b"\x00\xff\r\n\r\n", b"GET /metrics HTTP/1.1\r\n"])
def test_a_client_that_is_rude_or_slow_is_left_behind(monkeypatch, rude):
    endpoint = Endpoint(Address("127.0.0.1", 0), lambda: "fine 1\n")
    try:
        where = urlsplit(endpoint.url)
        with monkeypatch.context() as patch:
            patch.setattr(exporter._Handler, "timeout", 0.2)
            with (
                socket.create_connection((where.hostname, where.port), 60) as client,
                contextlib.suppress(ConnectionError),  # the connection may also be reset
            ):
                client.sendall(rude)
                while client.recv(4096):
                    pass
        assert fetch(endpoint.url) == "fine 1\n"
    finally:
        endpoint.stop()


def test_a_client_that_drips_is_left_behind_too(monkeypatch):
    monkeypatch.setattr(exporter._Handler, "timeout", 1.0)
    endpoint = Endpoint(Address("127.0.0.1", 0), lambda: "fine 1\n")
    where = urlsplit(endpoint.url)
    over = threading.Event()

    def drip(client: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while not over.wait(0.1):
                client.sendall(b"x")

    with socket.create_connection((where.hostname, where.port), 60) as client:
        dripping = threading.Thread(target=drip, args=(client,))
        dripping.start()
        try:
            with contextlib.suppress(ConnectionError):
                while client.recv(4096):
                    pass
        finally:
            over.set()
            dripping.join()
            endpoint.stop()


def test_an_ipv6_address_will_do():
    try:
        endpoint = Endpoint(Address("::1", 0), lambda: "fine 1\n")
    except OSError as error:
        pytest.skip(f"no IPv6 here: {error}")
    assert endpoint.url.startswith("http://[::1]:")
    assert fetch(endpoint.url) == "fine 1\n"
    endpoint.stop()


def test_a_file_is_for_everybody_and_written_once_a_minute_at_most(tmp_path):
    path = tmp_path / "fedpatch.prom"
    file = TextFile(path)
    before = os.umask(0o077)
    try:
        file.show(1, lambda: "one 1\n", 100.0)
    finally:
        os.umask(before)
    assert path.read_text() == "one 1\n"
    assert path.stat().st_mode & 0o777 == 0o644
    assert list(tmp_path.iterdir()) == [path]
    file.show(1, lambda: "never", 100.0 + 2 * WRITE_EVERY_S)
    assert file.next_deadline() is None
    file.show(2, lambda: "two 2\n", 300.0)
    file.show(3, lambda: "three 3\n", 301.0)
    assert (path.read_text(), file.next_deadline()) == ("two 2\n", 300.0 + WRITE_EVERY_S)
    file.show(3, lambda: "three 3\n", 300.0 + WRITE_EVERY_S)
    assert (path.read_text(), file.next_deadline()) == ("three 3\n", None)
    file.remove()
    assert list(tmp_path.iterdir()) == []


def test_reader_of_metrics_sees_the_old_or_the_new_file(tmp_path):
    path = tmp_path / "fedpatch.prom"
    file = TextFile(path)
    file.show(1, lambda: "one 1\n", 0.0)
    with path.open() as reader:
        file.show(2, lambda: "two 2\n", WRITE_EVERY_S)
        assert reader.read() == "one 1\n"


def test_unwritable_directory_is_logged_once_and_retried(tmp_path, caplog):
    path = tmp_path / "later" / "fedpatch.prom"
    file = TextFile(path)
    with caplog.at_level(logging.WARNING, "fedpatch.metrics"):
        for turn in range(3):
            file.show(turn, lambda: "one 1\n", turn * WRITE_EVERY_S)
        path.parent.mkdir()
        file.show(4, lambda: "one 1\n", 4 * WRITE_EVERY_S)
    (line,) = [one.getMessage() for one in caplog.records]
    assert str(path) in line and "metrics_textfile" in line
    assert path.exists()


def test_a_link_that_somebody_put_in_the_way_is_not_followed(tmp_path, caplog):
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / ".fedpatch.prom.tmp").symlink_to(victim)
    TextFile(tmp_path / "fedpatch.prom").show(1, lambda: "one 1\n", 0.0)
    assert victim.read_text() == "precious"


def test_no_library_is_needed():
    program = "import sys, fedpatch.device_agent.telemetry.local_metrics; print('prometheus_client' in sys.modules)"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ended.stdout.strip() == "False"
