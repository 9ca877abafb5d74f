"""What installed packages offer: entry points, and modules that not every installation has."""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from shared.errors import FedpatchError, UsageError


def entries(group: str) -> dict[str, dict[str, EntryPoint]]:
    """Those of a group by name, then by value: the same one found twice (an editable install) is no conflict."""
    found: dict[str, dict[str, EntryPoint]] = {}
    for point in entry_points(group=group):
        found.setdefault(point.name, {})[point.value] = point
    return found


def optional_module(name: str, why: str, mend: str, fault: type[FedpatchError] = UsageError) -> Any:
    """A module by its name; where it cannot be imported, a `fault` that tells why it is needed, what is amiss and the mend."""
    try:
        return import_module(name)
    except ImportError as error:
        raise fault(f"{why} ({error}): {mend}") from error
