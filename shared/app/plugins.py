"""What installed packages offer: entry points, and modules that not every installation has.

Libraries that tell their makers how they are used, unless they are told not to.
"""

from __future__ import annotations

import os
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from fedpatch.shared.errors import FedpatchError, UsageError


def load_entry_points(group: str) -> dict[str, dict[str, EntryPoint]]:
    """Those of a group by name, then by value: the same one found twice (an editable install) is no conflict."""
    found: dict[str, dict[str, EntryPoint]] = {}
    for point in entry_points(group=group):
        found.setdefault(point.name, {})[point.value] = point
    return found


def import_optional(name: str, why: str, remedy: str, fault: type[FedpatchError] = UsageError) -> Any:
    """A module by its name; where it cannot be imported, a `fault` that tells why it is needed, what is amiss and the mend."""
    try:
        return import_module(name)
    except ImportError as error:
        raise fault(f"{why} ({error}): {remedy}") from error


def disable_ort_telemetry() -> None:
    """For this process and those that it starts; to be called before such a library is imported, which settles it.

    onnxruntime, since 1.29: its import gives the machine an id, in a file below the user's cache directory, and its makers get
    to know of each process, model and session (its docs/Privacy.md).
    """
    os.environ["ORT_DISABLE_TELEMETRY"] = "1"
