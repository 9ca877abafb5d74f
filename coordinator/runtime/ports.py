"""The environment of the coordinator: clocks, queue, threads, signals and randomness, which simulations replace."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any

from fedpatch.coordinator.runtime.chunk_size import find_chunk_bytes
from fedpatch.coordinator.runtime.event_queue import EventQueue, interrupts_into
from fedpatch.coordinator.runtime.run_preparation import Prepared, prepare
from fedpatch.coordinator.settings import RunSettings
from fedpatch.coordinator.storage.boot_clock import BootTime
from fedpatch.coordinator.storage.leadership import Leadership
from fedpatch.shared.mqtt.client import MqttLink


@dataclass(frozen=True)
class Ports:
    """The environment of a coordinator: clock, queue, link, threads. A simulation has its own.

    Attributes:
        clock: Returns monotonic seconds.
        unix_time: Returns seconds of the wall clock.
        sleep: Waits for so many seconds.
        boot_time: Returns a moment that can be compared after a restart.
        entropy: Randomness of ids and pauses.
        queue: Makes a queue of events.
        link: Makes a connection to the broker; takes the arguments of MqttLink.
        executor: Makes the threads that write updates; takes their number and name.
        interrupts: Puts signals as events into a queue.
        chunk_bytes: Returns the largest chunk that the broker accepts.
        prepare: Builds the model and the terms of a run.
        leadership: The lock of the fleet that this coordinator leads; None without standbys.
    """

    clock: Callable[[], float] = time.monotonic
    unix_time: Callable[[], float] = time.time
    sleep: Callable[[float], None] = time.sleep
    boot_time: Callable[[], BootTime] = BootTime.now
    entropy: random.Random = field(default_factory=random.SystemRandom)
    queue: Callable[[], SimpleQueue[Any]] = SimpleQueue
    link: Callable[..., MqttLink] = MqttLink
    executor: Callable[[int, str], AbstractContextManager[Executor]] = ThreadPoolExecutor
    interrupts: Callable[[EventQueue], AbstractContextManager[None]] = interrupts_into
    chunk_bytes: Callable[[RunSettings, str], int] = find_chunk_bytes
    prepare: Callable[[RunSettings], Prepared] = prepare
    leadership: Leadership | None = None


REAL = Ports()
