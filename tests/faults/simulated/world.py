"""A fleet, its broker and its coordinator in virtual time; everything except time, network and training is real code."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from fedpatch.coordinator.settings import RunSettings
from fedpatch.simulator.fleet.virtual_clock import Action, VirtualClock
from tests.faults.simulated.broker import Broker
from tests.faults.simulated.coordinator import SimulatedCoordinator
from tests.faults.simulated.device import SimulatedDevice
from tests.faults.simulated.oracle import Oracle
from tests.faults.simulated.processes import Killed, Turns
from tests.faults.simulated.wire import Host, Weather, Wire

LIMIT_S = 4 * 3600.0
_BEGAN_S = 1000.1


class Broken(BaseException):
    """An action in the world failed; no code within the world may catch this and continue."""


class World:
    """A run with `settings`; all files are in `directory`. Everything random follows from `rng`."""

    def __init__(
        self, rng: random.Random, directory: Path, settings: RunSettings, weather: Weather, chunk_bytes: int = 100
    ) -> None:
        self.rng, self.settings, self.chunk_bytes = rng, settings, chunk_bytes
        self.train_s = (2.0, 12.0)
        self.agenda = VirtualClock(_BEGAN_S)
        self.is_calm = False
        self._triggers: list[tuple[str, Action]] = []
        self.log: list[str] = []
        self.oracle = Oracle(self)
        self.turns = Turns(self.oracle.replaced)
        self.broker = Broker(rng, weather)
        self.coordinator = SimulatedCoordinator(self, directory / "coordinator", settings)
        names = [f"pi-{number}" for number in range(settings.devices)]
        self.devices = {name: SimulatedDevice(self, name, directory / "devices" / name) for name in names}
        self._patch = pytest.MonkeyPatch()

    def __enter__(self) -> World:
        self.oracle.installed(self._patch)
        self.coordinator.installed(self._patch)
        self.turns.watch(self._patch)
        return self

    def __exit__(self, *_: object) -> None:
        self._patch.undo()
        for device in self.devices.values():
            device.kill()

    # ---- time

    @property
    def now(self) -> float:
        """Return the world's time in seconds; no process in the world can read this clock."""
        return self.agenda.now

    def at(self, moment_s: float, action: Action) -> None:
        """Perform `action` `moment_s` seconds after the world began."""
        self.agenda.at(_BEGAN_S + moment_s, action)

    def note(self, line: str) -> None:
        self.log.append(f"{self.now - _BEGAN_S:9.3f}  {line}")
        for trigger in [one for one in self._triggers if one[0] in line]:
            self._triggers.remove(trigger)
            trigger[1]()

    def when(self, words: str, action: Action) -> None:
        """Perform `action` once, at the next log line that has these words."""
        self._triggers.append((words, action))

    def wait(self, until: Callable[[], bool], timeout_s: float | None) -> None:
        """Block the acting process until a condition holds, the time is up, or it is killed; the world's time advances."""
        waiting = self.turns.acting
        end = _BEGAN_S + LIMIT_S if timeout_s is None else self.now + max(0.0, timeout_s)
        if timeout_s and timeout_s > 0:
            end = max(end, math.nextafter(self.now, math.inf))  # else a shorter wait would never end
        with self.turns.of(None):
            while not until() and not (waiting is not None and waiting.dead) and self._step(end):
                pass
        if waiting is not None and waiting.dead:
            raise Killed(waiting.name)

    def _step(self, end: float) -> bool:
        at = self.agenda.next_at()
        if at is None or at > end:
            self.agenda.now = max(self.now, end)
            return False
        if at > _BEGAN_S + LIMIT_S:
            raise Broken("the run never ends")
        try:
            self.agenda.run_next()
            self._check_memory()
        except Exception as error:
            raise Broken(f"{type(error).__name__}: {error}") from error
        return True

    def _check_memory(self) -> None:
        """Check that the coordinator holds no more chunks of updates than its upload slots allow."""
        engine = self.coordinator.engine
        if engine is not None and engine.open is not None:
            places = engine.spec.upload_slots * engine.spec.upload_window
            active = engine.open._uploads._active.values()
            held = sum(min(engine.spec.upload_window, slot.manifest.chunk_count) for slot in active)
            assert held <= places, f"{held} chunks of updates are held, there is room for {places}"

    # ---- the parts

    def wire(self) -> Wire:
        return Wire(self.agenda, self.rng, self.broker.weather)

    def host(self, name: str) -> Host:
        """Return the host of a device, or else of the coordinator."""
        return self.devices[name].host if name in self.devices else self.coordinator.host

    def play(self) -> None:
        while self.coordinator.wanted:
            self.wait(lambda: False, self.coordinator.start_at - self.now)
            self.coordinator.run()

    def calm(self) -> None:
        """End all faults: start and connect everything again."""
        self.note("all is calm from here on")
        self.is_calm = True
        self.broker.up = True
        self.broker.weather = Weather()
        for host in (self.coordinator.host, *(device.host for device in self.devices.values())):
            host.heal()
        self.coordinator.next_fuse = None
        self._triggers.clear()
        for device in self.devices.values():
            device.defuse()
            device.start()
