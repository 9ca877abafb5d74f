"""A real agent at a real mosquitto, started and then left alone: how long it takes to be ready, and what it uses after that."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.device.clocks import children_of, cpu_s
from benchmarks.network.shipped_broker import Broker
from benchmarks.support.programs import running
from fedpatch.shared.errors import FedpatchError

PATIENCE_S = 300.0
RELEASE_S = 5.0
"""The agent's idle_release_s: after it, the training process has ended."""

_POLL_S = 0.005


def start_up(broker: Broker, folder: Path, task: str, data: str, idle_s: float) -> dict[str, float]:
    """Seconds from the start until it is connected and until it can train, and the share of a processor that it then uses.

    `warm` is while its training process waits for work, `idle` when that is gone: each over `idle_s` seconds (0: not measured).
    """
    folder.mkdir()
    line = [
        sys.executable,
        "-m",
        "fedpatch.device_agent",
        "run",
        "--broker",
        broker.url,
        "--task",
        task,
        "--data",
        data,
    ]
    line += ["--state-dir", str(folder), "--idle-release-s", str(idle_s + RELEASE_S)]
    began = time.perf_counter()
    with running(folder / "log", line) as agent:
        wait_until(agent, lambda: status_of(folder).get("connected"), "is connected")
        connected_s = time.perf_counter() - began
        wait_until(agent, lambda: status_of(folder).get("tasks"), "is ready")
        found = {"connected_s": connected_s, "ready_s": time.perf_counter() - began}
        if idle_s:
            found["warm_share"] = _share([agent.pid, *children_of(agent.pid)], idle_s)
            wait_until(agent, lambda: not children_of(agent.pid), "gives the memory of training back")
            found["idle_share"] = _share([agent.pid], idle_s)
    return found


def torch_alone() -> float:
    """Seconds that a Python takes to import torch and end: what no start that trains can be faster than."""
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", "import torch"], check=True)
    return time.perf_counter() - began


def status_of(folder: Path) -> dict[str, Any]:
    """Return the status of the agent with this state directory; empty before the first."""
    path = folder / "status.json"
    return dict(json.loads(path.read_bytes())) if path.exists() else {}


def wait_until(process: subprocess.Popen[bytes], fits: Callable[[], object], what: str) -> None:
    """Return once that is so. FedpatchError where the agent has ended before, or takes more than PATIENCE_S seconds."""
    give_up_at = time.monotonic() + PATIENCE_S
    while not fits():
        if process.poll() is not None or time.monotonic() > give_up_at:
            raise FedpatchError(f"the agent never {what}")
        time.sleep(_POLL_S)


def _share(pids: list[int], seconds: float) -> float:
    before, began = cpu_s(pids), time.perf_counter()
    time.sleep(seconds)
    return (cpu_s(pids) - before) / (time.perf_counter() - began)
