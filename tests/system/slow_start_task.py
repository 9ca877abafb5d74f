"""The oracle's task, which an agent loads only once a file exists: so a test finds a device that is starting for sure.

A data spec is the oracle's, and then `;PATH`.
"""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path

from fedpatch.shared.tasks.task import DeviceData
from tests.system import oracle_task

_POLL_S = 0.05


def load_data(spec: str, root: Path) -> DeviceData:
    """The oracle's data, once there is a file PATH."""
    data, _, path = spec.partition(";")
    while not Path(path).exists():
        time.sleep(_POLL_S)
    return oracle_task.load_data(data, root)


TASK = dataclasses.replace(oracle_task.TASK, load_data=load_data)
REFERENCE = "tests.system.slow_start_task:TASK"
