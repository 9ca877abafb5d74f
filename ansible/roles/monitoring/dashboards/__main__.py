"""Write the dashboards: `cd ansible/roles/monitoring && python -m dashboards [FOLDER]`, by default files/dashboards."""

from __future__ import annotations

import sys
from pathlib import Path

from dashboards import device, fleet, rounds
from dashboards.boards import to_text

FOLDER = Path(__file__).resolve().parent.parent / "files" / "dashboards"
DASHBOARDS = {"rounds.json": rounds.dashboard, "fleet.json": fleet.dashboard, "device.json": device.dashboard}


def write(folder: Path) -> None:
    """Write one file per dashboard."""
    for name, dashboard in DASHBOARDS.items():
        (folder / name).write_text(to_text(dashboard()), encoding="utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER)
