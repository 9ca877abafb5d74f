"""What the next coordinator makes of the files that a killed one left."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from fedpatch.coordinator.rounds.participant_transitions import RoundJournal, State
from fedpatch.coordinator.rounds.run_events import Interrupted
from fedpatch.coordinator.rounds.run_records import RoundRecord
from fedpatch.coordinator.runtime.effect_runner import EffectRunner
from fedpatch.coordinator.runtime.resume import seen_devices
from fedpatch.coordinator.runtime.run_preparation import Prepared
from fedpatch.coordinator.storage.boot_clock import BootTime
from fedpatch.coordinator.storage.checkpoint import kept_rounds, load_checkpoint, save_checkpoint, store_update
from fedpatch.coordinator.storage.run_registry import REGISTRY_FILE, Registry, Sighting
from fedpatch.shared.errors import StateError
from fedpatch.shared.wire.messages import Committed, Offer
from tests.coordinator.effect_runners import Bench


@pytest.fixture
def bench(tmp_path: Path, prepared: Prepared, registry: Registry, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """A round in which both devices have accepted; no time passes, however busy the machine is."""
    moment, now = BootTime.now(), time.monotonic()
    monkeypatch.setattr(BootTime, "now", lambda: moment)
    monkeypatch.setattr(time, "monotonic", lambda: now)
    return Bench(tmp_path, prepared, registry).begin()


def bits(bench: Bench) -> dict[str, bytes]:
    """The global model on the disk."""
    return {name: array.tobytes() for name, array in load_checkpoint(bench.directory)[0].tensors.items()}


def states(bench: Bench) -> dict[str, State]:
    """Where the devices of the open round are."""
    assert bench.engine.open is not None
    return {device: one.state for device, one in bench.engine.open.round.participants.items()}


class TestOpenRound:
    def test_goes_on_with_the_updates_that_were_committed(self, bench):
        """What the device was promised holds in the next epoch, and the person is told."""
        bench.upload("a", 1.0)
        later = bench.again()
        assert states(later) == {"a": State.REPORTED, "b": State.LOST}
        assert "round 1 goes on with 1 of 2 updates, 600 s to its deadline" in later.said

    @pytest.mark.parametrize("before", ["a", "b", ""])
    def test_ends_with_the_very_same_model(self, bench, before, tmp_path, prepared):
        """Whatever was there before the kill and whatever came after it: the same updates give the same bits."""
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

    def test_that_was_being_aggregated_is_aggregated_with_the_same_devices(self, bench, monkeypatch, prepared):
        """The others had been told that it is over."""
        original = EffectRunner._save_record

        def killed(*_: object) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr(EffectRunner, "_save_record", killed)
        bench.upload("a", 1.0)
        with pytest.raises(KeyboardInterrupt):
            bench.upload("b", 3.0)
        monkeypatch.setattr(EffectRunner, "_save_record", original)
        later = bench.again()
        [record] = later.registry.rounds.records(later.engine.spec.run)
        assert (record.outcome, record.reported) == ("aggregated", 2)
        assert {float(array.max()) for array in later.aggregator.state.tensors.values()} == {2.0}
        assert "round 1 goes on with 2 of 2 updates: all that were collected" in later.said

    def test_that_was_being_aggregated_collects_again_where_an_update_is_damaged(self, bench):
        """With an update less the quorum may be missed, and without any there is nothing to aggregate."""
        bench.upload("a", 1.0)
        run = bench.engine.spec.run
        bench.registry.rounds.close(run)
        store_update(bench.directory, 1, "a", b"not what it was")
        later = bench.again()
        assert states(later) == {"a": State.LOST, "b": State.LOST}
        later.begin()
        for device in "ab":
            later.upload(device, 1.0)
        assert [record.reported for record in later.registry.rounds.records(run)] == [2]

    def test_that_was_being_aggregated_stays_so_through_another_kill(self, bench):
        """There is no moment at which the ledger forgets that the round was closed."""
        bench.upload("a", 1.0)
        run = bench.engine.spec.run
        bench.registry.rounds.close(run)
        ledger = bench.registry.rounds.unfinished(run, BootTime.now())
        bench.registry.rounds.open(run, ledger, BootTime.now())
        assert bench.registry.rounds.unfinished(run, BootTime.now()).closing

    def test_names_an_update_that_the_registry_does_not_know(self, bench):
        """A registry that was damaged is as old as its copy."""
        store_update(bench.directory, 1, "b", b"blob")
        later = bench.again()
        assert "the update of b in round 1 is not in the registry; its device is asked again" in later.said

    def test_forgets_an_update_that_cannot_be_read_back(self, bench):
        """It is not lost silently, and its device is asked again."""
        bench.upload("a", 1.0)
        store_update(bench.directory, 1, "a", b"not what it was")
        later = bench.again()
        assert states(later)["a"] is State.LOST
        assert any("update of a in round 1 cannot be read" in line for line in later.said)
        later.begin()
        later.upload("a", 1.0)
        assert states(later)["a"] is State.REPORTED

    def test_begins_anew_where_the_model_is_another(self, bench):
        """Updates of another base are of no use: a newer version may pack the same model in other bytes."""
        bench.upload("a", 1.0)
        run = bench.engine.spec.run
        ledger = RoundJournal(1, 2, ("a", "b"), "f" * 64)
        bench.registry.rounds.open(run, ledger, BootTime.now())
        later = bench.again()
        assert later.engine.open is None
        assert "round 1 was open with another model; it starts again" in later.said
        assert (later.registry.rounds.updates(run, 1), kept_rounds(bench.directory)) == ([], [])

    def test_leaves_no_updates_of_other_rounds_behind(self, bench):
        """A kill between the record and the cleaning up leaves files that nobody needs."""
        store_update(bench.directory, 9, "a", b"blob")
        bench.again()
        assert kept_rounds(bench.directory) == []

    def test_that_an_operator_interrupted_has_the_time_it_had(self, bench, monkeypatch):
        """The night between is not held against the devices."""
        started = BootTime.now()
        bench.perform(bench.engine.handle(Interrupted(), bench.engine.open.round._invited_at + 100.0))
        night = BootTime(started.boot, started.uptime_s + 30_000, started.unix_s + 30_000)
        monkeypatch.setattr("fedpatch.coordinator.runtime.resume.BootTime.now", lambda: night)
        assert "round 1 goes on with 0 of 2 updates, 500 s to its deadline" in bench.again().said

    def test_that_was_killed_loses_the_time_between(self, bench, monkeypatch):
        """The devices were at work meanwhile."""
        then = BootTime.now()
        later = BootTime(then.boot, then.uptime_s + 101.0, then.unix_s - 1e9)
        monkeypatch.setattr("fedpatch.coordinator.runtime.resume.BootTime.now", lambda: later)
        assert "round 1 goes on with 0 of 2 updates, 499 s to its deadline" in bench.again().said

    def test_tells_a_device_again_what_was_committed(self, bench):
        """The word may have died with the coordinator."""
        bench.upload("a", 1.0)
        _, manifest = bench.update(1.0)
        later = bench.again().begin()
        later.hear("a", Offer(manifest))
        assert later.sent[-1][1].body == Committed(manifest.digest)


class TestCheckpoint:
    def test_that_knows_more_than_the_registry_is_believed(self, bench):
        """Else the round would be played twice: the model has it already."""
        run, state = bench.engine.spec.run, bench.aggregator.state
        saved = RoundRecord(1, "aggregated", 2, 2, 0, 2, user_accuracy=0.75)
        save_checkpoint(bench.directory, state, bench.prepared.public, {"record": saved.to_dict()})
        later = bench.again()
        assert later.registry.rounds.records(run) == [saved]
        assert later.registry.rounds.unfinished(run, BootTime.now()) is None

    def test_that_is_older_than_failed_rounds_leaves_them(self, bench):
        """A failed round makes no checkpoint."""
        run = bench.engine.spec.run
        failed = RoundRecord(1, "failed", 2, 0, 2, 0, failure="too_few_accepted")
        bench.registry.rounds.finish(run, failed)
        assert bench.again().registry.rounds.records(run) == [failed]

    def test_that_is_damaged_takes_the_run_back_to_the_one_before(self, bench):
        """The rounds since are played again, under their numbers, and the person is told."""
        for value in (1.0, 2.0):
            for device in "ab":
                bench.upload(device, value)
            bench = bench.again(rounds=3).begin()
        run = bench.engine.spec.run
        assert [record.round for record in bench.registry.rounds.records(run)] == [1, 2]
        newest = max(bench.directory.glob("checkpoint-*.fp"))
        newest.write_bytes(newest.read_bytes()[:-1])
        later = bench.again()
        assert [record.round for record in later.registry.rounds.records(run)] == [1]
        assert (
            "the model of round 2 is damaged or lost; going back to that of round 1, to repeat later rounds"
            in later.said
        )
        later.begin()
        assert later.engine.last_round == 2
        assert {float(array.max()) for array in later.aggregator.state.tensors.values()} == {1.0}

    def test_that_is_damaged_leaves_failed_rounds_before_it_as_they_are(self, bench):
        """They changed no model: what is played again begins with the first round that did."""
        run = bench.engine.spec.run
        for device in "ab":
            bench.upload(device, 1.0)
        bench.registry.rounds.finish(run, RoundRecord(2, "failed", 2, 0, 2, 0, failure="too_few_accepted"))
        bench = bench.again(rounds=4).begin()
        for device in "ab":
            bench.upload(device, 2.0)
        newest = max(bench.directory.glob("checkpoint-*.fp"))
        newest.write_bytes(b"")
        later = bench.again()
        assert [record.round for record in later.registry.rounds.records(run)] == [1, 2]

    def test_of_a_run_that_was_killed_before_its_first_is_made(self, bench):
        """The initial model follows from the seed."""
        for path in bench.directory.glob("checkpoint-*.fp"):
            path.unlink()
        assert bench.again().aggregator.state.round == 0

    def test_that_is_lost_with_rounds_played_is_an_error(self, bench):
        """To begin from the initial model would be to lose them silently."""
        bench.upload("a", 1.0)
        bench.upload("b", 1.0)
        for path in bench.directory.glob("checkpoint-*.fp"):
            path.unlink()
        with pytest.raises(StateError, match="holds no checkpoint"):
            bench.again()


def test_devices_that_the_run_has_seen_count_after_it_was_taken_up(bench, registry):
    """Those of its fleet with its task since it began, and no others."""
    spec, now = bench.engine.spec, time.time()
    sightings = [
        Sighting(name, at, True, "1", tasks)
        for name, at, tasks in (("a", now, ("digits",)), ("b", now, ("mnist",)), ("c", -1.0, ("digits",)))
    ]
    registry.seen_devices("demo", sightings)
    registry.seen_devices("garden", [Sighting("d", now, True, "1", ("digits",))])
    registry.seen_devices("demo", [Sighting("a", now, False, "1", ())])
    assert seen_devices(registry, spec, "demo") == ["a"]
