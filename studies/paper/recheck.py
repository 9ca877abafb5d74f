"""Compute recorded cells of the paper again, and decide whether another processor can explain the difference.

A simulation gives the same bits on the same processor with the same code and versions. Another processor adds in another
order, and a change of the code may; the rounds to target then differ by up to a third. The new results are
below `rechecks/`, by processor.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fedpatch.shared.errors import UsageError
from studies.paper.experiments import Cell
from studies.paper.results import Result, ResultOrigin, Results

RELATIVE_SPREAD = 0.35
SPREAD_ROUNDS = 3
"""A little more than the largest change of the rounds to target by another processor: docs/explanation/results.md."""


@dataclass(frozen=True)
class Recheck:
    """A recorded result beside a new one of the same cell and seed."""

    recorded: Result
    again: Result

    @property
    def same(self) -> bool:
        """True if the two have the same user accuracy after each round."""
        return self.recorded.curve == self.again.curve

    @property
    def within(self) -> bool:
        """True if the rounds to target differ by no more than a processor's spread, or neither reaches the target.

        A training that diverges equals only another one that diverges.
        """
        if (self.recorded.diverged is None) != (self.again.diverged is None):
            return False
        before, now = self.recorded.rounds_to_target, self.again.rounds_to_target
        if before is None or now is None:
            return before == now
        return abs(now - before) <= max(RELATIVE_SPREAD * before, SPREAD_ROUNDS)

    @property
    def largest_difference(self) -> float:
        """The largest difference of user accuracy after the same number of rounds."""
        return max(abs(one - other) for one, other in zip(self.recorded.curve, self.again.curve, strict=False))

    @property
    def verdict(self) -> str:
        """`same`, `within` or `outside`."""
        return "same" if self.same else "within" if self.within else "outside"

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        return {
            "cell": self.again.cell,
            "seed": self.again.study.seed,
            "recorded": _origin(self.recorded),
            "again": _origin(self.again),
            "largest_difference": self.largest_difference,
            "verdict": self.verdict,
        }


def _origin(result: Result) -> dict[str, Any]:
    kept = ("rounds_to_target", "diverged", "user_accuracy", "commit", "processor", "versions")
    return {name: value for name, value in asdict(result).items() if name in kept}


def folder_of(results: Path, processor: str) -> Path:
    """Return the folder of the new results of a processor."""
    return results / "rechecks" / re.sub(r"[^a-z0-9]+", "-", processor.lower()).strip("-")


def require_recorded(cells: Sequence[Cell], seeds: Sequence[int], recorded: Results) -> None:
    """Raise UsageError if a cell has no recorded result to compare with."""
    for cell in cells:
        for seed in seeds:
            if recorded.read(cell, seed) is None:
                terms = f"--cells {cell.short_name} --seeds {seed + 1} --results {shlex.quote(str(recorded.folder))}"
                raise UsageError(
                    f"{cell.name}, seed {seed} has no result in {recorded.folder} to compare with; choose other cells "
                    f"with --cells, or compute it: python -m studies.paper {cell.where} {terms}"
                )


def discard_stale(cells: Sequence[Cell], seeds: Sequence[int], again: Results, origin: ResultOrigin) -> None:
    """Delete new results of another or unknown commit, and unfinished ones of another: they do not test this code."""
    for cell in cells:
        for seed in seeds:
            found = again.read(cell, seed)
            if found is not None and (found.commit is None or found.commit != origin.commit):
                again.discard(cell, seed)
            again.discard_unfinished(cell, seed, origin.commit)


def rechecks(cells: Sequence[Cell], seeds: Sequence[int], recorded: Results, again: Results) -> list[Recheck]:
    """Return the pairs of which both results exist, in the order of `cells`."""
    pairs = ((recorded.read(cell, seed), again.read(cell, seed)) for cell in cells for seed in seeds)
    return [Recheck(before, now) for before, now in pairs if before is not None and now is not None]
