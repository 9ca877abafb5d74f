"""Real brokers for tests: a separate mosquitto, started and ended by its pid, and helpers that wait."""

from __future__ import annotations

import contextlib
import itertools
import os
import queue
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Self, TypeVar

import pytest

from fedpatch.shared.mqtt.client import LinkEvent, MqttLink, Received
from tests.support.listing import PausableServer

HOST = "127.0.0.1"
PATIENCE_S = 100.0

E = TypeVar("E")


def free_port() -> int:
    """Return a TCP port that is free now and that no other test gets meanwhile.

    It is below the ports that the kernel assigns as free ports, so a broker that is down for a while finds it free again.
    Each test process has ports of its own, and returns none of them twice before it has returned all.
    """
    for port in itertools.islice(_PORTS, len(_OWN_PORTS)):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind((HOST, port))
            return port
    raise RuntimeError("no port is free")


def own_ports(worker: str, workers: int) -> list[int]:
    """Return ports in random order: parallel test runs on this machine are unlikely to begin with the same port."""
    number = int(worker.removeprefix("gw")) if worker else 0
    ports = list(range(10_000 + number % workers, 32_000, workers))
    return random.SystemRandom().sample(ports, len(ports))


_OWN_PORTS = own_ports(os.environ.get("PYTEST_XDIST_WORKER", ""), int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")))
_PORTS = itertools.cycle(_OWN_PORTS)


class Mosquitto(PausableServer):
    """A mosquitto in a directory of its own; `options` are lines of its configuration, `passwords` its users.

    Without `passwords` anyone may connect. Its state survives `stop` and `start`; with `autosave` also `kill`.
    """

    def __init__(
        self, options: str = "", *, passwords: Mapping[str, str] | None = None, acl: str = "", autosave: bool = False
    ) -> None:
        binary = shutil.which("mosquitto", path="/usr/sbin:/usr/bin:/usr/local/sbin:/usr/local/bin")
        if binary is None:
            pytest.skip("mosquitto is not installed (apt install mosquitto)")
        self._binary = binary
        self._files = contextlib.ExitStack()
        self.directory = Path(self._files.enter_context(tempfile.TemporaryDirectory(prefix="fedpatch-mosquitto-")))
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None
        lines = [
            f"listener {self.port} {HOST}",
            "user root",
            "set_tcp_nodelay true",
            "persistence true",
            f"persistence_location {self.directory}/",
            f"allow_anonymous {'false' if passwords else 'true'}",
            *(["autosave_on_changes true", "autosave_interval 1"] if autosave else []),
            *([f"password_file {self._password_file(passwords)}"] if passwords else []),
            *([f"acl_file {self._written('acl', acl)}"] if acl else []),
            options,
        ]
        self._config = self._written("mosquitto.conf", "\n".join(lines) + "\n")

    @property
    def url(self) -> str:
        return f"mqtt://{HOST}:{self.port}"

    def start(self) -> None:
        """Start it and wait until it answers; each start uses the same port."""
        command, answers = [self._binary, "-c", self._config], partial(listening, self.port)
        self._process = start_server("mosquitto", command, self.directory / "log", answers)

    def stop(self) -> None:
        """Ask it to end, as a service manager would, until it does: mosquitto loses a signal that comes during its start."""
        while self._process is not None:
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(1.0)
                self._process = None

    def kill(self) -> None:
        """End it like a power cut: without a DISCONNECT to clients, and without saving."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def signal(self, number: signal.Signals) -> None:
        """Send a signal, as an administrator may: SIGHUP makes it read its configuration again."""
        assert self._process is not None
        self._process.send_signal(number)

    def restart(self) -> None:
        self.kill()
        self.start()

    def _written(self, name: str, text: str) -> Path:
        path = self.directory / name
        path.write_text(text)
        path.chmod(0o600)
        return path

    def _password_file(self, passwords: Mapping[str, str]) -> Path:
        path = self._written("passwords", "".join(f"{user}:{word}\n" for user, word in passwords.items()))
        subprocess.run(["mosquitto_passwd", "-U", path], check=True, capture_output=True)
        return path

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self._files.close()


class Client:
    """A link whose events can be waited for. All events up to the last awaited one are kept in `seen`."""

    def __init__(self, url: str, client_id: str, **options: Any) -> None:
        self._events: queue.Queue[LinkEvent] = queue.Queue()
        self.seen: list[LinkEvent] = []
        options.setdefault("reconnect_delay_s", (0.05, 0.2))
        self.link = MqttLink(url, client_id=client_id, events=self._events.put, **options)
        self._barrier = f"barrier/{client_id}"

    def settle(self) -> None:
        """Return once the broker has taken all subscriptions and messages so far."""
        mark = str(time.monotonic_ns()).encode()
        self.link.subscribe(self._barrier)
        for _ in range(int(PATIENCE_S / 0.2)):
            self.link.publish(self._barrier, mark)
            with contextlib.suppress(TimeoutError):
                self.wait(Received, lambda event: event.payload == mark, patience_s=0.2)
                return
        raise TimeoutError(f"the broker does not settle; seen: {self.seen[-20:]}")

    def wait(self, kind: type[E], fits: Callable[[E], bool] = lambda event: True, patience_s: float = PATIENCE_S) -> E:
        """Return the next event of `kind` that `fits`; if none comes, raise TimeoutError with the events that came instead."""
        until = time.monotonic() + patience_s
        while True:
            try:
                event = self._events.get(timeout=max(0.0, until - time.monotonic()))
            except queue.Empty:
                raise TimeoutError(f"no such {kind.__name__}; seen: {self.seen[-20:]}") from None
            self.seen.append(event)
            if isinstance(event, kind) and fits(event):
                return event

    def received(self, topic: str) -> Received:
        """The next message on `topic`."""
        return self.wait(Received, lambda event: event.topic == topic)

    @property
    def topics(self) -> list[str]:
        return [event.topic for event in self.seen if isinstance(event, Received)]


def link_is_alive(client_id: str) -> bool:
    """Whether the thread of a client's link still runs."""
    return any(thread.name == f"link {client_id}" for thread in threading.enumerate())


@contextlib.contextmanager
def client(url: str, client_id: str, *filters: str, **options: Any) -> Iterator[Client]:
    """A started and finally stopped client that subscribes to `filters`."""
    one = Client(url, client_id, **options)
    one.link.subscribe(*filters)
    one.link.start()
    try:
        yield one
    finally:
        one.link.stop()


def start_server(
    name: str,
    command: Sequence[object],
    log: Path,
    answers: Callable[[], bool],
    *,
    environment: Mapping[str, str] | None = None,
    pause_s: float = 0.01,
) -> subprocess.Popen[bytes]:
    """Start a server whose output goes to `log`, and wait until it answers."""
    with log.open("ab") as out:
        process = subprocess.Popen([str(word) for word in command], stdout=out, stderr=out, env=environment)
    until = time.monotonic() + PATIENCE_S
    while not answers():
        if process.poll() is not None or time.monotonic() > until:
            raise RuntimeError(f"{name} did not start:\n{log.read_text()}")
        time.sleep(pause_s)
    return process


def listening(port: int) -> bool:
    """Whether a process listens on a port of this machine."""
    with socket.socket() as probe:
        return probe.connect_ex((HOST, port)) == 0
