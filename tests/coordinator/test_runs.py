"""Taking a run up again after a crash at the worst moment."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from coordinator.records import RoundRecord
from coordinator.registry import REGISTRY_FILE, Registry
from coordinator.runs import _catch_up


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[Registry]:
    """A registry of one run, in which one round was played."""
    with Registry(tmp_path / REGISTRY_FILE) as opened:
        yield opened


def begin(registry: Registry) -> str:
    """A run with one record."""
    info = registry.create_run(
        created_at=0.0, task="digits", strategy="fedavg", private="none", settings={}, schema="0" * 64
    )
    registry.add_round(info.id, RoundRecord(1, "aggregated", 2, 2, 0, 2, user_accuracy=0.5))
    return info.id


def test_a_record_that_only_the_checkpoint_has_is_entered(registry):
    """Else the round would be played twice: the model has it already."""
    run = begin(registry)
    saved = RoundRecord(2, "aggregated", 2, 2, 0, 2, user_accuracy=0.75)
    _catch_up(registry, run, {"record": saved.to_dict()})
    assert registry.rounds(run)[-1] == saved


def test_rounds_that_failed_after_the_checkpoint_stay(registry):
    """A failed round makes no checkpoint; the last one is then older than the registry."""
    run = begin(registry)
    failed = RoundRecord(2, "failed", 2, 0, 2, 0, failure="too_few_accepted")
    registry.add_round(run, failed)
    _catch_up(registry, run, {"record": registry.rounds(run)[0].to_dict()})
    assert [record.outcome for record in registry.rounds(run)] == ["aggregated", "failed"]


def test_a_run_before_its_first_round_has_nothing_to_enter(registry):
    """Its checkpoint is the initial model."""
    run = begin(registry)
    _catch_up(registry, run, {})
    assert len(registry.rounds(run)) == 1
