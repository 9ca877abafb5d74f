"""Optional parts of an installation: entry points of packages, optional modules, and onnxruntime's telemetry switch."""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

from fedpatch.shared.errors import FedpatchError, UsageError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint


def load_entry_points(group: str) -> dict[str, dict[str, EntryPoint]]:
    """Return the entry points of a group by name and value. A duplicate, as of an editable install, is no conflict."""
    from importlib.metadata import entry_points  # 2 MB with the modules that it imports

    points: dict[str, dict[str, EntryPoint]] = {}
    for point in entry_points(group=group):
        points.setdefault(point.name, {})[point.value] = point
    return points


def import_optional(name: str, why: str, remedy: str, fault: type[FedpatchError] = UsageError) -> Any:
    """Import an optional module.

    Args:
        why: Sentence with the reason why it is needed.
        remedy: How to install it.
        fault: Class of the error that is raised if the import fails.

    Returns:
        The module.

    Raises:
        FedpatchError: A `fault`, with reason and remedy in its message.
    """
    try:
        return import_module(name)
    except ImportError as error:
        raise fault(f"{why} ({error}): {remedy}") from error


def disable_ort_telemetry() -> None:
    """Turn off onnxruntime's telemetry in this process and its children. Call it before the import of onnxruntime.

    Since version 1.29 the import of onnxruntime writes an id of the machine to a file in the user's cache directory, and
    Microsoft receives events of each process, model and session (docs/Privacy.md of onnxruntime).
    """
    os.environ["ORT_DISABLE_TELEMETRY"] = "1"
