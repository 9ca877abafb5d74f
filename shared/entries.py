"""Entry points that installed packages offer."""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points


def entries(group: str) -> dict[str, dict[str, EntryPoint]]:
    """Those of a group by name, then by value: the same one found twice (an editable install) is no conflict."""
    found: dict[str, dict[str, EntryPoint]] = {}
    for point in entry_points(group=group):
        found.setdefault(point.name, {})[point.value] = point
    return found
