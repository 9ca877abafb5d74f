"""Count the calls, files and changes of file that one update costs on the coordinator, and one round in the agent's process.

    python -m scripts.walk_update            print a table
    python -m scripts.walk_update --json     print one JSON object
    python -m scripts.walk_update --files    list the files of each step as well

One device does one round with the coordinator's real service: link callbacks, queue, engine, writer threads, registry and
checkpoint. A recording link replaces the broker, and this script simulates the device, so nothing else runs.
A file counts if one of its functions is called. A change of file is a call into another file than the previous call in the
same thread; a return is not a change.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from types import FrameType, SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np

from fedpatch.coordinator.runtime import connection, service
from fedpatch.coordinator.runtime.event_queue import Interrupt
from fedpatch.coordinator.runtime.ports import Ports
from fedpatch.coordinator.runtime.start_run import start_run
from fedpatch.coordinator.settings import RunSettings
from fedpatch.device_agent.job.training_messages import Trained
from fedpatch.device_agent.runtime import agent_composition
from fedpatch.device_agent.runtime.agent_events import Stop
from fedpatch.device_agent.runtime.presence import Identity
from fedpatch.device_agent.settings import AgentSettings
from fedpatch.shared.mqtt.client import Connected, Received
from fedpatch.shared.mqtt.traffic import Traffic
from fedpatch.shared.mqtt.url import parse_broker_url
from fedpatch.shared.tensors.packing import pack
from fedpatch.shared.wire import topics
from fedpatch.shared.wire.chunks import cut, decode_chunk, encode_chunk
from fedpatch.shared.wire.codec import decode, encode, to_plain
from fedpatch.shared.wire.messages import (
    Accept,
    Body,
    Committed,
    DeviceState,
    Envelope,
    Grant,
    Offer,
    TaskCapability,
    UpdateReport,
    WorkRequest,
)
from tests.device_agent.jobs import BLOB, REQUEST
from tests.device_agent.owners import READY
from tests.support.specs import envelope_of, model, report, update

FLEET, DEVICE = "demo", "pi-1"
ROOT = Path(__file__).resolve().parent.parent
ROOMS = tuple(f"{ROOT / folder}{os.sep}" for folder in ("coordinator", "device_agent", "shared"))
CHUNK_BYTES = 1024
UPDATE_STEPS = ("offer", "middle chunk", "last chunk")
COORDINATOR_STEPS = ("presence", "accept", *UPDATE_STEPS)
AGENT_STEPS = ("request", "model chunks", "trained", "grant", "committed")
UPDATE = b"u" * 350
SETTLE_S = 4.0
"""More time than an agent needs to collect the facts about its device."""
GOALS: dict[str, tuple[int, int | None]] = {"update": (40, 500), "middle chunk": (12, None), "agent": (25, None)}
"""At most so many files, and changes of file."""


@dataclass
class Walk:
    """The calls of one step. `files` has the calls by file, relative to the checkout."""

    files: dict[str, int] = field(default_factory=dict)
    changes: int = 0

    @property
    def calls(self) -> int:
        """Calls of functions of the product."""
        return sum(self.files.values())

    def add(self, other: Walk) -> None:
        """Add the calls of another step."""
        for name, calls in other.files.items():
            self.files[name] = self.files.get(name, 0) + calls
        self.changes += other.changes


class Profiler:
    """Counts calls by step within its block, in the current thread and in all threads that start meanwhile."""

    def __init__(self, *, only_main: bool = False) -> None:
        self.walks: dict[str, Walk] = {}
        self.step = ""
        self._only_main = only_main
        self._names: dict[str, str | None] = {}
        self._last: dict[int, str] = {}

    def __enter__(self) -> Profiler:
        threading.setprofile(self._on_event)
        sys.setprofile(self._on_event)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)
        threading.setprofile(None)

    @contextmanager
    def during(self, step: str) -> Iterator[None]:
        """Count calls within the block as `step`."""
        self.step, self._last = step, {}
        try:
            yield
        finally:
            self.step = ""

    def _on_event(self, frame: FrameType, event: str, _argument: object) -> None:
        step = self.step
        if event != "call" or not step:
            return
        if self._only_main and threading.current_thread() is not threading.main_thread():
            return
        path = frame.f_code.co_filename
        if path not in self._names:
            real = os.path.realpath(path)
            self._names[path] = real[len(str(ROOT)) + 1 :] if real.startswith(ROOMS) else None
        name, thread = self._names[path], threading.get_ident()
        if name is None:
            return
        walk = self.walks.setdefault(step, Walk())
        walk.files[name] = walk.files.get(name, 0) + 1
        walk.changes += self._last.get(thread) != name
        self._last[thread] = name


class RecordingLink:
    """A link without a broker: it keeps published messages, and the script makes the events."""

    def __init__(self, *_: object, events: Callable[[Any], None], **__: object) -> None:
        self.events = events
        self.idle = True
        self.traffic = Traffic()
        self.broker = parse_broker_url("mqtt://127.0.0.1")
        self.published: list[tuple[str, bytes]] = []

    def publish(self, topic: str, payload: bytes, *, qos: int = 1, retain: bool = False) -> bool:
        """Keep a message."""
        self.published.append((topic, payload))
        return True

    def subscribe(self, *_filters: str) -> None:
        """Do nothing: there is no broker."""

    def start(self) -> None:
        """Connect at once, over MQTT 5 with retained messages."""
        self.events(self.wait_connected(0.0))

    def wait_connected(self, _timeout_s: float) -> Connected:
        """Return the answer of a broker."""
        return Connected("5", None, retain_available=True, session_present=False)

    def stop(self) -> None:
        """Do nothing: nothing runs."""


class CoordinatorWalk:
    """Simulates one device for the coordinator's service. `run` replaces `Service.run`."""

    def __init__(self, profiler: Profiler, links: list[RecordingLink]) -> None:
        self._profiler = profiler
        self._links = links

    def run(self, one: Any) -> None:
        """Send presence, accept, offer and chunks; stop when the second round is open."""
        self._service, self._link = one, self._links[-1]
        self._engine = one._engine
        with one.started():
            self._step("", lambda: None)
            state = DeviceState(
                online=True,
                boot="b",
                version="1",
                tasks=(TaskCapability("digits", self._engine.spec.schema, 100),),
                encodings=("delta-int8", "fp32+zstd"),
            )
            presence = Received(topics.device_state(FLEET, DEVICE), encode(Envelope(state)), retained=True)
            self._step("presence", lambda: self._link.events(presence))
            self._request = self._sent(WorkRequest)
            self._step("accept", lambda: self._say(Accept(100)))
            self._upload()
            self._stop()

    def _upload(self) -> None:
        blob, manifest = self._update()
        self._step("offer", lambda: self._say(Offer(manifest)))
        assert self._sent(Grant)
        last = manifest.chunk_count - 1
        assert last >= 2, "the update needs three chunks for a middle one"
        for index in range(last + 1):
            step = {1: "middle chunk", last: "last chunk"}.get(index, "")
            payload = encode_chunk(cut(blob, manifest, index))
            event = Received(topics.update_chunk(FLEET, DEVICE, manifest.digest, index), payload, retained=False)
            self._step(step, partial(self._link.events, event), wait_for_update=index == last)
        assert self._sent(Committed)
        assert self._engine.last_round == 2, "the last chunk did not open the next round"

    def _stop(self) -> None:
        self._service._event_queue.put(Interrupt())
        while not self._engine.stopped:
            self._service.step()

    def _update(self) -> tuple[bytes, Any]:
        request = self._request
        owner = self._service._runner._aggregator
        base, prepared = owner.state.tensors, owner._prepared
        drawn = np.random.default_rng(1)
        tensors = {
            name: (array + drawn.normal(0, 1e-2, array.shape)).astype(array.dtype) for name, array in base.items()
        }
        report = UpdateReport(request.model.digest, 100, 5, 0.5, 0.5, 0.6, 1.0, 0.5)
        packed = pack(tensors, prepared.travelling, to_plain(report), request.encoding, base=base)
        return packed.blob, packed.manifest(request.chunk_bytes, prepared.travelling)

    def _say(self, body: Body) -> None:
        spec = self._engine.spec
        envelope = Envelope(body, task=spec.task, run=spec.run, epoch=spec.epoch, round=self._engine.last_round)
        self._link.events(Received(topics.up(FLEET, DEVICE), encode(envelope), retained=False))

    def _step(self, step: str, act: Callable[[], object], *, wait_for_update: bool = False) -> None:
        """Let `act` put an event into the queue, and the service handle all queued events."""
        with self._profiler.during(step):
            act()
            round_before = self._engine.last_round
            while self._service._event_queue.waiting() or (wait_for_update and self._engine.last_round == round_before):
                self._service.step()

    def _sent(self, kind: type[Any]) -> Any:
        bodies = [
            decode(payload).body for topic, payload in self._link.published if topic == topics.down(FLEET, DEVICE)
        ]
        return next(body for body in reversed(bodies) if isinstance(body, kind))


def walk_coordinator() -> dict[str, Walk]:
    """Return the calls of each step of a round on the coordinator."""
    profiler, links = Profiler(), list[RecordingLink]()

    def make_link(*args: Any, **given: Any) -> RecordingLink:
        links.append(RecordingLink(*args, **given))
        return links[-1]

    walk = CoordinatorWalk(profiler, links)
    with tempfile.TemporaryDirectory() as folder, ExitStack() as patches:
        patches.enter_context(mock.patch.object(connection, "acquire_fleet", lambda *_, **__: None))
        patches.enter_context(mock.patch.object(service.Service, "run", lambda one: walk.run(one)))
        settings = RunSettings(
            state_dir=Path(folder),
            fleet=FLEET,
            strategy="fedavg",
            devices=1,
            rounds=3,
            encoding="delta-int8",
            metrics=None,
        )
        make_any: Any = make_link
        ports = Ports(link=make_any, chunk_bytes=lambda *_: CHUNK_BYTES)
        view: Any = SimpleNamespace(show=lambda _: None, say=lambda _: None)
        with profiler:
            start_run(settings, view, ports)
    return profiler.walks


def total(walks: dict[str, Walk], steps: Iterable[str]) -> Walk:
    """Return the sum of some steps."""
    whole = Walk()
    for step in steps:
        whole.add(walks[step])
    return whole


class AgentLink(RecordingLink):
    """The broker and the coordinator of one round, as an agent sees them. Answers come while the agent publishes."""

    def __init__(self, *_: object, events: Callable[[Any], None], profiler: Profiler, **__: object) -> None:
        super().__init__(events=events)
        self._profiler = profiler

    def unsubscribe(self, *_filters: str) -> None:
        """Do nothing: there is no broker."""

    def use_long_backoff(self, *_: object) -> None:
        """Do nothing: the connection never breaks."""

    def publish(self, topic: str, payload: bytes, *, qos: int = 1, retain: bool = False) -> bool:
        """Answer Accept with the model, Offer with Grant, and the last chunk with Committed."""
        if topic == topics.up(FLEET, "pi"):
            match decode(payload).body:
                case Accept():
                    self._profiler.step = "model chunks"
                    for index in range(model().chunk_count):
                        chunk = encode_chunk(cut(BLOB, model(), index))
                        self.events(Received(topics.model_chunk(FLEET, model().digest, index), chunk, retained=True))
                case Offer(manifest=manifest):
                    self._answer("grant", Grant(manifest.digest, 8, b"\0"))
        elif (parsed := topics.parse_topic(FLEET, topic)) is not None and parsed.kind == "update_chunk":
            sent = decode_chunk(payload)
            if sent.index == update(UPDATE).chunk_count - 1:
                self._answer("committed", Committed(sent.digest))
        return True

    def _answer(self, step: str, body: Body) -> None:
        self._profiler.step = step
        self.events(Received(topics.down(FLEET, "pi"), encode(envelope_of(body)), retained=False))


class PlayedTrainer:
    """A training process that is ready at once, with every update already trained."""

    pid = None

    def __init__(self, setup: object, events: Callable[[Any], None], profiler: Profiler) -> None:
        self._events = events
        self._profiler = profiler

    def start(self) -> None:
        """Report ready; then a thread sends the request, and stops the agent when the round is over."""
        self._events(READY)
        threading.Thread(target=self._play, daemon=True).start()

    def resident_mib(self) -> float:
        """Return 0: no process runs."""
        return 0.0

    def train(self, command: Any) -> None:
        """Write the update at once."""
        self._profiler.step = "trained"
        Path(command.update_path).write_bytes(UPDATE)
        self._events(Trained(command.key, update(UPDATE), report()))

    def stop(self) -> None:
        """Do nothing: nothing runs."""

    pause = go_on = cancel = stop

    def _play(self) -> None:
        time.sleep(SETTLE_S)
        self._profiler.step = "request"
        self._events(Received(topics.down(FLEET, "pi"), encode(envelope_of(REQUEST)), retained=False))
        time.sleep(SETTLE_S)
        self._profiler.step = ""
        self._events(Stop(0))


def walk_agent() -> dict[str, Walk]:
    """Return the calls of each step of a round, in the thread that runs the agent's loop."""
    profiler = Profiler(only_main=True)
    make_link: Any = partial(AgentLink, profiler=profiler)
    make_trainer: Any = partial(PlayedTrainer, profiler=profiler)
    with tempfile.TemporaryDirectory() as folder:
        settings = AgentSettings(
            data="x",
            state_dir=Path(folder),
            device_id="pi",
            fleet=FLEET,
            charging=False,
            unmetered=False,
            under_voltage_ok=True,
            broker="mqtt://127.0.0.1",
        )
        ports = agent_composition.Ports(link=make_link, trainer=make_trainer)
        agent = agent_composition.make_agent(settings, Identity.new(FLEET, "pi"), SimpleQueue(), ports)
        with profiler:
            agent.run()
    return profiler.walks


def table(walks: dict[str, Walk], *, with_files: bool) -> str:
    """Format the walks as lines of step, calls, files, changes of file and goal."""
    lines = [f"{'step':28}{'calls':>7}{'files':>7}{'changes':>9}  goal"]
    for name, walk in walks.items():
        most_files, most_changes = GOALS.get(name, (None, None))
        goal = "" if most_files is None else f"{most_files} files"
        goal += "" if most_changes is None else f", {most_changes} changes"
        lines.append(f"{name:28}{walk.calls:7}{len(walk.files):7}{walk.changes:9}  {goal}".rstrip())
        if with_files:
            lines += [f"    {calls:6}  {path}" for path, calls in sorted(walk.files.items())]
    return "\n".join(lines)


def main() -> None:
    """Count the calls on both sides, and print the figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--files", action="store_true", help="list the files of each step")
    chosen = parser.parse_args()
    logging.disable()
    coordinator, agent = walk_coordinator(), walk_agent()
    walks = {step: coordinator[step] for step in COORDINATOR_STEPS}
    walks["update"] = total(coordinator, UPDATE_STEPS)
    walks["round"] = total(coordinator, COORDINATOR_STEPS)
    walks |= {f"agent: {step}": agent[step] for step in AGENT_STEPS if step in agent}
    walks["agent"] = total(agent, agent)
    if chosen.json:
        figures = {
            name: {"calls": walk.calls, "files": sorted(walk.files), "changes": walk.changes}
            for name, walk in walks.items()
        }
        sys.stdout.write(json.dumps(figures) + "\n")
    else:
        sys.stdout.write(table(walks, with_files=chosen.files) + "\n")


if __name__ == "__main__":
    main()
