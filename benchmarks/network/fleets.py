"""Contestants of network.coordination: each has a coordinator, a broker and devices without training as processes."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks.device.light_devices import LightDevices
from benchmarks.network.shipped_broker import shipped_broker
from benchmarks.support.contests import Contest, Measured, play_in_turn
from benchmarks.support.programs import Program
from benchmarks.training.peer_rounds import HOW_TO_GET
from fedpatch.coordinator.settings import RunSettings
from fedpatch.shared.errors import FedpatchError
from fedpatch.shared.tasks.task import find_task

FLEET = "benchmark"
DEVICES_PER_PROCESS = 250
LEAST_PROCESSES = 2
"""Devices stand for machines of their own, so they share no processor where there are two."""

_UNLIMITED = {"max_queued_messages": "0", "max_queued_bytes": "0", "memory_limit": ""}


class _Fleet:
    """The processes of a contestant, which runs rounds for each line on stdin; they are closed in reverse order."""

    def __init__(self, rounds: int) -> None:
        self._stack = ExitStack()
        self._rounds = str(rounds)
        self._server: Program
        self.answers: list[Mapping[str, Any]] = []

    def play(self) -> float | None:
        """Run the rounds of a turn; nothing is learned."""
        self.answers.append(self._server.ask(self._rounds))
        return None

    def pids(self) -> list[int]:
        """Return the coordinating process; broker and devices are equal for our contestants, or parts of Flower."""
        return [self._server.pid]

    def close(self) -> None:
        """End all processes."""
        self._stack.close()

    def _program(self, what: str, *line: str) -> Program:
        program = Program(what, [sys.executable, "-m", *line])
        self._stack.callback(program.close)
        return program


def _is_about_goodbye(_kind: object, error: object, _trace: object) -> bool:
    """Return whether to ignore an error at the end: the final figures of the devices are not used here."""
    return isinstance(error, FedpatchError)


def _processes(devices: int) -> int:
    return max(min(LEAST_PROCESSES, devices), -(-devices // DEVICES_PER_PROCESS))


class FedpatchFleet(_Fleet):
    """Our coordinator with its defaults except `encoding` and `changes`; the broker has the shipped queue limits."""

    def __init__(self, task: str, devices: int, encoding: str, rounds: int, folder: Path, **changes: str | int) -> None:
        super().__init__(rounds)
        try:
            folder.mkdir()
            broker = self._stack.enter_context(shipped_broker(folder))
            fleet = LightDevices(
                broker=broker.url, fleet=FLEET, task=find_task(task), count=devices, processes=_processes(devices)
            )
            self._stack.push(_is_about_goodbye)
            self._stack.enter_context(fleet).wait_ready()
            settings = {"broker": broker.url, "fleet": FLEET, "task": task, "devices": devices}
            settings |= {
                "encoding": encoding,
                "state_dir": str(folder / "state"),
                "metrics": "127.0.0.1:0",
            }
            # On one machine each of many devices waits for all others.
            settings |= {
                "strategy": "fedavg",
                "private": "none",
                "wait_s": 300.0,
                "grace_s": 300.0,
                "recruit_deadline_s": 300.0,
                "quorum": 1.0,
                **changes,
            }
            self._server = self._program(
                "the coordinator", "benchmarks.network.coordinator_process", json.dumps(settings)
            )
            self.answers.append(self._server.hello)
        except BaseException:
            self.close()
            raise


FASTEST_PART_BYTES = 256 * 1024


def compare_settings(
    task: str,
    devices: int,
    rounds: int,
    turns: int,
    variants: Mapping[str, Mapping[str, str | int]],
    say: Callable[[str], None],
) -> list[Measured]:
    """Run rounds of coordinators that differ in settings, in turn, and return the measurements of each.

    Args:
        task: The task whose model travels, in `delta-int8`.
        devices: Number of light devices of each fleet.
        rounds: Rounds in a turn.
        turns: Turns of each coordinator.
        variants: The settings in which each coordinator differs from the defaults, by its name.
        say: Called with a line for each fleet and turn.
    """
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fedpatch-settings-")))
        contests = []
        for name, changes in variants.items():
            say(f"{devices} devices: made ready: {name}")
            fleet = FedpatchFleet(task, devices, "delta-int8", rounds, folder / name, **changes)
            stack.callback(fleet.close)
            contests.append(Contest(name, name, fleet, share=rounds))
        return play_in_turn(contests, turns, say=say)


class BareFleet(_Fleet):
    """paho and msgpack alone; the broker drops nothing. If `durable`, with our size of chunks, hashing and writing."""

    def __init__(self, task: str, devices: int, rounds: int, folder: Path, *, durable: bool = False) -> None:
        super().__init__(rounds)
        try:
            folder.mkdir()
            broker = self._stack.enter_context(shipped_broker(folder, changes=_UNLIMITED))
            bare, processes = "benchmarks.network.bare_exchange", _processes(devices)
            part_bytes = str(RunSettings.chunk_kib * 1024 if durable else FASTEST_PART_BYTES)
            for first, after in pairwise(number * devices // processes for number in range(processes + 1)):
                self._program("devices", bare, "devices", broker.url, part_bytes, str(first), str(after - first))
            shapes = json.dumps(model_shapes(task))
            place = (str(folder),) if durable else ()
            line = ("server", broker.url, part_bytes, str(devices), shapes, *place)
            self._server = self._program("the bare server", bare, *line)
        except BaseException:
            self.close()
            raise


def model_shapes(task: str) -> dict[str, list[int]]:
    """Return the shapes of all tensors of a task's model."""
    from fedpatch.shared.tasks.torch_model import schema_of

    return {spec.name: list(spec.shape) for spec in schema_of(find_task(task).build_model()).specs}


class FlowerFleet(_Fleet):
    """Flower's deployment engine with as many SuperNodes, in an environment of its own (`make bench-peers`)."""

    def __init__(self, task: str, devices: int, python: Path) -> None:
        super().__init__(1)
        line: list[str | Path] = [
            python,
            "-m",
            "benchmarks.peers.flower_deployment",
            str(devices),
            json.dumps(model_shapes(task)),
        ]
        self._server = Program("Flower's deployment", line, remedy=f"; is its environment whole ({HOW_TO_GET})?")
        self._stack.callback(self._server.close)

    def pids(self) -> list[int]:
        """Return SuperLink and ServerApp, which run longer than a round, unlike the processes for each client."""
        return list(self._server.hello["pids"])


class FlowerSimulation(_Fleet):
    """Flower's simulation: the same server and clients in Ray's actors, without a network (`make bench-peers`)."""

    def __init__(self, task: str, devices: int, python: Path) -> None:
        super().__init__(1)
        shapes = json.dumps(model_shapes(task))
        module = "benchmarks.peers.flower_simulation"
        line: list[str | Path] = [python, "-m", module, str(devices), shapes, str(os.cpu_count() or 1)]
        self._server = Program("Flower's simulation", line, remedy=f"; is its environment whole ({HOW_TO_GET})?")
        self._stack.callback(self._server.close)
