"""A process full of light devices: `python -m benchmarks.device.light_process < JOB`, started by device.light_devices.

Its first line of input has its parameters (JSON). It prints `ready` once the presence of all devices is published,
and one line of JSON with their activity when its input ends.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import sys
import threading
import time
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from benchmarks.device.light_device import LightDevice, ModelChunks, Tally
from benchmarks.device.light_updates import StandInUpdates
from benchmarks.device.process_memory import memory_bytes
from fedpatch.device_agent.runtime.model_fetcher import FetchEvent
from fedpatch.device_agent.runtime.presence import Identity
from fedpatch.shared.mqtt.broker_profile import PROFILES, UNLIMITED
from fedpatch.shared.mqtt.client import LinkEvent
from fedpatch.shared.tensors.arrays import Schema
from fedpatch.shared.wire.messages import TaskCapability

LOOK_EVERY_S = 0.1
"""Interval of checks for deadlines, in seconds: a job's deadlines are a second and more away."""
_STACK_BYTES = 256 * 1024
# File descriptors of one device: its socket, the two ends that wake its link, and epoll.
_FILES_EACH = 4


class LightProcess:
    """All devices of a process, handled by one thread; each link has a thread of its own."""

    def __init__(self, job: dict[str, Any]) -> None:
        self.tally = Tally()
        self._inbox: SimpleQueue[tuple[LightDevice, LinkEvent | FetchEvent] | None] = SimpleQueue()
        schema = Schema.from_lists(job["schema"])
        examples = int(job["num_examples"])
        make = partial(
            LightDevice,
            broker=str(job["broker"]),
            events=lambda *event: self._inbox.put(event),
            capability=TaskCapability(job["task"], schema.digest, examples),
            updates=StandInUpdates(schema, examples),
            chunks=ModelChunks(),
            tally=self.tally,
            ca_file=Path(job["ca_file"]) if job.get("ca_file") else None,
            profile=PROFILES.get(job.get("profile", ""), UNLIMITED),
        )
        self._devices = [make(Identity.new(job["fleet"], name)) for name in job["devices"]]
        self._ready = False
        self._look_at = 0.0

    def run(self) -> None:
        """Run until the input ends."""
        threading.Thread(target=self._wait_for_the_end, daemon=True).start()
        for device in self._devices:
            device.link.start()
        while self._turn():
            pass

    def _turn(self) -> bool:
        """Handle one event, and check deadlines at intervals; return False when the input has ended."""
        try:
            found = self._inbox.get(timeout=LOOK_EVERY_S)
            if found is None:
                return False
            device, event = found
            device.handle(event, time.monotonic())
        except Empty:
            pass
        now = time.monotonic()
        if now >= self._look_at:
            self._look_at = now + LOOK_EVERY_S
            for device in self._devices:
                device.tick(now)
            if not self._ready and all(device.connected and device.link.idle for device in self._devices):
                self._ready = True
                _tell("ready")
        return True

    def _wait_for_the_end(self) -> None:
        sys.stdin.read()
        self._inbox.put(None)


def _tell(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main() -> None:
    """Run the process."""
    job = json.loads(sys.stdin.readline())
    wanted = _FILES_EACH * len(job["devices"]) + 100
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(wanted, hard), hard))
    threading.stack_size(_STACK_BYTES)
    process = LightProcess(job)
    process.run()
    spent = resource.getrusage(resource.RUSAGE_SELF)
    used = {"cpu_s": spent.ru_utime + spent.ru_stime, "peak_bytes": memory_bytes("VmHWM")}
    with contextlib.suppress(BrokenPipeError):
        _tell(json.dumps(vars(process.tally) | used))
    # To disconnect hundreds of devices one after the other takes minutes if the broker does not answer.
    os._exit(0)


if __name__ == "__main__":
    main()
