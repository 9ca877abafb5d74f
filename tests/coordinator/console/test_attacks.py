"""Attacks on a console: other sites, wrong tokens, paths, headers, pages that keep streams open or do not read them."""

from __future__ import annotations

import asyncio
import resource
import socket
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from functools import partial
from itertools import count
from typing import Any

import pytest

pytest.importorskip("uvicorn", reason="the console is not installed (pip install 'fedpatch[console]')")

from fedpatch.coordinator.console import server
from fedpatch.coordinator.console.app import Console
from fedpatch.coordinator.console.event_streams import EventStreams
from fedpatch.coordinator.console.logins import MAX_FAILURES, Access
from fedpatch.coordinator.console.snapshot import Snapshot
from tests.coordinator.console.consoles import TOKEN, Served, filled, served, wait_until

HOLD = "/api/devices/lab/pi-1/quarantine"
REASON = {"reason": "a test"}


@pytest.fixture(scope="module")
def shared(tmp_path_factory) -> Iterator[Served]:
    """A console for tests that change nothing."""
    place = tmp_path_factory.mktemp("shared")
    with filled(place), served(place, actions=True) as one:
        one.login()
        yield one


@pytest.fixture
def console(tmp_path) -> Iterator[Served]:
    with filled(tmp_path), served(tmp_path, actions=True) as one:
        yield one


def _held(console: Served) -> bool:
    return any(row["quarantined"] for _, row in console.streams.snapshot.devices.values())


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "http://127.0.0.1:1"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": ""}, 403),
        ({"X_CSRF_Token": "wrong"}, 403),
        ({"X_CSRF_Token": ""}, 403),
        ({"Cookie": ""}, 403),
        ({"Cookie": "fedpatch-console=wrong"}, 403),
        ({"Content_Type": "text/plain"}, 415),
        ({"Content_Type": "application/x-www-form-urlencoded"}, 415),
        ({"Sec_Fetch_Site": "cross-site"}, 403),
        ({"Sec_Fetch_Site": "same-site"}, 403),
        ({"Host": "evil.example"}, 421),
        ({"Host": "127.0.0.1.evil.example:80"}, 421),
    ],
)
def test_action_of_another_site_or_without_a_session_is_refused(shared, headers, status):
    assert shared.ask(HOLD, REASON, **headers).status == status
    assert shared.ask("/api/session").json["logged_in"]
    assert not _held(shared)


def test_action_without_a_host_is_refused(shared):
    """The server closes the connection before it reads the body, so a reset may come before the answer."""
    with suppress(ConnectionResetError):
        assert shared.ask(HOLD, REASON, Host="").status == 400
    assert not _held(shared)


def test_action_with_session_and_own_origin_holds_the_device(console):
    console.login()
    assert console.ask(HOLD, REASON).json == {"done": "pi-1 is quarantined"}
    wait_until(lambda: _held(console))


def test_action_by_get_is_no_action(shared):
    assert shared.ask(HOLD).status == 405
    assert not _held(shared)


def test_cookie_is_kept_from_scripts_and_other_sites(console):
    cookie = console.login().headers["set-cookie"].lower()
    assert "httponly" in cookie and "samesite=strict" in cookie and "path=/" in cookie


@pytest.mark.parametrize("token", ["", "wrong", TOKEN[:-1], TOKEN + "x", "ä" * 500, TOKEN + "\ud800"])
def test_wrong_token_begins_no_session(console, token):
    assert console.login(token).status == 403
    assert not console.ask("/api/session").json["logged_in"]


def test_many_wrong_tokens_bar_the_right_one_too(console):
    for _ in range(10):
        assert console.login("wrong").status == 403
    answer = console.login()
    assert answer.status == 429 and "too many wrong tokens" in answer.json["error"]


def test_logins_whose_bodies_arrive_at_the_same_time_are_barred_as_those_one_after_the_other():
    access = Access(token=TOKEN, read_needs_login=False, actions=True, secure=False)
    app = Console(None, EventStreams(), access, {"localhost"}).app
    headers = {"host": "localhost", "origin": "http://localhost", "content-type": "application/json"}
    scope = {"type": "http", "method": "POST", "path": "/api/login", "query_string": b"", "root_path": ""}
    scope["headers"] = [(name.encode(), value.encode()) for name, value in headers.items()]
    codes = Counter[int]()

    async def login(bodies: asyncio.Event) -> None:
        async def receive() -> dict[str, Any]:
            await bodies.wait()
            return {"type": "http.request", "body": b'{"token": "wrong"}', "more_body": False}

        async def send(message: Any) -> None:
            codes.update([message["status"]] if message["type"] == "http.response.start" else [])

        await app({**scope}, receive, send)

    async def logins() -> None:
        bodies = asyncio.Event()
        tasks = [asyncio.ensure_future(login(bodies)) for _ in range(30)]
        await asyncio.sleep(0.05)  # each request has arrived except its body
        bodies.set()
        await asyncio.gather(*tasks)

    asyncio.run(logins())
    assert codes == {403: MAX_FAILURES, 429: 30 - MAX_FAILURES}


def test_logout_ends_the_session(console):
    console.login()
    assert console.ask("/api/logout", {}).status == 200
    assert console.ask(HOLD, REASON).status == 403


@pytest.mark.parametrize(
    "path",
    [
        "/static/../token",
        "/static/..%2ftoken",
        "/static/%2e%2e/token",
        "/static//etc/passwd",
        "/static/....//token",
        "/static/console.js%00.css",
        "/token",
        "/../token",
        "/api/runs/..%2f..%2ftoken",
        "/api/runs/%2e%2e",
    ],
)
def test_path_reaches_no_file(shared, path):
    answer = shared.ask(path)
    assert answer.status in (400, 404)
    assert TOKEN.encode() not in answer.body and b"root:" not in answer.body


@pytest.mark.parametrize(
    "path",
    [
        "/api/devices/lab/pi-1%0d%0aSet-Cookie:%20a=b",
        "/api/runs/last%0d%0aX-Evil:%201",
        "/static/a%0d%0aX-Evil:%201",
        "/?%0d%0aX-Evil:%201",
    ],
)
def test_no_path_makes_a_header(shared, path):
    answer = shared.ask(path)
    assert not {"x-evil", "set-cookie"} & answer.headers.keys()
    assert b"\r\nX-Evil" not in answer.body


def test_every_response_has_the_security_headers(shared):
    for path in ("/", "/static/console.js", "/api/session", "/nothing", "/api/runs/none"):
        headers = shared.ask(path).headers
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy and "unsafe" not in policy and "*" not in policy
        assert headers["x-content-type-options"] == "nosniff" and headers["x-frame-options"] == "DENY"
        assert "server" not in headers and "access-control-allow-origin" not in headers


def test_body_that_is_too_long_or_no_object_is_refused(shared):
    assert shared.ask(HOLD, b"x" * 5000).status == 400
    assert shared.ask(HOLD, b"[" * 4000).status == 400
    assert shared.ask(HOLD, [1]).status == 400
    assert shared.ask(HOLD, {"reason": "a\nb"}).status == 400
    assert shared.ask(HOLD, {"reason": "a\ud800b"}).status == 400
    assert not _held(shared)


def test_run_has_no_secret(shared):
    settings = dict(shared.ask("/api/runs/last").json["settings"])
    assert settings["rounds"] == "30" and "password" not in settings


def test_reading_console_refuses_actions_and_logins(tmp_path):
    with filled(tmp_path), served(tmp_path) as console:
        assert console.login().status == 403
        answer = console.ask(HOLD, REASON)
        assert answer.status == 403 and "--actions" in answer.json["error"]


def _connect(port: int, request: bytes) -> socket.socket:
    made = socket.create_connection(("127.0.0.1", port), 30)
    made.settimeout(30)
    made.sendall(request)
    return made


def _stream_request(port: int) -> bytes:
    return f"GET /events HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n".encode()


def _rss() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


def _status(console: Served, path: str) -> int:
    try:
        return console.ask(path).status
    except OSError:  # too many connections at the moment
        return 0


@pytest.mark.medium
def test_thousand_idle_streams_leave_a_hundred_and_the_page_is_served(console):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(max(soft, 4096), hard), hard))
    before = _rss()
    try:
        with ExitStack() as stack:
            for _ in range(1000):
                stack.callback(_connect(console.port, _stream_request(console.port)).close)
            wait_until(lambda: console.streams.count == 100)
            wait_until(lambda: _status(console, "/") == 200)
            wait_until(lambda: _status(console, "/events") == 503)
            assert _rss() - before < 60e6
        wait_until(lambda: console.streams.count == 0)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_slow_page_costs_no_memory_and_is_cut(tmp_path, monkeypatch):
    """The page reads nothing, while the fleet has more changes than fit into the page's buffers."""
    monkeypatch.setattr(server, "IDLE_S", 0.2)
    streams = EventStreams(patience_s=0.5)

    def has_taken(number: int) -> bool:
        return not streams.count or streams.snapshot.live_number == number

    with filled(tmp_path), served(tmp_path, streams=streams) as console, socket.socket() as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.connect(("127.0.0.1", console.port))
        slow.sendall(_stream_request(console.port))
        wait_until(lambda: streams.count == 1)
        before = _rss()
        numbers = count(1)
        while streams.count:
            number = next(numbers)
            streams.publish_from_thread(Snapshot(live={"line": "x" * 50_000}, live_number=number))
            # Otherwise snapshots wait in the queue of the server's loop, and their memory would count too.
            wait_until(partial(has_taken, number))
        assert _rss() - before < 30e6
        assert console.ask("/").status == 200


def test_connection_without_a_whole_request_is_closed(tmp_path, monkeypatch):
    monkeypatch.setattr(server, "IDLE_S", 0.2)
    with filled(tmp_path), served(tmp_path) as console:
        for request in (b"", b"GET / HTTP/1.1\r\nHost: 127", b"\x16\x03\x01"):
            with _connect(console.port, request) as made:
                assert made.recv(65536)[:12] in (b"", b"HTTP/1.1 400")


def test_connections_beyond_the_limit_are_closed_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr(server, "MAX_CONNECTIONS", 3)
    with filled(tmp_path), served(tmp_path) as console, ExitStack() as stack:
        for _ in range(3):
            stack.callback(_connect(console.port, b"").close)
        refused = stack.enter_context(socket.create_connection(("127.0.0.1", console.port), 30))
        with suppress(ConnectionError):
            assert refused.recv(1) == b""
