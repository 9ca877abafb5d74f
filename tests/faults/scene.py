"""The parts that faults affect: a few devices and a coordinator at a broker, and the settings of their rounds.

A device's number of examples is 23 plus a power of two. A round's record has the number of its reporters and the sum of
their examples, so it identifies the reporters, and shows whether a device was counted twice.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from pathlib import Path

from fedpatch.coordinator.rounds.round_record import RoundRecord
from fedpatch.coordinator.runtime.run_places import run_directory
from fedpatch.coordinator.storage.run_registry import REGISTRY_FILE, Registry
from fedpatch.device_agent.state.patch_store import PatchKey, PatchState, PatchStore
from fedpatch.shared.tasks.torch_model import schema_of
from tests.faults.slow_task import REFERENCE, TASK, build_model
from tests.support.brokers import Mosquitto
from tests.support.listing import listed
from tests.system.commands import Command
from tests.system.fleet import Fleet
from tests.system.oracle_task import device_data

NAMES = ("ann", "bob", "cat", "dan")
STRATEGY, PRIVATE = "fedavg-adam", "affine"  # tests.faults.lesson uses the same
_BASE_EXAMPLES = 23

# A round waits for every device that can still take part, even on a slow machine.
PATIENT = {"rejoin_s": 60, "grace_s": 60, "recruit_deadline_s": 60, "deadline_s": 120, "quorum": 0.3}
# A round does not wait for a device that is away for long, and it may fail.
HASTY = {"rejoin_s": 1, "grace_s": 1, "recruit_deadline_s": 2, "deadline_s": 12, "quorum": 0.3}


def data_spec(device: str) -> str:
    """Return the data spec of a device, without a pause."""
    number = NAMES.index(device)
    return f"n={_BASE_EXAMPLES + 2**number},test=20,seed={number + 1}"


def num_examples(device: str) -> int:
    return len(device_data(data_spec(device)).train_x)


def reporters(record: RoundRecord, devices: Sequence[str]) -> tuple[str, ...]:
    """Return the devices whose updates an aggregated round has; ValueError if no set of `devices` fits its record."""
    left = record.num_examples - _BASE_EXAMPLES * record.reported
    found = tuple(device for device in devices if left >= 0 and left >> NAMES.index(device) & 1)
    # Powers of two of which one occurs twice add up to fewer powers than there are terms.
    if sum(num_examples(device) for device in found) != record.num_examples or len(found) != record.reported:
        raise ValueError(f"no {record.reported} devices, each once, have {record.num_examples} examples together")
    return found


def start_fleet(
    stack: ExitStack, directory: Path, devices: Sequence[str], pause_ms: int
) -> tuple[Mosquitto, Fleet, Scene]:
    """Start a broker that keeps retained messages after a kill, and agents at it; all end with `stack`."""
    broker = stack.enter_context(Mosquitto(autosave=True))
    fleet = stack.enter_context(Fleet(broker.url, directory, forked=False))
    scene = Scene(fleet, directory, devices)
    for device in devices:
        scene.start_agent(device, pause_ms)
    fleet.wait_ready()
    return broker, fleet, scene


def make_as_new(fleet: Fleet, on: Callable[[str], AbstractContextManager[None]] = lambda _: nullcontext()) -> None:
    """Prepare for another run: no agent has a patch or waits for an ended coordinator. `on` enters the host of an agent."""
    for device, agent in fleet.agents.items():
        if not agent.running or agent.status.get("state") != "idle" or not agent.status.get("connected"):
            agent.kill()
            shutil.rmtree(agent.state_dir, ignore_errors=True)
            with on(device):
                agent.start()
    fleet.wait_ready()
    for agent in fleet.agents.values():
        for path in listed(agent.patches, "*"):
            path.unlink(missing_ok=True)
        agent.state_dir.with_suffix(".log").write_bytes(b"")


@dataclass(frozen=True)
class Scene:
    """Agents of `fleet` at a broker, and the `directory` in which a coordinator keeps one run."""

    fleet: Fleet
    directory: Path
    devices: Sequence[str]

    @property
    def state_dir(self) -> Path:
        return self.directory / "coordinator"

    def start_agent(self, device: str, pause_ms: int, options: Sequence[str] = ()) -> None:
        """Start the agent of a device; each step of its training takes `pause_ms` longer."""
        self.fleet.start(device, REFERENCE, f"{data_spec(device)};pause_ms={pause_ms}", options=options)

    def begin(self, rounds: int, terms: Mapping[str, object]) -> Command:
        """`fedpatch run`; `terms` are further options."""
        given = {"task": REFERENCE, "strategy": STRATEGY, "private": PRIVATE, "devices": len(self.devices)}
        given |= {"encoding": "fp32+zstd", "norm_bound": "off", "rounds": rounds}  # as the oracle computes
        given |= {"wait_s": 100, "max_failed_rounds": 1000, "chunk_kib": 8, **terms}
        return self.fleet.coordinator(self.state_dir, **given)

    def resume(self) -> Command:
        """`fedpatch resume last`."""
        return Command("fedpatch", "resume", "last", "--state-dir", self.state_dir, "--json")

    @property
    def run(self) -> str:
        """Return the id of the newest run, or "" while there is none."""
        return max((path.name for path in listed(self.state_dir, "runs/*")), default="")

    @property
    def is_over(self) -> bool:
        """Return whether the newest run is recorded as ended."""
        with Registry(self.state_dir / REGISTRY_FILE, readonly=True) as registry:
            return registry.run("last").status != "running"

    def run_dir(self, run: str) -> Path:
        """Return the directory of a run's checkpoints and updates."""
        return run_directory(self.state_dir, run)

    def log(self, device: str) -> Path:
        """Return the path of the log of all processes of a device's agent."""
        return self.fleet.agents[device].state_dir.with_suffix(".log")

    def offer(self, device: str) -> Path:
        """Return the path of the offer of an update that waits for its commit; the file exists while there is one."""
        return self.fleet.agents[device].state_dir / "spool" / "offer.msgpack"

    def patch(self, device: str) -> PatchState:
        """Return the private patch of a device, as the next round would load it."""
        key = PatchKey(TASK.name, schema_of(build_model()).digest, PRIVATE)
        return PatchStore(self.fleet.agents[device].patches).load(key, "another run", 0)
