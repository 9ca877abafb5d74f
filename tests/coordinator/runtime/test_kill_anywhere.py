"""Kills of a coordinator before each of its writes, and of the next process while it resumes."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection

from fedpatch.coordinator.rounds.held_devices import QUARANTINED
from fedpatch.coordinator.runtime.run_preparation import Prepared
from fedpatch.coordinator.storage import run_journal
from fedpatch.coordinator.storage.checkpoint import load_checkpoint
from fedpatch.coordinator.storage.database.transactions import Tables
from fedpatch.coordinator.storage.run_journal import read_journal
from fedpatch.coordinator.storage.run_registry import REGISTRY_FILE, Registry
from fedpatch.shared.app.files import append_line
from fedpatch.shared.wire.messages import Offer
from tests.coordinator.effect_runners import Bench
from tests.coordinator.registry_builders import new_run

ROUNDS = 2
VALUES = {"a": 0.1, "b": 0.7}


@pytest.fixture
def tmp_path(memory_path: Path) -> Path:
    return memory_path


class Killed(BaseException):
    """Simulates kill -9: no handler catches it, and no cleanup runs."""


class Guillotine:
    """Kills before the `fatal`-th write to the disk (0: never); `writes` counts the writes."""

    def __init__(self, fatal: int) -> None:
        self.fatal = fatal
        self.writes = 0

    def before(self, real: Callable[..., Any]) -> Callable[..., Any]:

        def write(*args: Any, **given: Any) -> Any:
            self.writes += 1
            if self.writes == self.fatal:
                raise Killed
            return real(*args, **given)

        return write

    def installed(self, patch: pytest.MonkeyPatch) -> None:
        """Count as writes: start and commit of each transaction, and each file that is written, renamed or deleted."""
        patch.setattr(run_journal, "append_line", self.before(append_line))
        patch.setattr(Path, "unlink", self.before(Path.unlink))
        patch.setattr(Path, "rmdir", self.before(Path.rmdir))
        patch.setattr(os, "replace", self.before(os.replace))
        real = Tables._change
        guillotine = self

        def change(tables: Tables, work: Callable[[Connection], Any]) -> Any:
            guillotine.before(lambda: None)()
            return real(tables, lambda db: (work(db), guillotine.before(lambda: None)())[0])

        patch.setattr(Tables, "_change", change)


def play(bench: Bench) -> None:
    """Both devices upload in each round until the run is over; a device whose update is committed sends nothing more."""
    while not bench.engine.stopped:
        bench.begin()
        number = bench.engine.last_round
        for device, value in VALUES.items():
            if device not in bench.reported(number):
                bench.upload(device, value * number)


def play_beside_an_offender(bench: Bench) -> None:
    """Device c is online first and offers updates of another schema until it is in quarantine; then b is invited too."""
    while not bench.engine.stopped:
        bench.begin("cab")
        bench.receive("c", Offer(replace(bench.update(1.0)[1], schema="0" * 64)))
        bench.look()
        number = bench.engine.last_round
        for device, value in VALUES.items():
            if device not in bench.reported(number):
                bench.upload(device, value * number)


def play_with_kills(
    directory: Path, prepared: Prepared, fatal: tuple[int, ...], played: Callable[[Bench], None] = play, **terms: Any
) -> tuple[dict[str, bytes], list[Any], int]:
    """Return final model, records and the number of kills that happened. Each process dies at its own fatal write."""
    run = ""
    directory.mkdir()
    kills = 0
    for fatal_write in (*fatal, 0):
        guillotine = Guillotine(fatal_write)
        with Registry(directory / REGISTRY_FILE) as registry, pytest.MonkeyPatch.context() as patch:
            run = run or new_run(registry).id
            guillotine.installed(patch)
            try:
                played(Bench(directory, prepared, registry, run, **{"rounds": ROUNDS, "quorum": 1.0, **terms}))
            except Killed:
                kills += 1
                continue
            records = registry.rounds.records(run)
            break
    model = {name: array.tobytes() for name, array in load_checkpoint(directory)[0].tensors.items()}
    with Registry(directory / REGISTRY_FILE) as registry:
        assert registry.holds.held("demo") == ({} if played is play else {"c": QUARANTINED})
        assert list(read_journal(registry.journal.path(run)).records.values()) == registry.rounds.records(run)
    accounts = [
        (one.round, one.outcome, one.reported, one.num_examples, one.bounded, one.bounded_devices) for one in records
    ]
    return model, accounts, kills


def kill_at_every_write(
    directory: Path,
    prepared: Prepared,
    at_least: int,
    played: Callable[[Bench], None] = play,
    every: int = 1,
    **terms: Any,
) -> list[Any]:
    """Kill at each write, or at the first and every few; the run must end with the model and records of a run without kills.

    Return these records.
    """
    whole = play_with_kills(directory / "whole", prepared, (), played, **terms)
    for fatal in itertools.count(1, every):
        model, records, kills = play_with_kills(directory / f"killed-{fatal}", prepared, (fatal,), played, **terms)
        assert (model, records) == whole[:2], f"killed before write {fatal}"
        if kills == 0:
            assert fatal > at_least
            return whole[1]
    raise AssertionError("it never came to an end")


@pytest.mark.medium
@pytest.mark.parametrize("every", [3, pytest.param(1, marks=pytest.mark.slow)])
def test_kill_before_any_write_changes_no_result(tmp_path, prepared, every):
    records = kill_at_every_write(tmp_path, prepared, 20, every=every)
    assert [record[0] for record in records] == list(range(1, ROUNDS + 1))


@pytest.mark.slow
def test_kill_before_any_write_with_bounds_and_quarantine_changes_no_result(tmp_path, prepared):
    """After a kill before any write, updates are clipped to the same bits and the offender is in quarantine."""
    terms: dict[str, Any] = {"quorum": 0.5, "norm_bound": "auto:0.5", "quarantine_after": 1}
    records = kill_at_every_write(tmp_path, prepared, 25, play_beside_an_offender, **terms)
    assert [(record[2], bool(record[4]), bool(record[5])) for record in records] == [(1, True, True), (2, True, True)]


@pytest.mark.medium
@pytest.mark.parametrize(
    ("aggregate", "every"),
    [("mean", 4), *(pytest.param(one, 1, marks=pytest.mark.slow) for one in ("mean", "centred"))],
)
def test_kill_before_any_write_with_deltas_changes_no_result(tmp_path, prepared, aggregate, every):
    """Deltas are sent in both directions; the next step is the same with or without a stored previous step."""
    kill_at_every_write(tmp_path, prepared, 20, every=every, encoding="delta-int8", aggregate=aggregate)


@pytest.mark.medium
@pytest.mark.parametrize("second", [1, 2, 3, 5, 8])
def test_second_kill_while_resuming_changes_no_result(tmp_path, prepared, second):
    """The second kill happens while the next process reads the state after the first kill."""
    whole = play_with_kills(tmp_path / "whole", prepared, ())
    for fatal in range(4, 40, 5):
        model, records, _ = play_with_kills(tmp_path / f"killed-{fatal}", prepared, (fatal, second))
        assert (model, records) == whole[:2], f"killed before writes {fatal} and {second}"
