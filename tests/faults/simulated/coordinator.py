"""The coordinator in a world: the real code of `fedpatch run` and `fedpatch resume`, from registry to engine, in virtual time.

Whenever its loop waits for the next event, the world's time advances until there is one.
"""

from __future__ import annotations

from collections import deque
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from queue import Empty
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

import fedpatch.coordinator.runtime.engine_at_start
from fedpatch.coordinator.rounds.run_engine import Engine
from fedpatch.coordinator.rounds.run_summary import RunSummary
from fedpatch.coordinator.runtime.event_queue import Interrupt
from fedpatch.coordinator.runtime.ports import Ports
from fedpatch.coordinator.runtime.resume_run import resume_run
from fedpatch.coordinator.runtime.run_or_resume import run_or_resume
from fedpatch.coordinator.settings import RunSettings
from fedpatch.coordinator.storage.boot_clock import BootTime
from fedpatch.shared.errors import BrokerError, UsageError
from tests.faults.simulated.disk import Disk
from tests.faults.simulated.lesson import prepared
from tests.faults.simulated.link import SimulatedLink
from tests.faults.simulated.processes import Killed, Process
from tests.faults.simulated.wire import Host

if TYPE_CHECKING:
    from tests.faults.simulated.world import World

AGAIN_S = 5.0
_SPINNING = 2_000


class Queue:
    """A queue whose reader waits in the world's time."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._events: deque[Any] = deque()
        self._spins, self._spun_at = 0, -1.0

    def put(self, event: Any) -> None:
        self._events.append(event)

    def qsize(self) -> int:
        return len(self._events)

    def get(self, timeout: float | None = None) -> Any:
        """Return the next event. Raise Empty after the timeout, Killed if the process was killed."""
        world = self._world
        self._spins = self._spins + 1 if world.now == self._spun_at else 0
        self._spun_at = world.now
        assert self._spins < _SPINNING, "the coordinator spins without time going on"
        world.wait(lambda: bool(self._events), timeout)
        if not self._events:
            raise Empty
        return self._events.popleft()


class SimulatedCoordinator:
    """A coordinator on its own host; `wanted` is the next command: run, resume, or "" once the run is over."""

    def __init__(self, world: World, directory: Path, settings: RunSettings) -> None:
        self.directory = directory
        self.settings = replace(settings, state_dir=directory, metrics=None)
        self.host = Host("coordinator")
        self.process: Process | None = None
        self.wanted = "run"
        self.start_at = 0.0
        self.pause_s = 1.0
        self.next_fuse: int | None = None
        self.event_queue: Any = None
        self.engine: Any = None
        self.summary: RunSummary | None = None
        self.lines: list[str] = []
        self.started_at: list[float] = []
        self.boot, self.booted_at, self.clock_off_s = "boot-1", 0.0, 0.0
        self._world = world
        self._links: list[SimulatedLink] = []

    # ---- what happens to it

    def kill(self, pause_s: float, fuse: int | None = None) -> None:
        """Kill it at once or before a later write; it is started again after a pause."""
        self.pause_s = pause_s
        if self.process is None:
            return
        self.process.fuse = fuse
        if fuse is None:
            self.process.dead = True

    def die_here(self, pause_s: float) -> None:
        """Kill it in the middle of its present step."""
        assert self.process is not None
        self.pause_s, self.process.dead = pause_s, True
        raise Killed(self.process.name)

    def interrupt(self, pause_s: float) -> None:
        """Press Ctrl-C; the run is resumed after a pause."""
        self.pause_s = pause_s
        if self.event_queue is not None and self.process is not None:
            self._world.note("Ctrl-C")
            self.event_queue.put(Interrupt())

    def reboot(self, jump_s: float, pause_s: float) -> None:
        """Restart its machine: the machine's monotonic clock begins at 0 again, and its wall clock jumps."""
        self.kill(pause_s)
        self.boot, self.booted_at = f"{self.boot}'", self._world.now
        self.clock_off_s += jump_s

    # ---- its life

    def run(self) -> None:
        """Run the wanted command until it ends or is killed."""
        world = self._world
        self.process = Process("coordinator", world.now)
        self.process.fuse, self.next_fuse = self.next_fuse, None
        self.started_at.append(world.now)
        world.note(f"coordinator: {self.wanted}")
        self.summary = None
        try:
            with world.turns.of(self.process):
                self.summary = self._begin()
        except Killed:
            world.note("coordinator was killed")
        except (BrokerError, UsageError) as error:
            world.note(f"coordinator could not start: {error}")
            self.pause_s = AGAIN_S
        finally:
            for link in self._links:
                link.die()
            self._links.clear()
            self.process = self.event_queue = self.engine = None
        self._what_next()

    def _begin(self) -> RunSummary:
        view: Any = SimpleNamespace(show=lambda snapshot: None, say=self._log)
        if self.wanted == "resume":
            return resume_run(self.directory, "last", view, ports=self._ports())
        return run_or_resume(self.settings, view, new=self.wanted == "new", ports=self._ports())

    def _what_next(self) -> None:
        self.start_at = self._world.now + self.pause_s
        self.pause_s = 1.0
        if self.summary is None:
            # A restart omits --new, even if the first command had it.
            self.wanted = "run" if self.wanted == "new" else self.wanted
            return
        self._world.note(f"run {self.summary.run} is over: {self.summary.stopped_because}")
        self.wanted = "resume" if self.summary.stopped_because == "interrupted" else ""

    def _log(self, line: str) -> None:
        self.lines.append(line)
        self._world.note(f"coordinator prints: {line}")

    def now(self) -> BootTime:
        """Return the time of its machine's own clocks; the wall clock may be years off."""
        return BootTime(self.boot, self._world.now - self.booted_at, 1.7e9 + self._world.now + self.clock_off_s)

    def installed(self, patch: pytest.MonkeyPatch) -> None:
        """Make the engine of each process visible to the oracle."""

        def engine(*args: Any, **given: Any) -> Any:
            self.engine = Engine(*args, **given)
            return self.engine

        patch.setattr(fedpatch.coordinator.runtime.engine_at_start, "Engine", engine)

    def _ports(self) -> Ports:
        """Return the time, randomness, link and task of the world."""
        world = self._world
        parts: dict[str, Any] = {
            "queue": lambda: Queue(world),
            "link": self._make_link,
            "executor": lambda *_: Disk(world, self._living),
        }
        return Ports(
            clock=lambda: world.now - self.booted_at,
            unix_time=lambda: self.now().unix_s,
            sleep=lambda seconds: world.wait(lambda: False, seconds),
            boot_time=self.now,
            entropy=world.rng,
            interrupts=self._at_work,
            chunk_bytes=lambda settings, boot: world.chunk_bytes,
            prepare=lambda settings: prepared(),
            **parts,
        )

    @property
    def _living(self) -> Process:
        assert self.process is not None
        return self.process

    def _make_link(self, _url: str, **given: Any) -> SimulatedLink:
        link = SimulatedLink(self._world, self.host, **given)
        self._links.append(link)
        return link

    def _at_work(self, inbox: Any) -> Any:
        self.event_queue = inbox
        return nullcontext()
