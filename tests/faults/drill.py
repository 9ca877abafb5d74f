"""Runs a schedule of faults: kills and restarts processes at the scheduled times, until the run ends.

A `Lane` is a broker and a few agents for one run after the other, since an agent takes seconds to import torch. Each drill
starts its own coordinator. The files of a failed drill are kept.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tests.faults.scene import HASTY, NAMES, PATIENT, Scene, make_as_new, start_fleet
from tests.faults.schedules import Schedule, Strike, Victim
from tests.faults.verdict import judge
from tests.faults.watch import Seen, Watch
from tests.support.listing import children
from tests.system.commands import Command
from tests.system.fleet import PATIENCE_S, AgentProcess

DEVICES = NAMES[:3]
ROUNDS = 4
PAUSE_MS = 25
"""In each of the three or four steps of a round's training."""

_GOES_ON = "going on after"
_POLL_S = 0.005
_MOMENT_PATIENCE_S = 15.0
"""A strike whose event does not come happens anyway after this time."""
_RUN_PATIENCE_S = 180.0
"""Every run ends within this time: each round may take only a fraction of it."""


class Lane:
    """A broker that keeps retained messages after a kill, and agents; all their files are in `directory`."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._open = contextlib.ExitStack()

    def __enter__(self) -> Lane:
        self.broker, self.fleet, _ = start_fleet(self._open, self.directory, DEVICES, PAUSE_MS)
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def play(self, schedule: Schedule) -> list[str]:
        """Return the problems of the run of a schedule; if there are any, its files are in `kept`."""
        directory = self.kept(schedule)
        terms = HASTY if schedule.hasty else PATIENT
        drill = Drill(self, schedule, Scene(self.fleet, directory, DEVICES), terms)
        try:
            document = drill.play()
            problems = judge(drill.scene, drill.watch, document, ROUNDS, terms, absent_s=drill.absent_s)
        except (TimeoutError, RuntimeError, OSError) as error:
            problems = [f"{type(error).__name__}: {error}"]
        if problems:
            self._keep(directory, [str(schedule), "", *drill.diary, "", *problems])
        else:
            shutil.rmtree(directory)
        make_as_new(self.fleet)
        return problems

    def kept(self, schedule: Schedule) -> Path:
        return self.directory / f"seed-{schedule.seed}"

    def _keep(self, directory: Path, lines: Sequence[str]) -> None:
        for device, agent in self.fleet.agents.items():
            with contextlib.suppress(shutil.Error):  # files that the agent deletes meanwhile
                shutil.copytree(agent.state_dir, directory / "devices" / device)
            (directory / "devices" / f"{device}.log").write_text(agent.log)
        shutil.copy(self.broker.directory / "log", directory / "mosquitto.log")
        (directory / "what.txt").write_text("\n".join(lines) + "\n")


class Drill:
    """One run under one schedule. `diary` has timed actions and observations, `absent_s` the seconds without a coordinator."""

    def __init__(self, lane: Lane, schedule: Schedule, scene: Scene, terms: dict[str, float]) -> None:
        scene.directory.mkdir(parents=True)
        self.scene = scene
        self.watch = Watch(scene)
        self.diary: list[str] = []
        self._lane = lane
        self._terms = terms
        self._strikes = list(schedule.strikes)
        self._due: list[tuple[float, Callable[[], None]]] = []
        self._coordinator: Command | None = None
        self._broker_is_dead = False
        self._open = contextlib.ExitStack()
        self._began = time.monotonic()
        self._absent_since: float | None = None
        self.absent_s = 0.0

    def play(self) -> Any:
        """Return the document that the run printed at its end; TimeoutError if it does not end."""
        try:
            self._start_coordinator(by_run=True)
            give_up_at = time.monotonic() + _RUN_PATIENCE_S
            armed_at, fall_at = time.monotonic(), None
            while self._coordinator is None or self._coordinator.running:
                now = time.monotonic()
                if now > give_up_at:
                    raise TimeoutError(f"the run does not end:\n{self._coordinator and self._coordinator.err}")
                seen = self._look()
                self._do_what_is_due(now)
                if fall_at is None and self._strikes and self._is_time(self._strikes[0], seen, now - armed_at):
                    fall_at = now + self._strikes[0].delay_s
                if fall_at is not None and now >= fall_at:
                    self._strike(self._strikes.pop(0))
                    armed_at, fall_at = time.monotonic(), None
                time.sleep(_POLL_S)
            done = self._coordinator.done()
            self._finish()
            if done.code != 0:
                raise RuntimeError(f"the coordinator ended with {done.code}:\n{done.err}")
            return done.document
        finally:
            self._end_coordinator()

    def _look(self) -> list[Seen]:
        seen = self.watch.poll()
        for one in seen:
            self._note(f"{one.what} {one.round} {one.device}")
        if self._absent_since is not None and self._coordinator is not None and _GOES_ON in self._coordinator.err:
            self.absent_s += time.monotonic() - self._absent_since
            self._absent_since = None
            self._note("the coordinator goes on")
        return seen

    def _do_what_is_due(self, now: float) -> None:
        for due in [one for one in self._due if one[0] <= now]:
            self._due.remove(due)
            due[1]()

    def _is_time(self, strike: Strike, seen: Sequence[Seen], waited_s: float) -> bool:
        if strike.victim is Victim.COORDINATOR and self._coordinator is None:
            return False  # it is already dead
        happened = strike.after is None or strike.after in {one.what for one in seen}
        return happened or waited_s > _MOMENT_PATIENCE_S

    def _strike(self, strike: Strike) -> None:
        self._note(f"-> {strike}")
        back_at = time.monotonic() + strike.pause_s
        match strike.victim:
            case Victim.COORDINATOR:
                self._end_coordinator()
                self._absent_since = self._absent_since or time.monotonic()
                self._due.append((back_at, lambda: self._start_coordinator(by_run=strike.by_run)))
            case Victim.BROKER:
                self._lane.broker.kill()
                self._broker_is_dead = True
                self._due.append((back_at, self._start_broker))
            case Victim.TRAINING:
                self._kill_training(self._lane.fleet.agents[strike.device])
            case Victim.AGENT | Victim.DEVICE:
                agent = self._lane.fleet.agents[strike.device]
                self._kill_agent(agent, alone=strike.victim is Victim.AGENT)
                self._due.append((back_at, lambda: self._start_agent(agent)))

    def _start_coordinator(self, *, by_run: bool) -> None:
        # A coordinator that was killed after the end of its run left no run to resume, and `run` would begin another.
        by_run = not self.scene.run or (by_run and not self.scene.is_over)
        self._note(f"<- coordinator, by {'run' if by_run else 'resume'}")
        command = self.scene.begin(ROUNDS, self._terms) if by_run else self.scene.resume()
        self._coordinator = self._open.enter_context(command)

    def _end_coordinator(self) -> None:
        if self._coordinator is None:
            return
        self._coordinator.kill()
        with (self.scene.directory / "coordinator.log").open("a") as log:
            log.write(f"--- epoch of {time.monotonic() - self._began:.3f} s\n{self._coordinator.err}")
        self._coordinator = None
        self._open.close()

    def _start_broker(self) -> None:
        if self._broker_is_dead:
            self._note("<- broker")
            self._lane.broker.start()
            self._broker_is_dead = False

    def _start_agent(self, agent: AgentProcess) -> None:
        if not agent.running:
            self._note(f"<- {agent.device}")
            agent.restart()

    def _kill_agent(self, agent: AgentProcess, *, alone: bool) -> None:
        if not alone:
            agent.kill()
        elif agent.running:
            os.kill(agent.pid, signal.SIGKILL)
            while agent.running:
                time.sleep(_POLL_S)

    def _kill_training(self, agent: AgentProcess) -> None:
        for pid in children(agent.pid) if agent.running else ():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _finish(self) -> None:
        """Restart dead processes, and wait until the devices have received their last messages."""
        for _, action in sorted(self._due, key=lambda due: due[0]):
            action()
        self._due.clear()
        until = time.monotonic() + PATIENCE_S
        agents = self._lane.fleet.agents.values()
        while any(agent.status.get("state") in (None, "training") for agent in agents) and time.monotonic() < until:
            time.sleep(_POLL_S)
        self._look()

    def _note(self, line: str) -> None:
        self.diary.append(f"{time.monotonic() - self._began:8.3f} {line}")
