"""The toy task with a number of examples from a file, which may change at any time."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from fedpatch.shared.errors import DataError
from fedpatch.shared.tasks.task import DeviceData
from tests.device_agent.toy_tasks import TOY, random_data

REFERENCE = "tests.device_agent.growing_task:TASK"


def data_version(spec: str, root: Path) -> str:
    """The file's text; if it contains the word `unreadable`, the task's own code raises an error."""
    text = (root / spec).read_text()
    if "unreadable" in text:
        raise KeyError("no such column")
    return text


def load_data(spec: str, root: Path) -> DeviceData:
    """Data with the number of examples in the file."""
    text = (root / spec).read_text()
    if not text.isdigit():
        raise DataError(f"toy: {text!r} is no number of examples")
    return random_data("ann", int(text))


TASK = replace(TOY, load_data=load_data, data_version=data_version)
