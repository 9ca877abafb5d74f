"""A real agent at a real mosquitto, started and then left idle: the time until it is ready, and its processor time then."""

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
from benchmarks.support.programs import end_of, running
from fedpatch.shared.errors import FedpatchError

PATIENCE_S = 300.0
RELEASE_S = 5.0
"""The agent's idle_release_s: after it, the training process has ended."""

_POLL_S = 0.005


def start_up(broker: Broker, folder: Path, task: str, data: str, idle_s: float) -> dict[str, float]:
    """Return the seconds until an agent is connected and until it can train, and its share of a processor afterwards.

    `warm` is with a waiting training process, `idle` after this process ended: each over `idle_s` seconds (0: not measured).
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
    began, log = time.perf_counter(), folder / "log"
    with running(log, line) as agent:
        wait_until(agent, log, lambda: status_of(folder).get("connected"), "is connected")
        connected_s = time.perf_counter() - began
        wait_until(agent, log, lambda: status_of(folder).get("tasks"), "is ready")
        found = {"connected_s": connected_s, "ready_s": time.perf_counter() - began}
        if idle_s:
            found["warm_share"] = _share([agent.pid, *children_of(agent.pid)], idle_s)
            wait_until(agent, log, lambda: not children_of(agent.pid), "gives the memory of training back")
            found["idle_share"] = _share([agent.pid], idle_s)
    return found


def torch_alone() -> float:
    """Return the seconds in which Python imports torch and ends: a lower bound of any start with training."""
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", "import torch"], check=True)
    return time.perf_counter() - began


def status_of(folder: Path) -> dict[str, Any]:
    """Return the status of the agent with this state directory; empty before its first status."""
    path = folder / "status.json"
    return dict(json.loads(path.read_bytes())) if path.exists() else {}


def wait_until(process: subprocess.Popen[bytes], log: Path, fits: Callable[[], object], what: str) -> None:
    """Wait for a state of an agent.

    Args:
        process: The agent.
        log: File of its output; an error message has the end of it.
        fits: Returns whether the agent is in this state.
        what: The state in words, such as "is ready".

    Raises:
        FedpatchError: The agent has ended, or PATIENCE_S seconds have passed.
    """
    give_up_at = time.monotonic() + PATIENCE_S
    while not fits():
        if process.poll() is not None:
            raise FedpatchError(f"the agent ended with exit code {process.returncode} before it {what}: {end_of(log)}")
        if time.monotonic() > give_up_at:
            raise FedpatchError(f"{PATIENCE_S:g} s have passed before the agent {what}: {end_of(log)}")
        time.sleep(_POLL_S)


def _share(pids: list[int], seconds: float) -> float:
    before, began = cpu_s(pids), time.perf_counter()
    time.sleep(seconds)
    return (cpu_s(pids) - before) / (time.perf_counter() - began)
