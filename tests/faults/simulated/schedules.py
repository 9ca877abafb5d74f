"""Schedules of faults, drawn from a seed or written by an author, and the function that runs one."""

from __future__ import annotations

import os
import random
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from fedpatch.coordinator.guard.stop_request import STOP_FILE
from fedpatch.coordinator.settings import RunSettings
from tests.faults.schedules import seeds
from tests.faults.simulated.device import FLEET
from tests.faults.simulated.verdict import judge
from tests.faults.simulated.wire import Weather
from tests.faults.simulated.world import Broken, World

_MEMORY = Path("/dev/shm")
_HORIZON_S = 90.0
_STOPPED_SHARE = 0.3
Fault = Callable[[World], None]


@dataclass
class Schedule:
    """Faults at moments (seconds from the beginning), under these settings and this weather."""

    seed: int
    settings: RunSettings
    weather: Weather = field(default_factory=Weather)
    chunk_bytes: int = 100
    faults: list[tuple[float, Fault]] = field(default_factory=list)

    def at(self, moment_s: float, fault: Fault) -> Schedule:
        self.faults.append((moment_s, fault))
        return self


def chunks(count: int, size: int = 10) -> list[list[int]]:
    """Return seeds in chunks: those of FAULT_SEEDS (`make faults`), or else the first `count`."""
    given = os.environ.get("FAULT_SEEDS")
    chosen = seeds(given) if given else list(range(count))
    return [chosen[first : first + size] for first in range(0, len(chosen), size)]


class Failed(AssertionError):
    """A violated invariant, with the end of the log and the command to run the schedule again."""


def play(schedule: Schedule, watch: Callable[[World], None] = lambda world: None) -> World:
    """Run a schedule and judge it; `watch` gets the world before it begins. Raises Failed with the log's end."""
    with _directory() as directory:
        rng = random.Random(schedule.seed)
        with World(rng, directory, schedule.settings, schedule.weather, schedule.chunk_bytes) as world:
            for device in world.devices.values():
                world.at(rng.uniform(0.0, 5.0), device.start)
            for moment_s, fault in schedule.faults:
                world.at(moment_s, partial(_strike, world, fault))
            watch(world)
            try:
                world.play()
                judge(world)
            except (Exception, Broken) as error:
                end = "\n".join(world.log[-60:])
                again = f"python -m tests.faults.simulated --kind {_kind(schedule.settings)} --seed {schedule.seed}"
                raise Failed(f"{error}\nto play it again: {again}\n{end}") from error
    return world


def _kind(given: RunSettings) -> str:
    return "masked" if given.masked else "buffered" if given.late == "carry" else "plain"


def _strike(world: World, fault: Fault) -> None:
    if not world.is_calm:
        fault(world)


@contextmanager
def _directory() -> Iterator[Path]:
    """A temporary directory, in memory if possible, since slow writes to a disk would test nothing more."""
    place = _MEMORY if _MEMORY.is_dir() else None
    with tempfile.TemporaryDirectory(prefix="fedpatch-simulated-", dir=place) as name:
        yield Path(name)


def settings(**changes: Any) -> RunSettings:
    """Return settings of a small run of FedAvg with `affine` private."""
    given: dict[str, Any] = {
        "fleet": FLEET,
        "strategy": "fedavg",
        "private": "affine",
        "devices": 3,
        "rounds": 3,
        "quorum": 1.0,
        "recruit_deadline_s": 10.0,
        "deadline_s": 60.0,
        "grace_s": 10.0,
        "rejoin_s": 20.0,
        "wait_s": 240.0,
        "max_failed_rounds": 6,
        "upload_slots": 2,
        "upload_window": 2,
        # Devices have tens or hundreds of examples, and the oracle computes the mean of Algorithm 1, which has no cap.
        "max_num_examples": "off",
        "norm_bound": "off",
        "encoding": "fp32+zstd",
    }
    return RunSettings(**{**given, **changes})


def masked(**changes: Any) -> RunSettings:
    """Return settings of a small masked run: one group of nine devices, of which five must stay."""
    given: dict[str, Any] = {
        "secure": "groups",
        "threshold": "half",
        "encoding": "masked-u8",
        "group_size": 9,
        "devices": 9,
        "weight_cap": 500,
        "quorum": 0.5,
        "rounds": 2,
        "share_deadline_s": 20.0,
        "unmask_s": 20.0,
    }
    return settings(**{**given, **changes})


def draw_masked(seed: int) -> Schedule:
    """Return a masked run with weather and faults, all drawn from the seed."""
    rng = random.Random(f"masked {seed}")
    weather = Weather(
        delay_s=rng.uniform(0.01, 0.1), jitter_s=rng.choice((0.0, 0.05)), loss=rng.choice((0.0, 0.02)), twice=0.02
    )
    schedule = Schedule(seed, masked(deadline_s=rng.choice((40.0, 90.0))), weather, 1000)
    names = [f"pi-{number}" for number in range(9)]
    for _ in range(rng.randint(1, 5)):
        schedule.at(rng.uniform(1.0, _HORIZON_S / 2), _draw_fault(rng, names, schedule.settings.deadline_s or 0.0))
    return schedule


def buffered(**changes: Any) -> RunSettings:
    """Return settings of a small run with buffered rounds: four devices work, and two updates make a version."""
    given: dict[str, Any] = {"late": "carry", "quorum_updates": 2, "devices": 4, "rounds": 5, "max_staleness": 3}
    return settings(**{**given, "grace_s": 0.0, **changes})


def draw_buffered(seed: int) -> Schedule:
    """Return a run with buffered rounds, weather and faults, all drawn from the seed."""
    rng = random.Random(f"buffered {seed}")
    plain = draw(seed)
    devices = plain.settings.devices
    given = replace(
        plain.settings,
        late="carry",
        rounds=rng.randint(4, 7),
        quorum_updates=rng.choice((None, 1, 2, devices)),
        max_staleness=rng.choice((1, 2, 4)),
        staleness_power=rng.choice((-1.0, 0.0, 0.5, 1.0)),
        round_interval_s=rng.choice((0.0, 0.0, 20.0)),
        grace_s=rng.choice((0.0, 5.0)),
    )
    # At most all devices of the fleet, and at least those that a round needs.
    least = max(given.min_cohort, given.quorum_updates or 0)
    given = replace(given, concurrency=rng.choice((None, rng.randint(least, devices))))
    schedule = replace(plain, settings=given)
    if rng.random() < _STOPPED_SHARE:
        schedule.at(rng.uniform(1.0, _HORIZON_S), partial(stop, pause_s=rng.choice((1.0, 20.0))))
    return schedule


def draw(seed: int) -> Schedule:
    """Return a fleet with weather and faults, all drawn from the seed."""
    rng = random.Random(f"schedule {seed}")
    devices = rng.randint(3, 6)
    given = settings(
        devices=devices,
        rounds=rng.randint(3, 5),
        quorum=rng.choice((0.3, 0.5, 0.7, 1.0)),
        participation=rng.choice((0.5, 0.7, 1.0)),
        over_select=rng.choice((1.0, 1.3, 2.0)),
        min_cohort=rng.choice((1, 1, 2)),
        deadline_s=rng.choice((25.0, 40.0, 90.0)),
        grace_s=rng.choice((0.0, 5.0, 15.0)),
        rejoin_s=rng.choice((5.0, 15.0, 40.0)),
        upload_slots=rng.randint(1, 3),
        upload_window=rng.randint(1, 4),
        encoding=random.Random(f"encoding {seed}").choice(("fp32+zstd", "delta-int8")),
    )
    weather = Weather(
        delay_s=rng.uniform(0.01, 0.1),
        jitter_s=rng.choice((0.0, 0.05, 1.0)),
        loss=rng.choice((0.0, 0.02, 0.1)),
        twice=rng.choice((0.0, 0.05)),
    )
    schedule = Schedule(seed, given, weather, rng.choice((60, 150, 1000)))
    names = [f"pi-{number}" for number in range(devices)]
    for _ in range(rng.randint(2, 8)):
        schedule.at(rng.uniform(1.0, _HORIZON_S), _draw_fault(rng, names, given.deadline_s or 0.0))
    return schedule


DRAWS: Mapping[str, Callable[[int], Schedule]] = {"plain": draw, "masked": draw_masked, "buffered": draw_buffered}
"""How a schedule of each kind is drawn from a seed."""


def _draw_fault(rng: random.Random, names: list[str], deadline_s: float) -> Fault:
    name = rng.choice(names)
    pause_s = rng.choice((0.1, 1.0, 5.0, 20.0, deadline_s + 30.0))
    fuse = rng.choice((None, rng.randint(0, 40)))
    kinds: list[tuple[int, Fault]] = [
        (6, partial(kill_coordinator, pause_s=pause_s, fuse=fuse)),
        (2, partial(kill_coordinator, pause_s=pause_s, fuse=fuse, then=rng.randint(0, 30))),
        (5, partial(kill_at_commit, pause_s=pause_s, fuse=rng.choice((None, rng.randint(0, 12))))),
        (4, partial(kill_agent, name=name, pause_s=pause_s, fuse=rng.choice((None, rng.randint(0, 12))))),
        (2, partial(kill_training, name=name, fuse=rng.choice((None, rng.randint(0, 8))))),
        (2, partial(kill_broker, pause_s=min(pause_s, 20.0), forgets=rng.random() < 0.5)),
        (3, partial(separate, name=name, reach=rng.choice(("cut", "silent")), seconds=rng.choice((2.0, 20.0, 70.0)))),
        (2, partial(separate, name="", reach=rng.choice(("cut", "silent")), seconds=rng.choice((2.0, 20.0, 70.0)))),
        (2, partial(interrupt, pause_s=pause_s)),
        (1, partial(reboot, jump_s=rng.choice((-3e8, -10.0, 50.0, 3e8)), pause_s=pause_s)),
        (1, partial(damage_checkpoint, pause_s=pause_s)),
        (2, partial(damage_held, name=name, at=rng.random())),
    ]
    return rng.choices([fault for _, fault in kinds], [weight for weight, _ in kinds])[0]


# ---- faults


def kill_coordinator(world: World, *, pause_s: float, fuse: int | None = None, then: int | None = None) -> None:
    """Kill the coordinator now or after `fuse` more writes, and the next process after `then` writes."""
    world.note(f"fault: the coordinator is killed {_when(fuse)}, for {pause_s:g} s{_and_then(then)}")
    world.coordinator.kill(pause_s, fuse)
    world.coordinator.next_fuse = then


def kill_at_commit(world: World, *, pause_s: float, fuse: int | None) -> None:
    """Kill the coordinator at the next commit of an update: before its device is notified, or before a later write."""

    def strike() -> None:
        world.note(f"fault: the coordinator is killed {_when(fuse)}, for {pause_s:g} s")
        if fuse is None:
            world.coordinator.die_here(pause_s)
        world.coordinator.kill(pause_s, fuse)

    world.when("is in the registry", strike)


def interrupt(world: World, *, pause_s: float) -> None:
    """Press Ctrl-C, and `fedpatch resume` later."""
    world.note(f"fault: Ctrl-C, for {pause_s:g} s")
    world.coordinator.interrupt(pause_s)


def stop(world: World, *, pause_s: float) -> None:
    """`fedpatch stop` ends the run after its open round; `fedpatch resume` follows later."""
    directory = world.coordinator.directory / "runs" / world.oracle.run
    if world.oracle.run and directory.is_dir():
        world.note(f"fault: a stop after the open round, for {pause_s:g} s")
        world.coordinator.pause_s = pause_s
        (directory / STOP_FILE).touch()


def reboot(world: World, *, jump_s: float, pause_s: float) -> None:
    """The coordinator's machine starts again, with another wall clock."""
    world.note(f"fault: the coordinator's machine reboots, for {pause_s:g} s, its clock jumps by {jump_s:g} s")
    world.oracle.reboots()
    world.coordinator.reboot(jump_s, pause_s)


def kill_agent(world: World, *, name: str, pause_s: float, fuse: int | None = None) -> None:
    """Switch a device off, now or before a later write, and on again."""
    world.note(f"fault: {name} is killed {_when(fuse)}, for {pause_s:g} s")
    device = world.devices[name]
    if device.process is None:
        return
    if fuse is None:
        device.kill()
    else:
        device.process.fuse = fuse
    _keep_alive(world, name, pause_s)


def _keep_alive(world: World, name: str, pause_s: float) -> None:
    """Check the device after `pause_s`, and start it again if it is dead; repeat the check while a kill is planned."""

    def look() -> None:
        device = world.devices[name]
        if device.process is None:
            world.note(f"{name} is switched on")
            device.start()
        elif device.process.fuse is not None:
            world.agenda.after(max(pause_s, 1.0), look)

    world.agenda.after(pause_s, look)


def kill_training(world: World, *, name: str, fuse: int | None = None) -> None:
    """Kill only the training process; its agent starts another when it needs one."""
    world.note(f"fault: the training of {name} is killed {_when(fuse)}")
    device = world.devices[name]
    if device.process is None:
        return
    if fuse is None:
        device.trainer.kill()
    elif device.trainer.process is not None:
        device.trainer.process.fuse = fuse


def kill_broker(world: World, *, pause_s: float, forgets: bool) -> None:
    """Kill the broker: messages queued and in flight are lost, with `forgets` also retained messages."""
    world.note(f"fault: the broker is killed for {pause_s:g} s{' and forgets everything' if forgets else ''}")
    world.broker.kill(forgets)

    def back() -> None:
        world.broker.up = True
        world.note("the broker is back")

    world.agenda.after(pause_s, back)


def separate(world: World, *, name: str, reach: str, seconds: float) -> None:
    """A device, or the coordinator (""), cannot reach the broker for a while."""
    host = world.host(name)
    world.note(f"fault: {host.name} is separated ({reach}) for {seconds:g} s")
    if host.reach != "ok":
        return
    host.separate(reach)

    def heal() -> None:
        world.note(f"{host.name} is back on the network")
        host.heal()

    world.agenda.after(seconds, heal)


def damage_checkpoint(world: World, *, pause_s: float) -> None:
    """Kill the coordinator, and damage its newest checkpoint while it is down, if there is an earlier one."""
    world.coordinator.kill(pause_s)
    found = sorted(world.coordinator.directory.glob("runs/*/checkpoint-*.fp"))
    world.note(
        f"fault: the coordinator is killed for {pause_s:g} s, and of {len(found)} checkpoints the last is damaged"
    )
    if len(found) > 1:
        world.oracle.damaged = True
        with found[-1].open("r+b") as file:
            file.truncate(found[-1].stat().st_size - 1)


def damage_held(world: World, *, name: str, at: float) -> None:
    """Change a bit of the global model that a device holds, if it holds one."""
    path = world.devices[name].directory / "held" / "global.model"
    world.note(f"fault: what {name} holds is damaged")
    if path.exists():
        data = bytearray(path.read_bytes())
        data[int(at * len(data))] ^= 1
        path.write_bytes(data)


def _when(fuse: int | None) -> str:
    return "at once" if fuse is None else f"before its write number {fuse + 1}"


def _and_then(then: int | None) -> str:
    return "" if then is None else f", and the next one before its write number {then + 1}"
