"""The judge of runs with faults finds what is wrong, each thing by itself; so where it finds nothing, that means something."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from fedpatch.coordinator.rounds.run_records import PhaseSeconds, RoundRecord
from fedpatch.device_agent.state.patch_store import PatchState
from tests.faults.lesson import Lesson
from tests.faults.scene import HASTY, NAMES, Scene, num_examples
from tests.faults.verdict import judge
from tests.faults.watch import Watch

COHORTS = [("ann", "bob"), ("bob",), ("ann", "bob")]
DEVICES = NAMES[:2]


class Played:
    """A run as it should be, whose parts a test may spoil."""

    def __init__(self, directory: Path) -> None:
        self.lesson = Lesson(DEVICES)
        for cohort in COHORTS:
            self.lesson.round(cohort, cohort)
        self.promised = {(number, device) for number, cohort in enumerate(COHORTS, 1) for device in cohort}
        self.records = [_record(number, *cohort) for number, cohort in enumerate(COHORTS, 1)]
        self.stopped_because = "max_rounds"
        self._exported = directory / "model.npz"

    def judged(self) -> list[str]:
        """What is wrong with it, but for what lies on a disk."""
        np.savez(self._exported, **self.lesson.omega)
        watch = SimpleNamespace(problems=[], committed=self.promised, trained=set(), models={})
        rounds = [record.to_dict() for record in self.records]
        document = {"rounds": rounds, "stopped_because": self.stopped_because, "model": str(self._exported)}
        return judge(cast(Scene, _SceneOf(self.lesson)), cast(Watch, watch), document, len(COHORTS), HASTY)


class _SceneOf:
    """Has the patches of a lesson, and no leftovers."""

    devices = DEVICES

    def __init__(self, lesson: Lesson) -> None:
        self._lesson = lesson

    def offer(self, device: str) -> Path:
        return Path("/nowhere", device)

    def patch(self, device: str) -> PatchState:
        batches, values = self._lesson.patch(device)
        return PatchState(values, batches)


def _record(number: int, *devices: str, **changes: Any) -> RoundRecord:
    examples = sum(num_examples(device) for device in devices)
    given = {"reported": len(devices), "num_examples": examples, **changes}
    return RoundRecord(number, "aggregated", 2, 2, 0, **given)


def _loses_a_promise(played: Played) -> None:
    played.promised.add((2, "ann"))


def _counts_twice(played: Played) -> None:
    played.records[1] = _record(2, "bob", "bob")


def _is_late(played: Played) -> None:
    played.records[0] = _record(1, "ann", "bob", phase_seconds=PhaseSeconds(train=60.0))


def _misses_a_round(played: Played) -> None:
    del played.records[1]


def _gave_up(played: Played) -> None:
    played.stopped_because = "failed"


def _has_another_model(played: Played) -> None:
    played.lesson.omega["fc1.weight"] = played.lesson.omega["fc1.weight"] + 1e-3


def _trained_once_more(played: Played) -> None:
    played.lesson.round(("ann",), ())


@pytest.fixture
def played(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Played:
    """Without a coordinator's disk, there is nothing left on it."""
    monkeypatch.setattr("tests.faults.verdict._leftovers", lambda scene: [])
    return Played(tmp_path)


def test_nothing_is_wrong_with_a_run_without_faults(played: Played):
    assert played.judged() == []


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (_loses_a_promise, "round 2: ann was told `committed`, but the model is made of bob"),
        (_counts_twice, "no 2 devices, each once"),
        (_is_late, "round 1 took 60.0 s, with 13 s"),
        (_misses_a_round, r"there are records of rounds \[1, 3\]"),
        (_gave_up, "the run stopped because: failed"),
        (_has_another_model, "exported model: fc1.weight is 0.001 away"),
        (_trained_once_more, "patch of ann: has seen 9 batches, not 6"),
    ],
)
def test_what_is_wrong_is_found(played: Played, spoil: Callable[[Played], None], words: str):
    spoil(played)
    assert re.search(words, "\n".join(played.judged()))
