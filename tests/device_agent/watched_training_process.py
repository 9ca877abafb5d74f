"""A training process, and waits for its events."""

from __future__ import annotations

import queue
import time
from pathlib import Path

import pytest

from fedpatch.device_agent.job.training_messages import Ready, TrainProgress, WorkerSetup
from fedpatch.device_agent.runtime.training_launch import Launch, start_program
from fedpatch.device_agent.runtime.training_supervisor import Trainer

TIMEOUT_S = 120


def until_logged(caplog: pytest.LogCaptureFixture, text: str) -> None:
    """Wait for the output of a process: its answers and its log are read by two threads."""
    give_up_at = time.monotonic() + TIMEOUT_S
    while text not in caplog.text:
        assert time.monotonic() < give_up_at, caplog.text
        time.sleep(0.01)


class Watched:
    """A Trainer and a queue of its events."""

    def __init__(
        self,
        folder: Path,
        task: str = "tests.device_agent.toy_tasks:SLOW",
        data: str = "ann:23",
        launch: Launch = start_program,
    ) -> None:
        self.patches = folder / "patches"
        self.events: queue.Queue = queue.Queue()
        setup = WorkerSetup(task, data, str(folder), str(self.patches), "ann", private="none")
        self.trainer = Trainer(setup, self.events.put, launch)

    def next(self):
        return self.events.get(timeout=TIMEOUT_S)

    def outcome(self):
        """Next event that is neither Ready nor TrainProgress."""
        while isinstance(event := self.next(), Ready | TrainProgress):
            pass
        return event

    def until_training(self) -> None:
        """Wait for the first step."""
        while not isinstance(event := self.next(), TrainProgress):
            assert isinstance(event, Ready), event
