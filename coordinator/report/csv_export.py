"""All rounds of runs as CSV, for spreadsheets and programs: no round is left out, however long the run."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence

from fedpatch.coordinator.report.series import PHASES, Run, round_seconds
from fedpatch.coordinator.rounds.round_record import RoundRecord
from fedpatch.shared.app.formatting import printable

_PLAIN = ("round", "outcome", "failure", "cohort", "accepted", "declined", "reported", "late", "num_examples")
_MEASURES = ("user_accuracy", "user_accuracy_p10", "user_accuracy_min", "user_accuracy_after")
_MAPS = ("decline_reasons", "failures", "refused", "user_accuracies", "bounded", "pulls", "pull_quantiles")
COLUMNS = (
    "run", *_PLAIN, "metric", *_MEASURES, "seconds", *(f"{phase}_s" for phase in PHASES), "bytes_down", "bytes_up",
    *_MAPS, "bounded_devices",
)  # fmt: skip


def csv_text(runs: Sequence[Run]) -> str:
    """A line with COLUMNS, then one for each round. Unmeasured values are empty; a map is `name=value name=value`."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(COLUMNS)
    for run in runs:
        for record in run.records:
            writer.writerow([_tame(run.info.id), *_row(record)])
    return file.getvalue()


def _row(record: RoundRecord) -> list[object]:
    phases = [getattr(record.phase_seconds, phase) for phase in PHASES]
    cells: list[object] = [getattr(record, name) for name in _PLAIN]
    cells += [record.metric, *(getattr(record, name) for name in _MEASURES), round(round_seconds(record), 6)]
    cells += [*phases, record.bytes_down, record.bytes_up, *(_pairs(getattr(record, name)) for name in _MAPS)]
    cells.append(" ".join(f"{device}={','.join(parts)}" for device, parts in sorted(record.bounded_devices.items())))
    return [_tame(cell) if isinstance(cell, str) else cell for cell in cells]


def _pairs(values: Mapping[str, float]) -> str:
    return " ".join(f"{name}={value:.10g}" for name, value in sorted(values.items()))


def _tame(text: str) -> str:
    """Put a quote before a text that a spreadsheet would read as a formula; replace characters that are not printable."""
    text = printable(text, "\ufffd")
    return f"'{text}" if text.startswith(("=", "+", "-", "@")) else text
