"""A run of a real coordinator over a thousand light devices at a real broker, and the cost of each part."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.device.clocks import cpu_s
from benchmarks.device.light_devices import LightDevices, LightReport
from benchmarks.device.process_memory import memory_of
from benchmarks.network.shipped_broker import shipped_broker
from benchmarks.support.programs import ROOT
from fedpatch.shared.errors import FedpatchError
from fedpatch.shared.tasks.task import Task

FLEET = "load"
WAITING = b"waiting for devices"
"""Line of the coordinator after loading; processor time before it does not count as the rounds'."""
LOOK_EVERY_S = 0.2
PATIENCE_S = 3600.0


@dataclass(frozen=True)
class Scale:
    """Task, and numbers of devices, rounds and processes."""

    task: Task
    devices: int
    rounds: int
    processes: int


class Watched:
    """A running process: its processor time since `begin`, and its peak memory."""

    def __init__(self, pid: int) -> None:
        self.peak_bytes = 0
        self._pid = pid
        self._before_s = self._now_s = 0.0

    def begin(self) -> None:
        """Begin to count: processor time before this call does not count."""
        self.look()
        self._before_s = self._now_s

    def look(self) -> None:
        """Read the figures. Call it at intervals, because an ended process has none."""
        memory = memory_of(self._pid)
        self.peak_bytes = max(self.peak_bytes, memory.peak_bytes if memory else 0)
        self._now_s = max(self._now_s, cpu_s([self._pid]))

    @property
    def cpu_s(self) -> float:
        """Processor seconds since `begin`."""
        return self._now_s - self._before_s


def play(scale: Scale, options: Mapping[str, str], limits: Mapping[str, str], folder: Path) -> dict[str, Any]:
    """Run once, with further `options` of `fedpatch run` and changed `limits` of the shipped broker; return the figures."""
    task = scale.task
    with shipped_broker(folder, changes=limits) as broker:
        fleet = LightDevices(broker=broker.url, fleet=FLEET, task=task, count=scale.devices, processes=scale.processes)
        with fleet:
            fleet.wait_ready()
            watched = {"broker": Watched(broker.pid)}
            document = _run(scale, broker.url, options, folder, watched)
    return {**_figures(scale, document, fleet.report, watched), "options": dict(options), "limits": dict(limits)}


def _run(
    scale: Scale, url: str, options: Mapping[str, str], folder: Path, watched: dict[str, Watched]
) -> dict[str, Any]:
    given = {"broker": url, "fleet": FLEET, "task": scale.task.name, "devices": str(scale.devices)}
    given |= {"rounds": str(scale.rounds), "state-dir": str(folder / "coordinator"), "metrics": "none", "wait-s": "300"}
    given |= {"strategy": "fedavg", "quorum": "1", "max-devices": str(max(10_000, scale.devices)), **options}
    line = [sys.executable, "-m", "fedpatch", "run", "--json"]
    line += [f"--{name}={value}" for name, value in given.items()]
    log, summary = folder / "coordinator.log", folder / "coordinator.json"
    with log.open("wb") as err, summary.open("wb") as out:
        process = subprocess.Popen(line, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=out, stderr=err)
    watched["coordinator"] = Watched(process.pid)
    begun, give_up_at = False, time.monotonic() + PATIENCE_S
    try:
        while process.poll() is None and time.monotonic() < give_up_at:
            if not begun and WAITING in log.read_bytes():
                begun = True
                for one in watched.values():
                    one.begin()
            for one in watched.values():
                one.look()
            time.sleep(LOOK_EVERY_S)
    finally:
        process.terminate()
        process.wait()
    if process.returncode:
        raise FedpatchError(f"the run failed: {log.read_text(errors='replace')[-1500:]}")
    return dict(json.loads(summary.read_text("utf-8").splitlines()[-1]))


def _figures(
    scale: Scale, document: Mapping[str, Any], report: LightReport, watched: Mapping[str, Watched]
) -> dict[str, Any]:
    records, rounds = document["rounds"], scale.rounds
    seconds = [sum(record["phase_seconds"].values()) for record in records]
    committed = report.outcomes["committed"]
    return {
        "devices": scale.devices,
        "rounds": rounds,
        "round_s": statistics.median(seconds),
        "round_s_all": seconds,
        "phase_s": {
            name: statistics.median(r["phase_seconds"][name] for r in records) for name in records[0]["phase_seconds"]
        },
        "coordinator_cpu_s": watched["coordinator"].cpu_s / rounds,
        "coordinator_peak_bytes": watched["coordinator"].peak_bytes,
        "broker_cpu_s": watched["broker"].cpu_s / rounds,
        "broker_peak_bytes": watched["broker"].peak_bytes,
        "devices_cpu_s": report.cpu_s / rounds,
        "devices_peak_bytes": report.peak_bytes,
        "messages": (report.sent + report.received) / rounds,
        "bytes_down": statistics.mean(record["bytes_down"] for record in records),
        "bytes_up": statistics.mean(record["bytes_up"] for record in records),
        "link_bytes": (report.sent_bytes + report.received_bytes) / rounds,
        "reported": sum(record["reported"] for record in records),
        "committed": committed,
        "lost": scale.devices * rounds - sum(record["reported"] for record in records),
        "failed_rounds": sum(record["outcome"] != "aggregated" for record in records),
        "disconnects": report.disconnects,
        "outcomes": dict(report.outcomes),
    }
