"""Runs cells of the testbed: real agents, a real broker and a real coordinator on hosts of their own."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.device.idle_agent import status_of
from benchmarks.network.shipped_broker import shipped_broker
from benchmarks.testbed.cells import ENCODINGS, STRATEGY, Cell, Dataset, cpus_of, device_names
from benchmarks.testbed.hosts import ROOT, Hosts
from fedpatch.shared.errors import FedpatchError

SERVER = "server"
FLEET = "testbed"
READY_S = 300.0
"""Time for ten devices to load torch and the data, without limits."""
ROUND_S = 300.0
_POLL_S = 0.05


def play_alone(hosts: Hosts, dataset: Dataset, rounds: int, seed: int) -> dict[str, Any]:
    """Train without communication; return the seconds of the slowest device in each round.

    Args:
        hosts: The hosts of the devices.
        dataset: Data and model.
        rounds: Number of rounds.
        seed: Seed of the data, the initial model and the batches.
    """
    with contextlib.ExitStack() as stack:
        processes = {}
        for number, device in enumerate(device_names()):
            line = [sys.executable, "-m", "benchmarks.testbed.alone", dataset.task]
            line += [dataset.data(number, seed), str(rounds), str(seed)]
            process = subprocess.Popen(line, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            stack.callback(_end, process)
            hosts.put(device, process.pid)
            processes[device] = process
        for process in processes.values():
            if _line_of(process) != "ready":
                raise FedpatchError("a device that was to learn alone ended before it began")
        for device, process in processes.items():
            hosts.limit(device, cpus_of(device))
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()
        seconds = [[float(_line_of(process)) for _ in range(rounds)] for process in processes.values()]
    _lift(hosts)
    return {"rounds": [{"round_s": max(each), "client_s": max(each)} for each in zip(*seconds, strict=True)]}


class Federation:
    """Connected, ready agents with the data of a seed, for one cell after the other.

    Args:
        hosts: The hosts of server and devices.
        dataset: Data and model.
        folder: A temporary folder for states and logs.
        seed: Seed of the data, the initial model and the batches.
    """

    def __init__(self, hosts: Hosts, dataset: Dataset, folder: Path, seed: int) -> None:
        self._hosts = hosts
        self._dataset = dataset
        self._folder = folder
        self._seed = seed
        self._agents: dict[str, subprocess.Popen[bytes]] = {}
        self._broker = ""

    @contextlib.contextmanager
    def at_work(self) -> Iterator[None]:
        """Run broker and agents within the block."""
        with contextlib.ExitStack() as stack:
            with self._hosts.inside(SERVER):
                broker = stack.enter_context(shipped_broker(self._folder, host=self._hosts.address(SERVER)))
            self._broker = broker.url
            for number, device in enumerate(device_names()):
                self._agents[device] = stack.enter_context(self._agent(device, self._dataset.data(number, self._seed)))
            for device, agent in self._agents.items():
                self._wait(agent, partial(self._ready, device), f"{device} is not ready")
            yield
            _lift(self._hosts)

    def play(self, cell: Cell, rounds: int) -> dict[str, Any]:
        """Do a run of `rounds` rounds with every device; return the coordinator's records of them."""
        for device in self._agents:
            shutil.rmtree(self._folder / device / "patches", ignore_errors=True)
            (self._folder / device / "patches").mkdir(parents=True)
            self._hosts.limit(device, cpus_of(device))
        strategy, private = STRATEGY[cell.scheme]
        state = self._folder / cell.name
        options: dict[str, object] = {"broker": self._broker, "fleet": FLEET, "task": self._dataset.task}
        options |= {"strategy": strategy, "private": private, "encoding": ENCODINGS[cell.encodings], "rounds": rounds}
        options |= {"devices": len(self._agents), "quorum": 1.0, "deadline-s": ROUND_S, "state-dir": state}
        options |= {"metrics": "none", "max-failed-rounds": 1, "recruit-deadline-s": 60, "seed": self._seed}
        line = [sys.executable, "-m", "fedpatch", "run", "--insecure", "--json"]
        line += [f"--{name}={value}" for name, value in options.items()]
        log = self._folder / f"{cell.name}.log"
        with log.open("wb") as err, self._hosts.inside(SERVER):
            coordinator = subprocess.Popen(line, cwd=ROOT, env=_environment(), stdout=subprocess.PIPE, stderr=err)
        try:
            out, _ = coordinator.communicate(timeout=ROUND_S * (rounds + 1))
        finally:
            _end(coordinator)
            _lift(self._hosts)
        if coordinator.returncode:
            raise FedpatchError(f"{cell.name}: the run failed: {log.read_text(errors='replace')[-1000:]}")
        return {"rounds": [_books(record) for record in json.loads(out.splitlines()[-1])["rounds"]]}

    @contextlib.contextmanager
    def _agent(self, device: str, data: str) -> Iterator[subprocess.Popen[bytes]]:
        options: dict[str, object] = {"broker": self._broker, "fleet": FLEET, "device-id": device}
        options |= {"task": self._dataset.task}
        options |= {"data": data, "state-dir": self._folder / device, "admission": "always", "nice": 0}
        # As in the paper, no application on these devices predicts.
        options |= {"keep-models": 0, "private": "none"}
        line = [sys.executable, "-m", "fedpatch.device_agent", "run", "--insecure", "--until-stdin-closes"]
        line += [f"--{name}={value}" for name, value in options.items()]
        log = self._folder / f"{device}.log"
        with log.open("wb") as out, self._hosts.inside(device):
            process = subprocess.Popen(
                line, cwd=ROOT, env=_environment(), stdin=subprocess.PIPE, stdout=out, stderr=out
            )
        self._hosts.put(device, process.pid)
        try:
            yield process
        finally:
            _end(process)

    def _ready(self, device: str) -> bool:
        status = status_of(self._folder / device)
        return bool(status.get("connected") and status.get("tasks"))

    def _wait(self, process: subprocess.Popen[bytes], fits: Callable[[], bool], what: str) -> None:
        give_up_at = time.monotonic() + READY_S
        while not fits():
            if process.poll() is not None or time.monotonic() > give_up_at:
                logs = "".join(path.read_text(errors="replace")[-300:] for path in self._folder.glob("*.log"))
                raise FedpatchError(f"{what}: {logs[-1000:]}")
            time.sleep(_POLL_S)


def _books(record: dict[str, Any]) -> dict[str, Any]:
    """Return the times of a round by the parts of the paper's table, for the device that reported last.

    Down is the time from the request to the whole model on the device, up the time from the offer to the end of collecting.
    The server packs and publishes the model before, and aggregates after.
    """
    phases = record["phase_seconds"]
    parts = {
        "down_s": phases["recruit"] + phases["download"],
        "client_s": phases["train"],
        "up_s": phases["upload"],
        "server_s": phases["select"] + phases["aggregate"],
    }
    kept = ("round", "outcome", "reported", "user_accuracy", "user_accuracy_after", "bytes_down", "bytes_up")
    return {"round_s": sum(parts.values()), **parts, **{name: record[name] for name in kept}}


def _environment() -> dict[str, str]:
    kept = ("FEDPATCH_DATA",)
    return {name: value for name, value in os.environ.items() if name in kept or not name.startswith("FEDPATCH_")}


def _line_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def _lift(hosts: Hosts) -> None:
    for device in device_names():
        hosts.limit(device, None)


def _end(process: subprocess.Popen[Any]) -> None:
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            with contextlib.suppress(OSError):
                stream.close()
    if process.poll() is None:
        process.terminate()
    try:
        process.wait(30)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def hosts_for(dataset: Dataset) -> Hosts:
    """Return the hosts of the server and of all devices."""
    return Hosts([SERVER, *device_names()], rate_bit_s=dataset.rate_bit_s)
