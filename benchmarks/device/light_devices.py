"""A fleet of light devices in a few processes, for benchmarks of a real coordinator at a real broker.

    with LightDevices(broker=url, fleet="demo", task=mnist.TASK, count=1000, processes=4) as devices:
        devices.wait_ready()
        ...                         # fedpatch run --devices 1000
    devices.report                  # activity of all devices together

Each device is the agent's job and link with untrained updates (benchmarks.device.light_device). The processes end with the
`with` block, and with their parent.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread
from types import TracebackType
from typing import Any, Self

from benchmarks.device.light_device import Tally
from benchmarks.support.programs import ROOT
from fedpatch.shared.errors import FedpatchError
from fedpatch.shared.tasks.task import Task
from fedpatch.shared.tasks.torch_model import schema_of

PATIENCE_S = 300.0
GOODBYE_S = 60.0
NUM_EXAMPLES = 300


@dataclass
class LightReport(Tally):
    """Activity of all devices together, their processor time, and the sum of the processes' peak memory."""

    cpu_s: float = 0.0
    peak_bytes: int = 0

    def add(self, figures: dict[str, Any]) -> None:
        """Add the figures of one process."""
        self.outcomes.update(figures.pop("outcomes"))
        for name, value in figures.items():
            setattr(self, name, getattr(self, name) + value)


class LightDevices:
    """`count` devices, named light-1, light-2, ..., each with NUM_EXAMPLES examples of `task`; `profile` is the broker's.

    With `ca_file` devices fetch models by URL. `first` is the number of the first device.
    """

    def __init__(
        self,
        *,
        broker: str,
        fleet: str,
        task: Task,
        count: int,
        processes: int,
        profile: str = "none",
        ca_file: Path | None = None,
        first: int = 1,
    ) -> None:
        self.report = LightReport()
        schema = schema_of(task.build_model()).to_lists()
        names = [f"light-{number}" for number in range(first, first + count)]
        common = {"broker": broker, "fleet": fleet, "task": task.name, "schema": schema, "num_examples": NUM_EXAMPLES}
        common |= {"profile": profile, "ca_file": None if ca_file is None else str(ca_file)}
        shares = [names[first::processes] for first in range(min(processes, count))]
        self._jobs = [{**common, "devices": share} for share in shares]
        self._processes: list[subprocess.Popen[str]] = []
        self._lines: SimpleQueue[tuple[int, str]] = SimpleQueue()

    def __enter__(self) -> Self:
        for number, job in enumerate(self._jobs):
            line = [sys.executable, "-m", "benchmarks.device.light_process"]
            process = subprocess.Popen(line, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            self._processes.append(process)
            assert process.stdin is not None
            process.stdin.write(json.dumps(job) + "\n")
            process.stdin.flush()
            Thread(target=self._listen, args=(number, process), daemon=True).start()
        return self

    def wait_ready(self) -> None:
        """Return once all devices are connected and the broker has their presence. Raises FedpatchError after PATIENCE_S."""
        give_up_at = time.monotonic() + PATIENCE_S
        for done in range(len(self._jobs)):
            _, line = self._next(give_up_at, "connected")
            if line != "ready":
                raise FedpatchError(f"{done} of {len(self._jobs)} processes of light devices are ready, and one ended")

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _tb: TracebackType | None
    ) -> None:
        for process in self._processes:
            assert process.stdin is not None
            with contextlib.suppress(OSError):
                process.stdin.close()
        give_up_at = time.monotonic() + GOODBYE_S
        for process in self._processes:
            try:
                process.wait(max(0.0, give_up_at - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        if _error is None:
            self._gather(give_up_at)

    def _gather(self, give_up_at: float) -> None:
        missing = set(range(len(self._jobs)))
        while missing:
            number, line = self._next(give_up_at, "reported")
            if line.startswith("{"):
                self.report.add(json.loads(line))
                missing.discard(number)
            elif not line and number in missing:
                raise FedpatchError("a process of light devices ended without its report")

    def _next(self, give_up_at: float, what: str) -> tuple[int, str]:
        try:
            return self._lines.get(timeout=max(0.1, give_up_at - time.monotonic()))
        except Empty:
            raise FedpatchError(
                f"the light devices have not {what} in time; take fewer devices, or leave the processors to them"
            ) from None

    def _listen(self, number: int, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        with process.stdout as stream:
            for line in stream:
                self._lines.put((number, line.rstrip()))
        self._lines.put((number, ""))
