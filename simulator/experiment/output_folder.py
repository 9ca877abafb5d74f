"""The output folder of a study: outcome, curve and plots, and a checkpoint while the study is unfinished."""

from __future__ import annotations

import csv
import io
import json
import math
import shutil
from dataclasses import asdict, fields
from pathlib import Path

from fedpatch.shared.app.files import write_atomic
from fedpatch.shared.errors import UsageError
from fedpatch.simulator.experiment.plots import draw_outcome, require_matplotlib, save
from fedpatch.simulator.spec.study import Outcome, Point, Study

OUTCOME_FILE = "outcome.json"
CURVE_FILE = "curve.csv"
PICTURE = "curve.svg"
UNFINISHED = ".unfinished"

_READABLE = 0o644


class StudyFolder:
    """The output folder of a study, made if absent. Raises UsageError if it holds another study or other files."""

    def __init__(self, path: Path, study: Study) -> None:
        require_matplotlib()
        path.mkdir(parents=True, exist_ok=True)
        self.path = path
        self.unfinished = path / UNFINISHED
        self.outcome = self._read()
        if self.outcome is not None and self.outcome.study != study:
            raise UsageError(
                f"{path} holds another study ({self.outcome.study.differences(study)}); choose another --out"
            )

    def _read(self) -> Outcome | None:
        file = self.path / OUTCOME_FILE
        if not file.exists():
            foreign = [name for name in (CURVE_FILE, PICTURE) if (self.path / name).exists()]
            if foreign:
                raise UsageError(
                    f"{self.path}/{foreign[0]} is not of a study here, and would be lost; choose another --out"
                )
            return None
        try:
            return Outcome.from_dict(json.loads(file.read_text("utf-8")))
        except (UsageError, ValueError, AttributeError, RecursionError) as error:
            raise UsageError(f"{file} is not the outcome of a study ({error}); choose another --out") from error

    @property
    def whole(self) -> bool:
        """False if a process ended before it had written all files of a complete outcome."""
        return not self.unfinished.exists() and all((self.path / name).exists() for name in (CURVE_FILE, PICTURE))

    def write(self, outcome: Outcome) -> None:
        """Write the three files. `outcome` may be of an interrupted study; a complete outcome deletes the checkpoint."""
        figure = draw_outcome(outcome)
        for name, text in ((OUTCOME_FILE, f"{to_json(outcome)}\n"), (CURVE_FILE, to_csv(outcome))):
            write_atomic(self.path / name, text.encode(), mode=_READABLE)
        save(figure, self.path / "curve")
        if outcome.complete:
            shutil.rmtree(self.unfinished, ignore_errors=True)


def to_json(outcome: Outcome) -> str:
    """Return the outcome as one line of JSON. JSON has no infinity: the loss of diverged training is null."""
    values = outcome.to_dict()
    for point in values["points"]:
        if point["train_loss"] is not None and not math.isfinite(point["train_loss"]):
            point["train_loss"] = None
    return json.dumps(values, allow_nan=False)


def to_csv(outcome: Outcome) -> str:
    """Return a heading with the names of the fields, and a line per point."""
    text = io.StringIO()
    writer = csv.DictWriter(text, [one.name for one in fields(Point)], lineterminator="\n")
    writer.writeheader()
    writer.writerows(asdict(point) for point in outcome.points)
    return text.getvalue()
