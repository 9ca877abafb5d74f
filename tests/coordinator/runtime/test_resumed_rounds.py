"""Resuming a run from the blobs of a killed coordinator, in both stores."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest

from fedpatch.coordinator.blobs.blob_store import BlobStore
from fedpatch.coordinator.rounds.participant_transitions import State
from fedpatch.coordinator.rounds.round_journal import RoundJournal
from fedpatch.coordinator.rounds.round_record import RoundRecord
from fedpatch.coordinator.rounds.run_effects import SaveRecord
from fedpatch.coordinator.rounds.run_events import Interrupted, TimePassed
from fedpatch.coordinator.runtime.resumed_rounds import devices_of_last_run, rest_of_pause, return_words, seen_devices
from fedpatch.coordinator.runtime.run_preparation import Prepared
from fedpatch.coordinator.storage.boot_clock import BootTime
from fedpatch.coordinator.storage.checkpoint import load_checkpoint, pause_of, save_checkpoint
from fedpatch.coordinator.storage.run_registry import REGISTRY_FILE, Registry, Sighting
from fedpatch.coordinator.storage.update_files import kept_devices, kept_rounds, store_update
from fedpatch.shared.errors import StateError
from tests.coordinator.effect_runners import Bench
from tests.coordinator.registry_builders import new_run
from tests.support.specs import run_spec


@pytest.fixture
def bench(
    tmp_path: Path, prepared: Prepared, registry: Registry, blobs: BlobStore, monkeypatch: pytest.MonkeyPatch
) -> Bench:
    moment, now = BootTime("a boot", 5000.0, 1.75e9), 5000.0  # whole seconds, so that sums are exact
    monkeypatch.setattr(BootTime, "now", lambda: moment)
    monkeypatch.setattr(time, "monotonic", lambda: now)
    return Bench(tmp_path, prepared, registry, blobs=blobs).begin()


def bits(bench: Bench) -> dict[str, bytes]:
    """Return the global model in the store."""
    return {name: array.tobytes() for name, array in load_checkpoint(bench.blobs)[0].tensors.items()}


def checkpoint_names(bench: Bench) -> list[str]:
    """Return the keys of the checkpoints, the newest last."""
    return [name for name in bench.blobs.list() if name.startswith("checkpoint-")]


def kept(bench: Bench) -> dict[int, list[str]]:
    """Return the devices of the updates in the store, by round; an object store may list rounds without updates."""
    found = {number: kept_devices(bench.blobs, number) for number in kept_rounds(bench.blobs)}
    return {number: devices for number, devices in found.items() if devices}


def states(bench: Bench) -> dict[str, State]:
    """Return the states of the devices in the open round."""
    assert bench.engine.open is not None
    return {device: one.state for device, one in bench.engine.open.round.participants.items()}


class TestInterval:
    def test_interval_between_two_rounds_counts_over_a_restart(self, bench, monkeypatch):
        first = bench.again(rounds=2, round_interval_s=1000.0)
        assert "round 1 goes on" in first.lines[-1]
        first.begin().upload("ab", 1.0)
        first.finish_updates(wait=True)
        now, saved_at = time.monotonic(), load_checkpoint(bench.blobs)[2]["pause"][-1]
        assert [record.outcome for record in bench.registry.rounds.records(first.engine.spec.run)] == ["aggregated"]
        assert (first.engine.open, first.engine.pause_s(now)) == (None, 1000.0)
        monkeypatch.setattr(BootTime, "now", lambda: BootTime("another boot", 5.0, saved_at + 300.0))
        later = first.again().begin()
        assert (later.engine.open, later.engine.pause_s(now)) == (None, 700.0)
        later.perform(later.engine.handle(TimePassed(), now + 700.0))
        assert later.engine.last_round == 2

    def test_clock_that_was_set_back_makes_no_pause_longer_than_the_interval(self):
        late = BootTime("a", 0.0, 5000.0)
        terms = run_spec(round_interval_s=100.0)
        assert rest_of_pause(pause_of(60.0, late), terms, BootTime("b", 0.0, 20.0)) == 60.0
        assert rest_of_pause(pause_of(900.0, late), terms, BootTime("b", 0.0, 20.0)) == 100.0
        assert rest_of_pause(pause_of(60.0, late), terms, BootTime("b", 0.0, 6000.0)) == 0.0
        assert rest_of_pause({"pause": ["soon"]}, terms, late) == rest_of_pause({}, terms, late) == 0.0


class TestOpenRound:
    def test_open_round_goes_on_with_its_committed_updates(self, bench):
        bench.upload("a", 1.0)
        later = bench.again()
        assert states(later) == {"a": State.REPORTED, "b": State.LOST}
        assert "round 1 goes on with 1 of 2 updates, 600 s to its deadline" in later.lines

    @pytest.mark.medium
    @pytest.mark.parametrize("before", ["a", "b", ""])
    def test_resumed_round_ends_with_the_same_bits(self, bench, before, tmp_path, prepared):
        values = {"a": 0.1, "b": 0.7}
        for device in before:
            bench.upload(device, values[device])
        later = bench.again().begin()
        for device in sorted(values.keys() - set(before), reverse=True):
            later.upload(device, values[device])
        whole = tmp_path / "whole"
        whole.mkdir()
        with Registry(whole / REGISTRY_FILE) as other:
            uninterrupted = Bench(whole, prepared, other).begin()
            for device, value in values.items():
                uninterrupted.upload(device, value)
            assert bits(later) == bits(uninterrupted)

    def test_closing_round_is_aggregated_with_the_same_devices(self, bench, monkeypatch, prepared):
        def killed(*_: object) -> None:
            raise KeyboardInterrupt

        monkeypatch.setitem(bench.performer.owners, SaveRecord, killed)
        bench.upload("a", 1.0)
        with pytest.raises(KeyboardInterrupt):
            bench.upload("b", 3.0)
        later = bench.again()
        [record] = later.registry.rounds.records(later.engine.spec.run)
        assert (record.outcome, record.reported) == ("aggregated", 2)
        assert {float(array.max()) for array in later.aggregator.state.tensors.values()} == {2.0}
        assert "round 1 goes on with 2 of 2 updates: all that were collected" in later.lines

    def test_closing_round_with_a_damaged_update_collects_again(self, bench):
        bench.upload("a", 1.0)
        run = bench.engine.spec.run
        bench.registry.rounds.close(run, "ab")
        store_update(bench.blobs, 1, "a", b"not what it was")
        later = bench.again()
        assert states(later) == {"a": State.LOST, "b": State.LOST}
        later.begin()
        later.upload("ab", 1.0)
        assert [record.reported for record in later.registry.rounds.records(run)] == [2]

    def test_closing_round_stays_closing_through_another_kill(self, bench):
        bench.upload("a", 1.0)
        run = bench.engine.spec.run
        bench.registry.rounds.close(run, "ab")
        journal = bench.registry.rounds.unfinished(run, BootTime.now())
        bench.registry.rounds.open(run, journal, BootTime.now())
        assert bench.registry.rounds.unfinished(run, BootTime.now()).closing

    def test_update_unknown_to_the_registry_is_named(self, bench):
        store_update(bench.blobs, 1, "b", b"blob")
        later = bench.again()
        assert "the update of b in round 1 is not in the registry; its device is asked again" in later.lines

    def test_unreadable_update_is_dropped_and_asked_for_again(self, bench):
        bench.upload("a", 1.0)
        store_update(bench.blobs, 1, "a", b"not what it was")
        later = bench.again()
        assert states(later)["a"] is State.LOST
        assert any("update of a in round 1 cannot be read" in line for line in later.lines)
        later.begin()
        later.upload("a", 1.0)
        assert states(later)["a"] is State.REPORTED

    def test_open_round_of_another_model_starts_again(self, bench):
        bench.upload("a", 1.0)
        run = bench.engine.spec.run
        journal = RoundJournal(1, 2, ("a", "b"), "f" * 64)
        bench.registry.rounds.open(run, journal, BootTime.now())
        later = bench.again()
        assert later.engine.open is None
        assert "round 1 was open with another model; it starts again" in later.lines
        assert (later.registry.rounds.updates(run, 1), kept(bench)) == ([], {})

    def test_open_round_in_an_encoding_of_an_earlier_version_starts_again(self, bench):
        bench.upload("a", 1.0)
        run = bench.engine.spec.run
        journal = RoundJournal(1, 2, ("a", "b"), bench.aggregator.base, encoding="delta-int4")
        bench.registry.rounds.open(run, journal, BootTime.now())
        later = bench.again()
        assert later.engine.open is None
        assert (
            "round 1 was open in encoding delta-int4, which only earlier versions have; it starts again" in later.lines
        )
        assert (later.registry.rounds.updates(run, 1), kept(bench)) == ([], {})

    def test_updates_of_other_rounds_are_deleted(self, bench):
        store_update(bench.blobs, 9, "a", b"blob")
        bench.again()
        assert kept(bench) == {}

    def test_interrupted_round_keeps_its_time(self, bench, monkeypatch):
        started = BootTime.now()
        bench.perform(bench.engine.handle(Interrupted(), bench.engine.open.round._invited_at + 100.0))
        night = BootTime(started.boot, started.uptime_s + 30_000, started.unix_s + 30_000)
        monkeypatch.setattr("fedpatch.coordinator.runtime.resumed_rounds.BootTime.now", lambda: night)
        assert "round 1 goes on with 0 of 2 updates, 500 s to its deadline" in bench.again().lines

    def test_killed_round_loses_the_time_between(self, bench, monkeypatch):
        then = BootTime.now()
        later = BootTime(then.boot, then.uptime_s + 101.0, then.unix_s - 1e9)
        monkeypatch.setattr("fedpatch.coordinator.runtime.resumed_rounds.BootTime.now", lambda: later)
        left_s = [
            found[1] for line in bench.again().lines if (found := re.match(r"round 1 goes on .* (\d+) s to", line))
        ]
        assert 480 < int(left_s[0]) < 500  # 600 s less the time since the round was opened


class TestCheckpoint:
    def test_record_of_the_checkpoint_is_added_to_the_registry(self, bench):
        run, state = bench.engine.spec.run, bench.aggregator.state
        saved = RoundRecord(1, "aggregated", 2, 2, 0, 2, user_accuracy=0.75)
        save_checkpoint(bench.blobs, state, bench.prepared.public, {"record": saved.to_dict()})
        later = bench.again()
        assert later.registry.rounds.records(run) == [saved]
        assert later.registry.rounds.unfinished(run, BootTime.now()) is None

    def test_failed_rounds_after_the_checkpoint_stay(self, bench):
        run = bench.engine.spec.run
        failed = RoundRecord(1, "failed", 2, 0, 2, 0, failure="too_few_accepted")
        bench.registry.rounds.finish(run, failed)
        assert bench.again().registry.rounds.records(run) == [failed]

    def test_damaged_checkpoint_takes_the_run_back_to_the_one_before(self, bench):
        for value in (1.0, 2.0):
            bench.upload("ab", value)
            bench = bench.again(rounds=3).begin()
        run = bench.engine.spec.run
        assert [record.round for record in bench.registry.rounds.records(run)] == [1, 2]
        newest = checkpoint_names(bench)[-1]
        bench.blobs.put(newest, bench.blobs.get(newest)[:-1])
        later = bench.again()
        assert [record.round for record in later.registry.rounds.records(run)] == [1]
        assert (
            "the model of round 2 is damaged or lost; going back to that of round 1, to repeat later rounds"
            in later.lines
        )
        later.begin()
        assert later.engine.last_round == 2
        assert {float(array.max()) for array in later.aggregator.state.tensors.values()} == {1.0}

    def test_damaged_checkpoint_keeps_failed_rounds_before_it(self, bench):
        run = bench.engine.spec.run
        bench.upload("ab", 1.0)
        bench.registry.rounds.finish(run, RoundRecord(2, "failed", 2, 0, 2, 0, failure="too_few_accepted"))
        bench = bench.again(rounds=4).begin()
        bench.upload("ab", 2.0)
        bench.blobs.put(checkpoint_names(bench)[-1], b"")
        later = bench.again()
        assert [record.round for record in later.registry.rounds.records(run)] == [1, 2]

    def test_missing_first_checkpoint_is_made(self, bench):
        bench.blobs.delete(*checkpoint_names(bench))
        assert bench.again().aggregator.state.round == 0

    def test_lost_checkpoints_of_played_rounds_raise(self, bench):
        bench.upload("ab", 1.0)
        bench.blobs.delete(*checkpoint_names(bench))
        with pytest.raises(StateError, match="holds no checkpoint"):
            bench.again()


def test_seen_devices_are_those_of_fleet_task_and_time(bench, registry):
    spec, now = bench.engine.spec, time.time()
    sightings = [
        Sighting(name, at, True, "1", tasks)
        for name, at, tasks in (("a", now, ("digits",)), ("b", now, ("mnist",)), ("c", -1.0, ("digits",)))
    ]
    registry.seen_devices("demo", sightings)
    registry.seen_devices("garden", [Sighting("d", now, True, "1", ("digits",))])
    registry.seen_devices("demo", [Sighting("a", now, False, "1", ())])
    assert seen_devices(registry, spec, "demo", now) == ["a"]


@pytest.mark.parametrize("seen_at", [5000.0, 1900.0], ids=["while the clock was ahead", "since it is right"])
def test_run_that_began_while_the_clock_was_ahead_counts_the_devices_since_the_run_before_it(tmp_path, seen_at):
    """Else a resumed run would forget its offline devices, and a minority could commit a round."""
    with Registry(tmp_path / REGISTRY_FILE) as registry:
        for created_at in (500.0, 1000.0, 5000.0):
            run = new_run(registry, created_at=created_at, settings={"fleet": "demo"})
        registry.seen_devices("demo", [Sighting("a", seen_at, False, "1", ("digits",))])
        registry.seen_devices("demo", [Sighting("old", 700.0, False, "1", ("digits",))])
        assert seen_devices(registry, run_spec(run=run.id), "demo", 2000.0) == ["a"]
        later = new_run(registry, created_at=2000.0, settings={"fleet": "demo"})
        assert devices_of_last_run(registry, run_spec(run=later.id), "demo", 2000.0) == ["a"]


@pytest.mark.parametrize(
    ("epoch", "wait_s", "words"), [(1, 300.0, ""), (2, 300.0, "at the latest after 1 min 0 s"), (2, 5.0, "after 5.0 s")]
)
def test_resumed_run_names_the_longest_wait_for_its_devices(epoch, wait_s, words):
    """Without these words its log is silent for a minute."""
    said = return_words(run_spec(epoch=epoch, wait_s=wait_s), None)
    assert words in said and bool(said) == (epoch > 1)
