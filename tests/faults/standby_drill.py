"""Runs two coordinators with `--standby` under drawn faults of all parts, and records the outcomes.

Leader, standby, PostgreSQL, object store, broker nodes and relay are each killed and paused; also, the leader hands over
and the database ends sessions. The model of each run must be equal to that of an undisturbed run bit for bit, each round must
have all devices, and each device must train once a round.

    python -m tests.faults.standby_drill --seeds 0..13 --out results/robustness/standby.json
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Protocol

import typer

from benchmarks.support.report import machine
from fedpatch.coordinator.blobs.blob_store import run_blobs
from fedpatch.shared.app.files import write_atomic
from fedpatch.shared.app.signals import EXIT_INTERRUPTED
from fedpatch.shared.errors import EXIT_LED, StoreUnavailable
from tests.faults.schedules import seeds as seeds_of
from tests.faults.standby_faults import Action, Part, Strike, draw
from tests.faults.standby_place import HUB, ROUNDS, Place, arrays
from tests.support.postgresql import postgres_server
from tests.support.s3_server import S3Server
from tests.system.commands import Command

TAKEOVER_S = 10.0
_POLL_S = 0.01
_RUN_PATIENCE_S = 400.0
_GOES_ON = re.compile(r"going on after round \d+, epoch (\d+)")
_LEADS = re.compile(r"leading fleet 'demo', epoch (\d+)")
_ENDS = {0, StoreUnavailable.exit_code, EXIT_LED}
"""A service manager starts each again but 0."""
_ENDS_OF = {Action.KILL: -9, Action.TERMINATE: EXIT_INTERRUPTED}
"""Exit codes of a coordinator after a fault of its own."""


class Server(Protocol):
    """A server that faults can affect."""

    def start(self) -> None: ...
    def kill(self) -> None: ...
    def freeze(self) -> None: ...
    def thaw(self) -> None: ...


@dataclass
class Outcome:
    """The outcome of a schedule."""

    seed: int
    problems: list[str] = field(default_factory=list)
    diary: list[str] = field(default_factory=list)
    struck: list[Strike] = field(default_factory=list)
    takeovers: list[tuple[Action, float]] = field(default_factory=list)
    """The fault before each takeover, and the seconds from the fault to the takeover."""


class Coordinator:
    """One of the two coordinators, over all its restarts."""

    def __init__(self, place: Place, name: str, drill: Drill, broker: str) -> None:
        self.name = name
        self.codes: list[int] = []
        self.document: Any = None
        self.paused = self.leaves = False
        self.struck: set[Action] = set()
        self._place, self._broker, self._directory = place, broker, drill.directory / name
        self._options = {"state": drill.state, "blobs": place.blobs, "standby": True, "unless_done": True}
        self._open = contextlib.ExitStack()
        self.command: Command | None = None

    def start(self) -> None:
        self._directory.mkdir(exist_ok=True)
        self.struck.clear()
        self.command = self._open.enter_context(self._place.begin(self._directory, self._broker, **self._options))

    @property
    def epoch(self) -> int:
        """Return the epoch in which it leads by its own output; 0 for none."""
        return self._last(_LEADS)

    @property
    def goes_on(self) -> int:
        """Return the epoch in which it continues the run of the other coordinator; 0 for none."""
        return self._last(_GOES_ON)

    def _last(self, line: re.Pattern[str]) -> int:
        found = line.findall(self.command.err) if self.command is not None else []
        return int(found[-1]) if found else 0

    def ended(self) -> bool:
        """Return whether it has just ended; if so, keep its output."""
        if self.command is None or self.command.running:
            return False
        done = self.command.done()
        self.codes.append(done.code)
        with (self._directory / "log").open("a") as log:
            log.write(f"--- ended with {done.code}\n{done.err}")
        if done.code == 0:
            self.document = done.document
        self.close()
        return True

    def close(self) -> None:
        self._open.close()
        self.command, self.paused, self.leaves = None, False, False

    @property
    def ready(self) -> bool:
        """Return whether it leads or waits, and no fault affects it."""
        if self.command is None or self.paused or self.leaves:
            return False
        return bool(self.epoch) or "waiting to take over" in self.command.err


class Drill:
    """One run under the schedule of a seed."""

    def __init__(self, place: Place, seed: int) -> None:
        self.directory = place.directory / f"standby-{seed}"
        self.directory.mkdir()
        self.state = place.server.url()
        self.outcome = Outcome(seed)
        self._place = place
        self._strikes = draw(seed, len(place.brokers))
        urls = {"one": place.cluster.prefer_b, "two": place.cluster.prefer_a}
        self._both = [Coordinator(place, name, self, url) for name, url in urls.items()]
        self._due: list[tuple[float, Callable[[], None]]] = []
        self._began = time.monotonic()
        self._gone: tuple[float, int, Action] | None = None

    def play(self) -> Outcome:
        try:
            self._place.renew()
            self._began = time.monotonic()
            for one in self._both:
                one.start()
            self._go_on()
            self._judge()
        except (TimeoutError, RuntimeError, OSError, AssertionError) as error:
            self.outcome.problems.append(f"{type(error).__name__}: {error}")
        finally:
            for _, action in self._due:
                try:
                    action()
                except (OSError, RuntimeError, AssertionError) as error:
                    self.outcome.problems.append(f"at the end: {type(error).__name__}: {error}")
            for one in self._both:
                one.close()
        if self.outcome.problems:
            (self.directory / "what.txt").write_text("\n".join([*self.outcome.diary, *self.outcome.problems]))
        return self.outcome

    def _go_on(self) -> None:
        fall_at: float | None = None
        while any(one.document is None for one in self._both):
            now = time.monotonic()
            if now > self._began + _RUN_PATIENCE_S:
                raise TimeoutError("the run does not end")
            for due in [one for one in self._due if one[0] <= now]:
                self._due.remove(due)
                due[1]()
            self._look(now)
            leader = self._leader()
            # One leads and the other waits; a former leader that has not ended yet is not a standby.
            a_pair = all(one.ready for one in self._both) and sum(one.epoch > 0 for one in self._both) == 1
            ready = a_pair and not self._due and self._gone is None
            if fall_at is None and self._strikes and ready:
                fall_at = now + self._strikes[0].delay_s
            if fall_at is not None and now >= fall_at and leader is not None and ready:
                self._strike(self._strikes.pop(0), leader)
                fall_at = None
            time.sleep(_POLL_S)

    def _look(self, now: float) -> None:
        """Note ended coordinators, restart those that ended too early, and note takeovers."""
        self._place.relay.must_run()
        for one in self._both:
            if one.ended():
                self._note(f"{one.name} ended with {one.codes[-1]}")
                if one.codes[-1] not in _ENDS | {_ENDS_OF.get(action) for action in one.struck}:
                    raise RuntimeError(f"{one.name} ended with {one.codes[-1]}")
                if one.codes[-1] != 0:
                    self._due.append((now + 0.5, one.start))
        if self._gone is not None and max(one.goes_on for one in self._both) > self._gone[1]:
            self.outcome.takeovers.append((self._gone[2], round(now - self._gone[0], 1)))
            self._note(f"taken over after {now - self._gone[0]:.1f} s")
            self._gone = None
        elif self._gone is not None and any(one.document is not None for one in self._both):
            self._gone = None

    def _leader(self) -> Coordinator | None:
        at_work = [one for one in self._both if one.ready and one.epoch]
        return max(at_work, key=lambda one: one.epoch, default=None)

    def _strike(self, strike: Strike, leader: Coordinator) -> None:
        which = f" {strike.broker}" if strike.part is Part.BROKER else ""
        self._note(f"-> {strike}{which}, back after {strike.pause_s} s; leader {leader.name}, epoch {leader.epoch}")
        self.outcome.struck.append(strike)
        back_at = time.monotonic() + strike.pause_s
        match strike.part:
            case Part.LEADER:
                if strike.action is not Action.PAUSE or strike.pause_s > TAKEOVER_S - 1.0:
                    self._gone = (time.monotonic(), leader.epoch, strike.action)
                self._end(strike.action, leader, back_at)
            case Part.STANDBY:
                self._end(strike.action, next(one for one in self._both if one is not leader), back_at)
            case Part.DATABASE if strike.action is Action.END_SESSIONS:
                with self._place.server.session() as session:
                    session.execute(
                        b"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'fedpatch%'"
                    )
            case part:
                servers: dict[Part, Server] = {
                    Part.DATABASE: self._place.server,
                    Part.STORE: self._place.store,
                    Part.BROKER: self._place.brokers[strike.broker],
                    Part.RELAY: self._place.relay,
                }
                self._strike_server(strike.action, servers[part], back_at)

    def _strike_server(self, action: Action, server: Server, back_at: float) -> None:
        if action is Action.KILL:
            server.kill()
            self._due.append((back_at, server.start))
        else:
            server.freeze()
            self._due.append((back_at, server.thaw))

    def _end(self, action: Action, one: Coordinator, back_at: float) -> None:
        one.struck.add(action)
        if action is Action.PAUSE:
            self._pause(one, back_at)
        elif one.command is not None and action is Action.KILL:
            one.command.kill()
        elif one.command is not None:
            one.command.ask_to_end()
            one.leaves = True

    def _pause(self, one: Coordinator, back_at: float) -> None:
        command = one.command
        if command is None:
            return
        command.freeze()
        one.paused = True

        def thaw() -> None:
            if one.command is command:
                command.thaw()
                one.paused = False

        self._due.append((back_at, thaw))

    def _judge(self) -> None:
        problems = self.outcome.problems
        document = self._both[0].document
        if any(one.document[key] != document[key] for one in self._both for key in ("run", "model", "rounds")):
            problems.append("the coordinators report different runs, models or rounds")
        rounds = [(one["round"], one["outcome"], one["reported"]) for one in document["rounds"]]
        if rounds != [(number, "aggregated", len(HUB)) for number in range(1, self._place.rounds + 1)]:
            problems.append(f"rounds: {rounds}")
        epoch = int(document["model"].rpartition("epoch-")[2].partition("/")[0])
        blob = run_blobs({"blobs": self._place.blobs}, Path(document["run"]), epoch).get("model.npz")
        if blob is None or arrays(blob) != self._place.model:
            problems.append("the model has other bits than that of the undisturbed run")
        for agent in self._place.agents:
            log = agent.log
            for number in range(1, self._place.rounds + 1):
                if (times := log.count(f"{document['run']} round {number}: training")) != 1:
                    problems.append(f"{agent.device} trained {times} times in round {number}")

    def _note(self, line: str) -> None:
        self.outcome.diary.append(f"{time.monotonic() - self._began:8.2f} {line}")


def main(
    seeds: Annotated[str, typer.Option(help="Seeds, such as 0..11 or 3,5.")] = "0..13",
    out: Annotated[Path, typer.Option(help="Where the outcomes go.")] = Path("standby.json"),
) -> None:
    """Play schedules of two coordinators with standby, and record the outcomes."""
    outcomes, began_on = [], machine()
    with contextlib.ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fedpatch-standby-")))
        store = stack.enter_context(S3Server())
        os.environ.update(store.environment)
        server = stack.enter_context(postgres_server())
        place = stack.enter_context(Place(directory, server, store, "s3://fleet/standby"))
        for seed in seeds_of(seeds):
            outcomes.append(outcome := Drill(place, seed).play())
            # The test suite does not check these times, since its machine is busy.
            if late := [took for _, took in outcome.takeovers if took > TAKEOVER_S]:
                outcome.problems.append(f"takeovers took {late} s")
            for line in (f"seed {seed}", *outcome.diary, *outcome.problems):
                typer.echo(line)
    struck = [strike for outcome in outcomes for strike in outcome.struck]
    found = {
        "command": " ".join(["python -m tests.faults.standby_drill", *sys.argv[1:]]),
        "machine": began_on,
        "rounds_each": ROUNDS,
        "faults": len(struck),
        "faults_by_part": {
            part: dict(Counter(one.action for one in struck if one.part is part).most_common()) for part in Part
        },
        "takeovers_s": {
            action: sorted(took_s for outcome in outcomes for cause, took_s in outcome.takeovers if cause is action)
            for action in (Action.KILL, Action.PAUSE, Action.TERMINATE)
        },
        "runs": [
            {"seed": one.seed, "faults": [str(strike) for strike in one.struck], "problems": len(one.problems)}
            for one in outcomes
        ],
        "problems": [f"seed {outcome.seed}: {one}" for outcome in outcomes for one in outcome.problems],
    }
    write_atomic(out, (json.dumps(found, indent=1) + os.linesep).encode(), mode=0o644)
    typer.echo(json.dumps(found, indent=1))
    raise typer.Exit(bool(found["problems"]))


if __name__ == "__main__":
    typer.run(main)
