"""The oracle's task, with a training that a test can hold at a step and release: so a device is surely in mid-training.

A data spec is the oracle's, and then `;PATH`. While the file PATH exists, it has the number of the step at which to hold,
counted from the start of the training process (1 is the first). A held process writes its step to the file PATH.held.
"""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path

from torch import Tensor
from torch.nn import functional as F

from fedpatch.shared.tasks.task import DeviceData
from tests.support.listing import content
from tests.system import oracle_task

_POLL_S = 0.01


class Hold:
    """The two files, for use by a test."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.held_file = path.with_name(path.name + ".held")
        self._step = 0

    def at(self, step: int) -> None:
        """Hold at this step, or at the next step if it has passed; a process held at an earlier step continues."""
        self._step = step
        _write(self.path, step)

    @property
    def reached(self) -> bool:
        """Whether the process is held at the step or later; the file may still name an earlier step that it is leaving."""
        held_file = content(self.held_file)
        return held_file is not None and int(held_file) >= self._step

    def release(self) -> None:
        self.path.unlink(missing_ok=True)
        self.held_file.unlink(missing_ok=True)


class _Holding:
    """A loss that waits; each training process has one."""

    def __init__(self) -> None:
        self.hold: Hold | None = None
        self._steps = -1  # a process begins with a trial step that is not part of its training

    def load_data(self, spec: str, root: Path) -> DeviceData:
        data, _, path = spec.partition(";")
        self.hold = Hold(Path(path))
        return oracle_task.load_data(data, root)

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        if not outputs.requires_grad:  # a trial of the loss, without a step
            return F.cross_entropy(outputs, targets)
        self._steps += 1
        held = False
        while self.hold is not None and self._is_due(self.hold):
            _write(self.hold.held_file, self._steps)
            held = True
            time.sleep(_POLL_S)
        if self.hold is not None and held:
            self.hold.held_file.unlink(missing_ok=True)  # a value written while the test released the hold
        return F.cross_entropy(outputs, targets)

    def _is_due(self, hold: Hold) -> bool:
        try:
            return self._steps >= int(hold.path.read_text())
        except FileNotFoundError:
            return False


def _write(path: Path, step: int) -> None:
    """Write the file atomically, for a concurrent reader."""
    new = path.with_name(path.name + ".new")
    new.write_text(str(step))
    new.replace(path)


def load_late(spec: str, root: Path) -> DeviceData:
    """Return the oracle's data once the file PATH exists; until then the agent is starting."""
    data, _, path = spec.partition(";")
    while not Path(path).exists():
        time.sleep(_POLL_S)
    return oracle_task.load_data(data, root)


_holding = _Holding()

TASK = dataclasses.replace(oracle_task.TASK, name="held", load_data=_holding.load_data, loss=_holding.loss)
REFERENCE = "tests.system.held_task:TASK"
SLOW_START = dataclasses.replace(oracle_task.TASK, load_data=load_late)
SLOW_START_REFERENCE = "tests.system.held_task:SLOW_START"
