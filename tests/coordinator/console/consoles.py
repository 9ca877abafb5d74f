"""Consoles for tests: a real server in a thread, a registry that a test fills, and requests of any kind."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any
from urllib.parse import urlsplit

from fedpatch.coordinator.console.event_streams import EventStreams
from fedpatch.coordinator.console.feed import Feed, RegistryReader
from fedpatch.coordinator.console.listen_terms import ConsoleTerms
from fedpatch.coordinator.console.server import serve
from fedpatch.coordinator.observability.status_follower import StatusFollower
from fedpatch.coordinator.observability.status_message import StatusMessage
from fedpatch.coordinator.storage.run_registry import REGISTRY_FILE, Registry
from fedpatch.shared.config.listen_address import Address
from fedpatch.shared.mqtt.events import Received
from fedpatch.shared.wire.codec import encode
from fedpatch.shared.wire.messages import Envelope
from fedpatch.shared.wire.topics import run_status
from tests.coordinator.registry_builders import new_run, seen
from tests.coordinator.report.report_runs import record

FLEET = "lab"
TOKEN = "a-token-of-the-operator"
PATIENCE_S = 60.0


@dataclass
class Answer:
    """An HTTP response."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Served:
    """A running console."""

    url: str
    state_dir: Path
    streams: EventStreams
    feed: Feed
    cookie: str = ""
    csrf: str = ""

    @property
    def port(self) -> int:
        return int(urlsplit(self.url).port or 0)

    @property
    def origin(self) -> str:
        return self.url.rstrip("/")

    def ask(self, path: str, body: Any = None, method: str = "", **headers: str) -> Answer:
        """Send a request; write - as _ in header names. An empty value leaves a header out."""
        usual = {"Host": f"127.0.0.1:{self.port}", "Cookie": self.cookie, "X-CSRF-Token": self.csrf}
        if body is not None:
            usual |= {"Origin": self.origin, "Content-Type": "application/json"}
        given = {**usual, **{name.replace("_", "-"): value for name, value in headers.items()}}
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)
        try:
            connection.putrequest(
                method or ("GET" if body is None else "POST"), path, skip_host=True, skip_accept_encoding=True
            )
            data = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
            for name, value in given.items():
                if value:
                    connection.putheader(name, value)
            if body is not None:
                connection.putheader("Content-Length", str(len(data)))
            connection.endheaders(data)
            answer = connection.getresponse()
            return Answer(answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read())
        finally:
            connection.close()

    def login(self, token: str = TOKEN) -> Answer:
        """Log in; later requests belong to the session."""
        answer = self.ask("/api/login", {"token": token})
        if answer.status == 200:
            self.cookie = answer.headers["set-cookie"].partition(";")[0]
            self.csrf = answer.json["csrf"]
        return answer

    def publish(self, message: StatusMessage) -> None:
        """Pass a status message of the coordinator to the console."""
        data = encode(Envelope(message.status, task="digits", run=message.run, round=message.round))
        self.feed.events.put(Received(run_status(FLEET), data, retained=False))


def wait_until(true: Callable[[], object]) -> None:
    """Wait until another thread makes a condition true."""
    deadline = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < deadline
        threading.Event().wait(0.01)


@contextmanager
def filled(state_dir: Path, *, rounds: int = 3, devices: int = 3, status: str = "running") -> Iterator[Registry]:
    """A registry, open for writing, with a fleet and a run of this number of rounds."""
    state_dir.mkdir(exist_ok=True, mode=0o700)
    with Registry(state_dir / REGISTRY_FILE) as registry:
        run = new_run(
            registry, 1.78e9, settings={"fleet": FLEET, "rounds": 30, "target_ua": 0.97, "password": "hidden"}
        )
        for index in range(devices):
            seen(registry, f"pi-{index + 1}", fleet=FLEET, tasks=("digits",))
        for number in range(1, rounds + 1):
            registry.rounds.finish(run.id, record(number))
        if status != "running":
            registry.finish_run(run.id, stopped_because=status, user_accuracy=0.9, model=None)
        yield registry


@contextmanager
def served(
    state_dir: Path, *, actions: bool = False, streams: EventStreams | None = None, fleet: str = FLEET, **terms: Any
) -> Iterator[Served]:
    """Serve a console on a free port of this machine; with `actions` its token is TOKEN."""
    if actions:
        token_file = state_dir / "token"
        token_file.write_text(TOKEN)
        token_file.chmod(0o600)
        terms["token_file"] = token_file
    found: SimpleQueue[Any] = SimpleQueue()
    streams = streams or EventStreams()
    wanted = ConsoleTerms(listen=Address("127.0.0.1", 0), actions=actions, **terms)

    def make_feed(streams: EventStreams) -> Feed:
        follower = StatusFollower(fleet, "here", time.monotonic())
        return Feed(RegistryReader(state_dir, fleet), follower, streams.publish_from_thread)

    @contextmanager
    def around(feed: Feed, stop: Callable[[], None]) -> Iterator[None]:
        found.put((feed, stop))
        yield

    def work() -> None:
        serve(wanted, state_dir, make_feed, lambda url, _: found.put(url), around, streams)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    feed, stop = found.get(timeout=PATIENCE_S)
    try:
        one = Served(found.get(timeout=PATIENCE_S), state_dir, streams, feed)
        wait_until(lambda: streams.snapshot.runs_number or not (state_dir / REGISTRY_FILE).exists())
        yield one
    finally:
        stop()
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
