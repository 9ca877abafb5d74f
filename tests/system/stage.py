"""The stage of survival tests: a broker, two devices that a test can hold in their training, a coordinator; and the oracle.

If a run with faults has the result of the oracle, which has none, no update was lost or counted twice, neither in the
model nor in a patch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fedpatch.coordinator.runtime.run_places import run_directory
from fedpatch.coordinator.storage.checkpoint import load_checkpoint
from fedpatch.device_agent.state.patch_store import CONTROLS, PatchKey, PatchState, PatchStore
from fedpatch.shared.mqtt.client import Received
from fedpatch.shared.tasks.torch_model import initial_tensors, schema_of
from fedpatch.shared.tensors.arrays import Array
from fedpatch.shared.wire import topics
from fedpatch.shared.wire.codec import decode
from fedpatch.shared.wire.messages import Body, DeviceState
from tests.support import oracle
from tests.support.brokers import Mosquitto, client
from tests.support.textbook import scaffold
from tests.system.commands import Command, Done
from tests.system.fleet import AgentProcess, Fleet
from tests.system.held_task import REFERENCE, TASK, Hold
from tests.system.oracle_task import build_model, device_data

ROUNDS = 4
STRATEGY, PRIVATE = "fedavg-adam", "affine"
DEVICES = {"ann": "n=37,test=20,seed=1", "bob": "n=23,test=20,seed=2"}
STEPS = {"ann": 5, "bob": 3}
"""Minibatches in a round: round(n / 7)."""

# Long deadlines: a test ends its waits itself, so no part gives up on a slow machine.
PATIENT = {"rejoin_s": 100, "grace_s": 100, "recruit_deadline_s": 100, "deadline_s": 300, "wait_s": 100, "quorum": 1}


@dataclass
class Stage:
    """A broker, two devices that a test can hold in their training, and a place for the coordinator's state."""

    broker: Mosquitto
    fleet: Fleet
    directory: Path
    holds: dict[str, Hold] = field(default_factory=dict)

    @property
    def state_dir(self) -> Path:
        return self.directory / "coordinator"

    def start_agents(self) -> tuple[AgentProcess, AgentProcess]:
        for device in DEVICES:
            self.start_agent(device)
        return self.fleet.agents["ann"], self.fleet.agents["bob"]

    def start_agent(self, device: str, options: Sequence[str] = ()) -> AgentProcess:
        """Start one of the devices, with further options of `fedpatch-agent run`."""
        self.holds[device] = Hold(self.directory / f"{device}.hold")
        return self.fleet.start(device, REFERENCE, f"{DEVICES[device]};{self.holds[device].path}", options=options)

    def begin(self, rounds: int = ROUNDS, program: str = "fedpatch", **changes: Any) -> Command:
        """Start `fedpatch run`, with deadlines of minutes unless `changes` has others."""
        given: dict[str, Any] = {
            "task": REFERENCE,
            "strategy": STRATEGY,
            "private": PRIVATE,
            "devices": len(DEVICES),
            **PATIENT,
        }
        given |= {"encoding": "fp32+zstd", "norm_bound": "off", "rounds": rounds}  # as the oracle computes
        state_dir = changes.pop("state_dir", self.state_dir)
        return self.fleet.coordinator(state_dir, program=program, **(given | changes))

    def kill_coordinator(self, *, round: int, step: int) -> None:
        """Begin a run, and kill its coordinator while Ann is held in her training."""
        self.start_agents()
        self.hold("ann", round=round, step=step)
        with self.begin() as coordinator:
            self.wait_held("ann", coordinator)
            coordinator.kill()

    def resumed(self) -> Done:
        """Release all devices, and resume the run to its end."""
        for hold in self.holds.values():
            hold.release()
        with self.resume() as coordinator:
            return coordinator.done()

    def resume(self, program: str = "fedpatch") -> Command:
        return Command(program, "resume", "last", "--state-dir", self.state_dir, "--json")

    def hold(self, device: str, *, round: int, step: int) -> None:
        """Hold a device at a step (from 1) of a round (from 1), both counted from its start."""
        self.holds[device].at((round - 1) * STEPS[device] + step)

    def wait_back(self, device: str) -> None:
        """Return once a device that was away is ready, and the coordinator gets its presence before all later messages."""
        self.fleet.agents[device].wait_ready()
        topic = topics.device_state(self.fleet.name, device)
        with client(self.broker.url, f"looks-for-{device}", topic) as looking:
            looking.wait(Received, lambda event: _can_be_asked(decode(event.payload).body))

    def wait_held(self, device: str, coordinator: Command) -> None:
        """Return once the device is held in its training."""
        coordinator.wait(lambda: self.holds[device].reached, f"{device} trains")

    def patch(self, device: str) -> PatchState:
        """Return the private patch on the device's disk."""
        key = PatchKey(TASK.name, schema_of(build_model()).digest, PRIVATE)
        return PatchStore(self.fleet.agents[device].patches).load(key, "another run", 0)


def wait_state(agent: AgentProcess, state: str) -> None:
    """Return once the job of an agent is in a state."""
    agent.wait(lambda: agent.status.get("state") == state, f"is {state}")


def _can_be_asked(state: Body) -> bool:
    return isinstance(state, DeviceState) and state.online and len(state.tasks) > 0


def outcomes(document: dict[str, Any]) -> list[tuple[int, str, int]]:
    """Return number, outcome and updates of each round in the document that a run printed."""
    return [(one["round"], one["outcome"], one["reported"]) for one in document["rounds"]]


def all_went_well(rounds: int = ROUNDS) -> list[tuple[int, str, int]]:
    """Return the outcomes of rounds with updates of both devices."""
    return [(number, "aggregated", len(DEVICES)) for number in range(1, rounds + 1)]


def assert_like_oracle(stage: Stage, document: dict[str, Any], cohorts: Sequence[Sequence[str]]) -> None:
    """Check that model, patches, moments and positions in the data are those of `cohorts` without faults."""
    data = {name: device_data(spec) for name, spec in DEVICES.items()}
    last = oracle.run_mtfl(
        build_model,
        {name: oracle.arrays_of(one) for name, one in data.items()},
        cohorts,
        STRATEGY,
        PRIVATE,
        TASK.learning_rates[STRATEGY],
        batch_size=TASK.batch_size,
    )[-1]
    with np.load(document["model"]) as model:
        _assert_close(dict(model), last.omega)
    for device in DEVICES:
        found = stage.patch(device)
        _assert_close(found.values, {**last.patches[device], **oracle.flat(last.patch_moments[device])})
        assert found.batches_done == STEPS[device] * sum(device in cohort for cohort in cohorts)


def assert_like_scaffold(stage: Stage, document: dict[str, Any], cohorts: Sequence[Sequence[str]]) -> None:
    """Check that model, c, and c_i of each device are those of SCAFFOLD with `cohorts` without faults."""
    data = {name: oracle.arrays_of(device_data(spec)) for name, spec in DEVICES.items()}
    model = build_model()
    oracle.load(model, initial_tensors(TASK, 0))
    rate, batch_size = TASK.learning_rates["fedavg"], TASK.batch_size
    x, c, c_i = scaffold(model, data, cohorts, eta_l=rate, batch_size=batch_size, seed=0)
    state = load_checkpoint(run_directory(stage.state_dir, document["run"]))[0]
    _assert_close(state.tensors, x | {f"{name}:control": value for name, value in c.items()})
    key = PatchKey(TASK.name, schema_of(build_model()).digest, "none")
    for device in DEVICES:
        store = PatchStore(stage.fleet.agents[device].patches / CONTROLS)
        found = store.load(key, document["run"], document["rounds"][-1]["round"] + 1).values
        _assert_close(found, {f"{name}:control": value for name, value in c_i[device].items()})


def assert_complete(stage: Stage, done: Done, rounds: int = ROUNDS) -> None:
    """Check that the run ended with exit code 0, has both devices in each round, and the result of the oracle."""
    assert done.code == 0
    assert outcomes(done.document) == all_went_well(rounds)
    assert_like_oracle(stage, done.document, [tuple(DEVICES)] * rounds)


def _assert_close(found: Mapping[str, Array], expected: Mapping[str, Array]) -> None:
    assert set(found) == set(expected)
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=0, atol=1e-5, err_msg=name)
