"""Makes a report: reads runs from their registries, writes the page, the CSV and the picture."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedpatch.coordinator.pki.issued_certificates import Index, read_index
from fedpatch.coordinator.report.charts import png
from fedpatch.coordinator.report.csv_export import csv_text
from fedpatch.coordinator.report.incidents import recorded_incidents
from fedpatch.coordinator.report.page import MAX_RUNS, curves_of, make_page, rounds_to_target
from fedpatch.coordinator.report.series import Run
from fedpatch.coordinator.rounds.run_summary import RunInfo
from fedpatch.coordinator.settings import CA_DIRECTORY, RunSettings
from fedpatch.coordinator.storage.run_registry import REGISTRY_FILE, Registry
from fedpatch.coordinator.storage.state_dirs import as_it_is, find
from fedpatch.shared import __version__
from fedpatch.shared.app.files import remedy_for, write_atomic
from fedpatch.shared.config.fields import settings_of
from fedpatch.shared.errors import StateError, UsageError

_MODE = 0o644  # others may read a report
_SECRET = frozenset(one.name for one in settings_of(RunSettings) if one.rules.secret)


@dataclass(frozen=True)
class Wanted:
    """Paths to write; without `out` the page is named after the runs, in the current directory."""

    out: Path | None = None
    csv: Path | None = None
    png: Path | None = None

    def check(self) -> None:
        """Raise UsageError for a path that cannot be written or has a wrong ending, before anything is read."""
        for option, path, endings in (
            ("--out", self.out, (".html", ".htm")),
            ("--csv", self.csv, (".csv",)),
            ("--png", self.png, (".png",)),
        ):
            if path is None:
                continue
            if path.suffix.lower() not in endings:
                raise UsageError(f"{option} {path}: its name must end in {endings[0]}, so that no other file is lost")
            if path.is_dir() or not path.parent.is_dir():
                what = "is a directory" if path.is_dir() else f"there is no directory {path.parent}; make it first"
                raise UsageError(f"{option} {path}: {what}")


def read_runs(state_dir: Path | None, names: Sequence[str]) -> list[Run]:
    """Return the runs of these ids (or their beginnings, or "last"), each once, without secrets. UsageError: unknown run."""
    found: dict[str, Run] = {}
    for name in names:
        with Registry(find(state_dir, name) / REGISTRY_FILE, readonly=True) as registry:
            info = as_it_is(registry.run(name), find(state_dir, name), registry)
            records = registry.records_as_written(info.id)
            holds = registry.holds.all()
        settings = {key: value for key, value in info.settings.items() if key not in _SECRET}
        incidents = recorded_incidents(info, holds, _index_of(info, find(state_dir, name)))
        found.setdefault(info.id, Run(replace(info, settings=settings), tuple(records), incidents))
    if len(found) > MAX_RUNS:
        raise UsageError(f"{len(found)} runs are too many for one report; name at most {MAX_RUNS}")
    return list(found.values())


def _index_of(info: RunInfo, state_dir: Path) -> Index | None:
    """Return the record of the run's CA; None if there is none here, or if this user cannot read it."""
    named = info.settings.get("ca_dir")
    try:
        return read_index(Path(named) if named else state_dir / CA_DIRECTORY)
    except StateError:
        return None


def write_report(runs: Sequence[Run], wanted: Wanted) -> dict[str, str | None]:
    """Write the wanted files; return their paths by "report", "csv" and "png". StateError if the disk refuses."""
    others = f"-and-{len(runs) - 1}-more" if len(runs) > 1 else ""
    out = wanted.out or Path(f"{runs[0].info.id}{others}.html")
    _write(out, make_page(runs, time.time(), __version__).encode())
    if wanted.csv is not None:
        _write(wanted.csv, csv_text(runs).encode())
    if wanted.png is not None:
        _write(wanted.png, png(curves_of(runs)))
    places = {"report": out, "csv": wanted.csv, "png": wanted.png}
    return {name: None if path is None else str(path.absolute()) for name, path in places.items()}


def plain_runs(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Return the results of each run, for programs; its rounds are in the CSV and in `fedpatch show --json`."""
    return [
        {
            "run": run.info.id,
            "status": run.info.status,
            "rounds": len(run.records),
            "aggregated": len(run.aggregated),
            "metric": run.metric.name,
            "user_accuracy": run.last,
            "best_user_accuracy": run.best,
            "rounds_to_target": int(done) if (done := rounds_to_target(run)).isdigit() else None,
            "seconds": run.seconds,
            "bytes_down": sum(record.bytes_down for record in run.records),
            "bytes_up": sum(record.bytes_up for record in run.records),
        }
        for run in runs
    ]


def _write(path: Path, data: bytes) -> None:
    try:
        write_atomic(path, data, mode=_MODE)
    except OSError as error:
        remedy = remedy_for(error, "say another place with --out")
        raise StateError(f"{path}: {error.strerror or error}; {remedy}") from error
