"""Downloads of the bundled tasks, before their training process closes its network.

Only these modules are imported with a network. Another task is not: its owner downloads its files with `check-task`.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

from fedpatch.shared.tasks.downloads import fetch_absent
from fedpatch.shared.tasks.task import TASKS

_WITH_FILES = ("fedpatch.shared.tasks.bundled.mnist", "fedpatch.shared.tasks.bundled.cifar10")


def fetch_absent_files(ref: str, spec: str, root: Path) -> None:
    """Download the absent files of a bundled task; nothing for any other task.

    Args:
        ref: The task, as `find_task` takes it.
        spec: The data of this device.
        root: The data folder.

    Raises:
        DataError: A file cannot be downloaded.
        UsageError: `ref` names no task, or the bundled task cannot read `spec`.
    """
    module = TASKS.module_of(ref)
    if module in _WITH_FILES:
        fetch_absent(import_module(module).needed_files(spec, root), root)
