"""Masked runs with restarts, take-overs, failed rounds, restored backups and sampled cohorts: no device meets a used base.

A device offers one masked update from a base, so that accidents of an honest coordinator open no two sums from one. It must not
pay for this rule with rounds: each history below is played to its end with the devices' answers.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from fedpatch.coordinator.aggregation.moved_base import moved
from fedpatch.coordinator.rounds.round_record import RoundRecord
from fedpatch.coordinator.runtime.run_preparation import Prepared
from fedpatch.coordinator.storage.run_registry import REGISTRY_FILE, Registry
from fedpatch.device_agent.job.masked_steps import BASE_SPENT
from fedpatch.shared.tensors.arrays import values_digest
from fedpatch.shared.wire.masking_messages import Reveal
from fedpatch.shared.wire.messages import Offer, WorkRequest
from tests.coordinator.effect_runners import Bench
from tests.coordinator.masked_fleets import TERMS, Change, Clock, MaskedDevice, MaskedFleet
from tests.coordinator.registry_builders import new_run

DEVICES = 9


@dataclass
class History:
    """A run on one disk, whose processes come one after the other, and its devices.

    Attributes:
        directory: State directory of the coordinator.
        clock: Clock of all.
        prepared: Model of the run.
        terms: Terms beside TERMS.
        spent: Devices that declined because of a used base.
    """

    directory: Path
    clock: Clock
    prepared: Prepared
    terms: dict[str, Any] = field(default_factory=dict)
    devices: dict[str, MaskedDevice] = field(default_factory=dict)
    spent: list[str] = field(default_factory=list)
    run: str = ""
    processes: int = 0

    def process(self, rounds: int, change: Change | None = None, wait_s: float = 2000.0) -> list[RoundRecord]:
        """Start a coordinator that plays up to so many rounds, and end it; return all records."""
        self.processes += 1
        with Registry(self.directory / REGISTRY_FILE) as registry:
            self.run = self.run or new_run(registry, schema=self.prepared.schema.digest).id
            terms = {**TERMS, "devices": DEVICES, "group_size": DEVICES, "unmask_s": 20.0, **self.terms}
            terms |= {"rounds": rounds, "entropy": self.processes}
            bench = Bench(self.directory, self.prepared, registry, self.run, **terms)
            fleet = MaskedFleet(bench, self.clock, terms["devices"], self.devices)
            self.devices, fleet.change = fleet.devices, change or fleet.change
            fleet.come().wait(wait_s)
            self.spent += [device for device, answer in fleet.transcript if answer == BASE_SPENT]
            return list(registry.rounds.records(self.run))


def lose(kind: type) -> Change:
    """Lose each answer of a kind."""
    return lambda device, answer: None if isinstance(answer, kind) else answer


def resumed(history: History) -> int:
    """A coordinator that is started again after a round."""
    history.process(1)
    return len(history.process(2))


def taken_over(history: History) -> int:
    """A standby that takes over while devices train, and another one after the round."""
    history.process(1, lose(Offer), wait_s=1.0)
    history.process(1)
    return len(history.process(2))


def taken_over_while_sums_open(history: History) -> int:
    """A standby that takes over while devices reveal."""
    history.process(1, lose(Reveal), wait_s=1.0)
    return len(history.process(2))


def failed(history: History) -> int:
    """A round whose sums never open, and a restart after it."""
    history.process(1, lose(Reveal), wait_s=100.0)
    return len(history.process(3)) - 1


def restored(history: History) -> int:
    """The coordinator's whole state, set back by two rounds that devices have played already."""
    history.process(1)
    backup = history.directory.with_name("backup")
    shutil.copytree(history.directory, backup)
    history.process(3)
    shutil.rmtree(history.directory)
    shutil.copytree(backup, history.directory)
    return len(history.process(4))


def sampled(history: History) -> int:
    """Cohorts of one of two groups, and a restart between them."""
    history.process(3)
    return len(history.process(6))


HISTORIES: dict[Callable[[History], int], dict[str, Any]] = {
    resumed: {},
    taken_over: {},
    taken_over_while_sums_open: {},
    failed: {},
    restored: {},
    sampled: {"devices": 16, "group_size": 8, "participation": 0.5},
}
"""Each history with its terms."""
IN_CI = (restored, taken_over)


def _in_ci(play: Callable[[History], int]) -> Any:
    return pytest.param(play, id=play.__name__, marks=pytest.mark.medium if play in IN_CI else pytest.mark.slow)


@pytest.mark.parametrize("play", [_in_ci(one) for one in HISTORIES])
def test_honest_history_of_a_masked_run_meets_no_used_base(tmp_path, prepared, clock, play):
    directory = tmp_path / "state"
    directory.mkdir()
    history = History(directory, clock, prepared, HISTORIES[play])
    count = play(history)
    with Registry(directory / REGISTRY_FILE) as registry:
        records = registry.rounds.records(history.run)
    assert history.spent == []
    assert sum(one.outcome == "aggregated" for one in records) == count >= 2
    assert {one.reported for one in records if one.outcome == "aggregated"} == {
        history.terms.get("group_size", DEVICES)
    }


@pytest.mark.medium
def test_each_round_after_a_failed_one_has_all_devices_and_a_base_moved_by_its_own_public_salt(
    tmp_path, prepared, clock
):
    """The sums of the first four rounds do not open, and their devices have offered an update from each base."""
    terms = {**TERMS, "devices": DEVICES, "group_size": DEVICES, "unmask_s": 20.0, "rounds": 5, "max_failed_rounds": 5}
    with Registry(tmp_path / REGISTRY_FILE) as registry:
        fleet = MaskedFleet(Bench(tmp_path, prepared, registry, **terms), clock, DEVICES)
        fleet.change = lambda device, answer: (
            lose(Reveal)(device, answer) if len(fleet.bench.engine.records) < 4 else answer
        )
        fleet.come().wait(4000.0)
        found = [(one.failure, one.reported, one.decline_reasons) for one in fleet.bench.engine.records]
    assert found == [("groups_lost", 0, {})] * 4 + [("", DEVICES, {})], fleet.bench.lines
    schema, initial = prepared.travelling, prepared.initial.tensors
    requests = [body for _, body in fleet.transcript if isinstance(body, WorkRequest)]
    bases = {one.secure.seed: one.content for one in requests if one.secure is not None}
    assert len(bases) == 5
    assert bases == {salt: values_digest(moved(initial, schema, salt), schema) for salt in bases}
