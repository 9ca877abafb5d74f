"""The toy task with a folder of CSV files, which may grow at any time."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from fedpatch.shared.tasks import examples, splits
from fedpatch.shared.tasks.task import DeviceData
from tests.device_agent.toy_tasks import TOY

REFERENCE = "tests.device_agent.folder_task:TASK"
COLUMNS = [f"x{number}" for number in range(12)]
READINGS = examples.ReadingsFormat(COLUMNS, "state", ["a", "b", "c"])


def lines(count: int, state: str = "") -> str:
    """Return the text of a file with so many readings, each of another value."""
    rows = [
        ",".join([*(f"{row + column / 100}" for column in range(12)), state or "abc"[row % 3]]) for row in range(count)
    ]
    return "\n".join([",".join([*COLUMNS, "state"]), *rows, ""])


def load_data(spec: str, root: Path) -> DeviceData:
    """Data of the folder `spec`."""
    found = examples.read(root / spec, READINGS)
    return found.device_data(*splits.block_split(found, 5))


def data_version(spec: str, root: Path) -> str:
    """Version of the files."""
    return examples.files_version(root / spec)


TASK = replace(TOY, load_data=load_data, data_version=data_version)
