"""Environment of the attacks: a broker without access rules, an honest fleet, and a coordinator with measured memory."""

from __future__ import annotations

import contextlib
import re
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.client import HTTPException
from pathlib import Path
from typing import Any

from fedpatch.coordinator.settings import RunSettings
from fedpatch.shared.errors import WireError
from fedpatch.shared.mqtt.client import MqttLink, Received
from fedpatch.shared.tensors.arrays import MOMENTS
from fedpatch.shared.tensors.patches import parse_policy
from fedpatch.shared.wire import topics
from fedpatch.shared.wire.codec import decode, encode
from fedpatch.shared.wire.messages import Body, DeviceState, Envelope, TaskCapability, WorkRequest
from tests.support.brokers import Client, Mosquitto, client, free_port
from tests.system.commands import Command, run
from tests.system.fleet import Fleet
from tests.system.misdeeds import MAX_MODEL_MIB, SCHEMA
from tests.system.oracle_task import REFERENCE, TASK
from tests.system.rogue import Rogue

HONEST = {f"pi-{index}": f"n={30 + index},test=30,seed={index}" for index in range(3)}
QUARANTINE_AFTER = RunSettings().quarantine_after
ROUNDS = QUARANTINE_AFTER + 2
MAX_DEVICES = 300
PATIENCE_S = 120.0
TRAVELLING = parse_policy("affine").public(SCHEMA).with_moments(MOMENTS)


@dataclass(frozen=True)
class Outcome:
    """Result of a run. `devices` comes from `fedpatch devices`; `metrics` is the text served last."""

    summary: dict[str, Any]
    stderr: str
    devices: dict[str, dict[str, Any]]
    metrics: str
    peak_mib: float
    state_dir: Path

    def metric(self, series: str) -> float:
        """The value of one series, 0 if it is absent."""
        found = re.search(rf"^{re.escape(series)} (\S+)$", self.metrics, re.MULTILINE)
        return float(found[1]) if found else 0.0

    def ignored(self, reason: str) -> float:
        """Number of messages that were ignored for a reason."""
        return self.metric(f'fedpatch_messages_ignored_total{{reason="{reason}"}}')


class Spy:
    """A client that keeps every message of the fleet; `options` are those of its connection."""

    def __init__(self, url: str, fleet: str, **options: Any) -> None:
        self._fleet = fleet
        self.messages: list[Received] = []
        self._changed = threading.Condition()
        self._link = MqttLink(url, client_id=f"spy-{fleet}", events=self._take, **options)
        self._link.subscribe(f"fedpatch/1/{fleet}/#")
        self._link.start()

    def wait(self, fits: Callable[[Received], object]) -> Received:
        """The first message, received before or after the call, for which `fits` is true."""
        found: list[Received] = []
        looked = 0

        def there() -> bool:
            nonlocal looked
            found.extend(one for one in self.messages[looked:] if fits(one))
            looked = len(self.messages)
            return bool(found)

        with self._changed:
            if not self._changed.wait_for(there, PATIENCE_S):
                raise TimeoutError(f"no such message among {len(self.messages)}")
        return found[0]

    def message(self, kind: str, fits: Callable[[Envelope, topics.ParsedTopic], object]) -> Envelope:
        """The first message on a topic of `kind` for which `fits` is true."""

        def looks_right(event: Received) -> object:
            topic = topics.parse_topic(self._fleet, event.topic)
            with contextlib.suppress(WireError):
                return topic is not None and topic.kind == kind and fits(decode(event.payload), topic)
            return False

        return decode(self.wait(looks_right).payload)

    def answer(self, device: str, fits: Callable[[Body], object]) -> Body:
        """The coordinator's first message to `device` for which `fits` is true."""
        return self.message("down", lambda envelope, topic: topic.device == device and fits(envelope.body)).body

    def stop(self) -> None:
        self._link.stop()

    def _take(self, event: object) -> None:
        if isinstance(event, Received):
            with self._changed:
                self.messages.append(event)
                self._changed.notify_all()


@dataclass
class Arena:
    """One fleet at one broker. Each attacker is a thread; all use it at the same time."""

    broker: Mosquitto
    fleet: str
    directory: Path
    spy: Spy = field(init=False)

    def __post_init__(self) -> None:
        self.spy = Spy(self.broker.url, self.fleet)

    def asked(self, since: int = 1) -> Envelope:
        """The first work request of round `since` or a later round."""
        return self.spy.message(
            "down", lambda envelope, _: isinstance(envelope.body, WorkRequest) and envelope.round >= since
        )

    @contextlib.contextmanager
    def client(self, name: str, *filters: str) -> Iterator[Client]:
        """A client that is no device yet."""
        with client(self.broker.url, f"{self.fleet}-{name}", *filters, max_queued=100_000) as one:
            yield one

    @contextlib.contextmanager
    def rogue(self, device: str) -> Iterator[tuple[Rogue, Client]]:
        """A device that is online and can be invited; it goes offline at the end."""
        with self.client(device) as voice:
            one = Rogue(voice, self.fleet, device, TASK.name, SCHEMA, TRAVELLING)
            one.appear()
            try:
                yield one, voice
            finally:
                voice.link.publish(topics.device_state(self.fleet, device), state(online=False), retain=True)

    def run(self, devices: int, quorum: float, *, rounds: int = ROUNDS) -> Outcome:
        """Run to the end. The first round begins when `devices` devices are online.

        The bounds (`norm_bound`, `max_num_examples`, `aggregate`, quarantine, rate limits) are the defaults. Deadlines are
        longer, since the same machine runs all attackers; `max_devices` is low, so that a test can fill the fleet's table.
        """
        port, state_dir = free_port(), self.directory / self.fleet
        terms = ["--task", REFERENCE, "--strategy", "fedavg-adam", "--private", "affine", "--seed", 5]
        terms += ["--rounds", rounds, "--devices", devices, "--wait-s", 120, "--quorum", quorum, "--grace-s", 60]
        terms += ["--recruit-deadline-s", 60, "--deadline-s", 300, "--rejoin-s", 5, "--upload-slots", 16]
        terms += ["--max-model-mib", MAX_MODEL_MIB, "--max-devices", MAX_DEVICES]
        terms += ["--metrics", f"127.0.0.1:{port}", "--json"]
        where = ["--broker", self.broker.url, "--fleet", self.fleet, "--state-dir", state_dir]
        metrics, peak_kib = "", 0
        with Command("fedpatch", "run", *where, *terms) as coordinator:
            until = time.monotonic() + 2 * PATIENCE_S
            while coordinator.running and time.monotonic() < until:
                peak_kib = max(peak_kib, _peak_kib(coordinator.pid))
                with contextlib.suppress(OSError, HTTPException):  # the coordinator may be ending
                    metrics = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5).read().decode()
                time.sleep(0.1)
            done = coordinator.done()
        assert done.code == 0, done.err
        listed = run("fedpatch", "devices", "--state-dir", state_dir, "--json").document
        known = {one["id"]: one for one in listed}
        return Outcome(done.document, done.err, known, metrics, peak_kib / 1024, state_dir)


def honest_fleet(arena: Arena) -> Fleet:
    """Start the honest agents."""
    fleet = Fleet(arena.broker.url, arena.directory / f"agents-{arena.fleet}", name=arena.fleet)
    for device, data in HONEST.items():
        fleet.start(device, REFERENCE, data)
    return fleet


def state(*, online: bool = True, tasks: bool = False, boot: str = "1", version: str = "") -> bytes:
    """A presence message; the device has a task only with `tasks`."""
    can = (TaskCapability(TASK.name, SCHEMA.digest, 10),) if tasks else ()
    return encode(Envelope(DeviceState(online=online, boot=boot, version=version, tasks=can)))


def _peak_kib(pid: int) -> int:
    try:
        found = re.search(r"^VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    except OSError:
        return 0
    return int(found[1]) if found else 0
