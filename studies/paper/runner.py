"""Computes the missing cells of the paper one after the other, quick ones first, and none twice.

An interrupted simulation is saved and resumed the next time. Several processes may compute the same results: a lock on
a file claims each cell and seed.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

from fedpatch.shared.errors import UpdateRefused
from fedpatch.simulator.spec.study import Outcome, Point, Study
from studies.paper.experiments import Cell, in_order, study_of
from studies.paper.results import Result, ResultOrigin, Results, result_of

_NOTE_EVERY_S = 20.0


class Simulate(Protocol):
    """The type of `fedpatch.simulator.experiment.simulation.simulate`."""

    def __call__(
        self,
        study: Study,
        *,
        workers: int,
        device: str,
        on_point: Callable[[Point], None],
        stopped: Callable[[], bool],
        saved: Path | None,
    ) -> Outcome:
        """Run `study` to its end, or until `stopped()` returns True between two rounds."""


class CellWatcher:
    """Receives the progress of a computation; this base class ignores it."""

    def begins(self, cell: Cell, seed: int, place: int, count: int) -> None:
        """A simulation begins or is resumed, the `place`-th of `count` cells and seeds."""

    def point(self, cell: Cell, seed: int, point: Point) -> None:
        """A round is completed; a resumed simulation reports its earlier rounds first."""

    def finished(self, cell: Cell, seed: int, result: Result) -> None:
        """A simulation is complete, and its result is on disk."""

    def diverged(self, cell: Cell, seed: int, error: str) -> None:
        """The simulation ended with non-finite or too large values; its result, with the rounds before, is on disk."""


@dataclass(frozen=True)
class Sum:
    """Outcome of the requested cells and seeds.

    `present` were finished before, `computed` now. Another process is computing `elsewhere`. In `diverged` the training
    diverged. `left` were not finished, because the run was interrupted.
    """

    present: int
    computed: int
    elsewhere: int = 0
    diverged: int = 0
    left: int = 0

    def __add__(self, other: Sum) -> Sum:
        """Return the sum of each count."""
        return Sum(*(mine + its for mine, its in zip(astuple(self), astuple(other), strict=True)))

    @property
    def interrupted(self) -> bool:
        """True if this process has not computed all cells."""
        return self.left > 0


def run_paper(
    cells: Sequence[Cell],
    seeds: Sequence[int],
    results: Results,
    origin: ResultOrigin,
    *,
    watcher: CellWatcher | None = None,
    stopped: Callable[[], bool] = lambda: False,
    simulate: Simulate | None = None,
) -> Sum:
    """Compute the cells with the seeds that have no result yet, and write each result at once.

    After training that diverges, which is a result too, the other cells are computed.

    Args:
        cells: Cells of the paper.
        seeds: Seeds of each.
        results: Folder of the results.
        origin: Processes and device to compute with, and command, commit and processor; each result has them.
        watcher: Receives the progress; None: it is not reported.
        stopped: Called between rounds; True ends the run, and the state of the current simulation is saved.
        simulate: Runs a study; None: simulator.experiment.simulation.simulate.

    Returns:
        Numbers of the results by their state.

    Raises:
        UsageError: A result on disk is damaged or has other terms.
        UpdateRefused: A model cannot be used before its first round.
    """
    play = simulate or _own_simulate()
    wanted = in_order(cells, seeds)
    missing = [(cell, seed) for cell, seed in wanted if results.read(cell, seed) is None]
    present = len(wanted) - len(missing)
    counts: Counter[str] = Counter()
    for index, (cell, seed) in enumerate(missing):
        if stopped():
            break
        with results.claimed(cell, seed) as ours:
            if not ours:
                counts["elsewhere"] += 1
                continue
            resumed = results.resumed_origin(cell, seed, origin)
            attempt = _Attempt(cell, seed, results, resumed, watcher or CellWatcher())
            attempt.watcher.begins(cell, seed, present + index + 1, len(wanted))
            result = attempt.play(play, stopped)
            if result is None:
                break
            counts["computed" if result.diverged is None else "diverged"] += 1
    left = len(missing) - counts.total()
    return Sum(present, counts["computed"], counts["elsewhere"], counts["diverged"], left)


class _Attempt:
    """The computation of one cell with one seed."""

    def __init__(self, cell: Cell, seed: int, results: Results, origin: ResultOrigin, watcher: CellWatcher) -> None:
        self.cell, self.seed, self.results, self.origin, self.watcher = cell, seed, results, origin, watcher
        self._noted_at = float("-inf")
        self._points: list[Point] = []

    def play(self, simulate: Simulate, stopped: Callable[[], bool]) -> Result | None:
        """Compute, write and return the result; None if the simulation was interrupted."""
        began_at = datetime.now(UTC).isoformat(timespec="seconds")
        study, saved, diverged = study_of(self.cell, self.seed), self.results.saved(self.cell, self.seed), None
        saved.mkdir(parents=True, exist_ok=True)
        try:
            outcome = simulate(
                study,
                workers=self.origin.workers,
                device=self.origin.device,
                on_point=self._on_point,
                stopped=stopped,
                saved=saved,
            )
        except UpdateRefused as error:
            if not self._points:
                raise
            from fedpatch.simulator.experiment.simulation import versions  # needs torch, which is loaded here already

            diverged = str(error)
            outcome = Outcome(study, tuple(self._points), False, versions())
        if diverged is None and not outcome.complete:
            self.results.note_progress(self.cell, self.seed, max(0, len(outcome.points) - 1), self.origin)
            return None
        result = result_of(self.cell, outcome, self.origin, began_at, diverged=diverged)
        self.results.write(self.cell, self.seed, result)
        if diverged is None:
            self.watcher.finished(self.cell, self.seed, result)
        else:
            self.watcher.diverged(self.cell, self.seed, diverged)
        return result

    def _on_point(self, point: Point) -> None:
        self._points.append(point)
        now = time.monotonic()
        if now - self._noted_at >= _NOTE_EVERY_S:  # for summaries of other processes, also after a power cut
            self.results.note_progress(self.cell, self.seed, point.round, self.origin)
            self._noted_at = now
        self.watcher.point(self.cell, self.seed, point)


def _own_simulate() -> Simulate:
    from fedpatch.simulator.experiment.simulation import simulate  # imports torch

    return simulate
