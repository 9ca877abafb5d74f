"""Devices that are revoked while a run continues."""

from __future__ import annotations

import logging
import random
from pathlib import Path

import pytest

from fedpatch.coordinator.guard.revocations import Revocations
from fedpatch.coordinator.pki.issued_certificates import DEVICE, INDEX_NAME, Entry, Index, read_index, write_index
from fedpatch.coordinator.rounds.held_devices import REVOKED
from fedpatch.coordinator.rounds.participant_transitions import State
from fedpatch.coordinator.rounds.round_journal import RoundJournal, RoundStart
from fedpatch.coordinator.rounds.run_effects import AggregateUpdates, CountEvent, Effect, SaveRecord
from fedpatch.coordinator.rounds.run_engine import Engine
from fedpatch.coordinator.rounds.run_events import DevicesRevoked, ModelPublished, RunStarted, TimePassed
from fedpatch.shared.errors import StateError
from fedpatch.shared.wire.messages import Accept
from tests.coordinator.engines import accept, asking, current, engine, join, report_of, send
from tests.support.specs import model, run_spec, there

WORDS = logging.getLogger("fedpatch.coordinator").name


def record(directory: Path, *, revoked: str = "", issued: str = "", fleet: str = "kitchen") -> None:
    """Write a CA record with certificates of a and b, revoked for `revoked`, and new certificates for `issued`."""
    names = [(name, name in revoked) for name in "ab"] + [(name, False) for name in issued]
    entries = [
        Entry(serial=f"{number:x}", part=DEVICE, name=name, not_after=9, revoked_at=int(gone))
        for number, (name, gone) in enumerate(names, 1)
    ]
    write_index(directory, Index(fleet=fleet, entries=tuple(entries)))


def started(devices: str = "ab") -> Engine:
    """Return an engine whose devices are online, in the middle of a round."""
    made = engine(devices=len(devices))
    made.handle(RunStarted(), 0.0)
    join(made, devices)
    return made


def poll(revocations: Revocations, run: Engine, now: float) -> list[Effect]:
    """Return the effects of reading the CA's record, as the service reads it."""
    return run.handle(DevicesRevoked(revocations.poll(run.fleet.members)), now)


def test_fleet_without_a_ca_has_no_revocations(tmp_path: Path):
    revocations = Revocations(tmp_path / "ca", "kitchen")
    assert poll(revocations, started(), 1.0) == [] and "a" not in revocations.revoked


def test_revoked_device_is_held_and_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    record(tmp_path)
    revocations, run = Revocations(tmp_path, "kitchen"), started()
    assert poll(revocations, run, 1.0) == [] and run.fleet.members["a"].held == ""
    record(tmp_path, revoked="a")
    with caplog.at_level("WARNING", WORDS):
        poll(revocations, run, 2.0)
        poll(revocations, run, 9.0)
    assert [one.message for one in caplog.records] == [
        "a was revoked: it gets no more invitations, and its messages are refused"
    ]
    assert "a" in revocations.revoked and "b" not in revocations.revoked
    assert run.fleet.members["a"].held == REVOKED and run.fleet.eligible() == ["b"]


def test_revoked_device_leaves_the_open_round(tmp_path: Path):
    record(tmp_path)
    revocations, run = Revocations(tmp_path, "kitchen"), started("abc")
    from fedpatch.coordinator.rounds.run_effects import PublishModel

    assert run.open is not None or any(isinstance(one, PublishModel) for one in run.handle(TimePassed(), 0.0))
    run.handle(ModelPublished(model()), 0.0)
    for device in "abc":
        send(run, device, Accept(10), 0.0, 1)
    record(tmp_path, revoked="a")
    assert CountEvent("a", "failed", "revoked", leaves=True) in poll(revocations, run, 2.0)
    assert current(run).round.participants["a"].state is State.FAILED
    assert current(run).round.participants["b"].state is not State.FAILED


def test_round_whose_last_awaited_device_is_revoked_aggregates_at_once():
    """In a small fleet no other event may come for minutes, and an aggregating round has no deadline."""
    run = asking("ab", quorum=0.5)
    report_of(run, "a")
    assert AggregateUpdates(1, ("a",)) in run.handle(DevicesRevoked(frozenset("b")), 6.0)


def test_round_whose_only_devices_are_revoked_fails_at_once():
    run = asking("ab")
    accept(run, "ab")
    effects = run.handle(DevicesRevoked(frozenset("ab")), 6.0)
    assert [one.record.outcome for one in effects if isinstance(one, SaveRecord)] == ["failed"]
    assert run.open is None


def test_resumed_round_does_not_wait_for_a_revoked_device(tmp_path: Path):
    record(tmp_path, revoked="a")
    journal = RoundJournal(1, 2, ("a", "b"), model().digest, frozenset("ab"), 0.0, False)
    run = Engine(run_spec(epoch=2, quorum=0.5), unfinished=RoundStart(journal, {}), jitter=random.Random(1))
    revocations = Revocations(tmp_path, "kitchen")
    run.handle(RunStarted(), 0.0)
    assert poll(revocations, run, 0.0) == []
    run.handle(ModelPublished(model()), 0.0)
    assert poll(revocations, run, 1.0) == [CountEvent("a", "failed", "revoked", leaves=True)]
    states = {device: one.state for device, one in current(run).round.participants.items()}
    assert states == {"a": State.FAILED, "b": State.LOST}
    assert poll(revocations, run, 2.0) == []


def test_remembered_device_that_is_revoked_does_not_count(tmp_path: Path):
    record(tmp_path, revoked="a")
    run = Engine(run_spec(epoch=2, quorum=1.0), jitter=random.Random(1))
    run.fleet.remember("ab")
    run.handle(RunStarted(), 0.0)
    revocations = Revocations(tmp_path, "kitchen")
    assert run.fleet.missing() == ["a", "b"]
    poll(revocations, run, 1.0)
    assert (run.fleet.missing(), run.fleet.count.standing.fleet) == (["b"], 1)
    record(tmp_path, revoked="a", issued="a")
    poll(revocations, run, 2.0)
    assert (run.fleet.missing(), run.fleet.count.standing.fleet) == (["a", "b"], 2)


def test_revoked_device_stays_held_after_a_restart(tmp_path: Path):
    record(tmp_path, revoked="a")
    revocations, run = Revocations(tmp_path, "kitchen"), started()
    poll(revocations, run, 1.0)
    run.fleet.update("a", there("b2"))
    assert run.fleet.eligible() == ["b"]


def test_device_with_a_new_certificate_is_eligible_again(tmp_path: Path):
    record(tmp_path, revoked="a")
    revocations, run = Revocations(tmp_path, "kitchen"), started()
    poll(revocations, run, 1.0)
    assert run.fleet.eligible() == ["b"]
    record(tmp_path, revoked="a", issued="a")
    poll(revocations, run, 2.0)
    assert "a" not in revocations.revoked and run.fleet.eligible() == ["a", "b"]


def test_damaged_or_deleted_record_keeps_the_revocations(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    record(tmp_path, revoked="a")
    revocations, run = Revocations(tmp_path, "kitchen"), started()
    for number, spoil in enumerate((lambda path: path.write_text("{"), lambda path: path.unlink()), 1):
        spoil(tmp_path / INDEX_NAME)
        with caplog.at_level("WARNING", WORDS):
            poll(revocations, run, 2.0 * number)
        assert "a" in revocations.revoked
    assert "is damaged" in caplog.text and "has disappeared; earlier revocations stay in force" in caplog.text


def test_revocation_during_the_first_read_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    record(tmp_path)

    def read_then_revoked(directory: Path) -> Index | None:
        index = read_index(directory)
        record(tmp_path, revoked="a")
        return index

    with monkeypatch.context() as patch:
        patch.setattr("fedpatch.coordinator.guard.revocations.read_index", read_then_revoked)
        revocations = Revocations(tmp_path, "kitchen")
    assert "a" not in revocations.revoked
    poll(revocations, started(), 2.0)
    assert "a" in revocations.revoked


def test_record_that_becomes_readable_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Only the owner of the file has changed, not its text or time."""
    record(tmp_path)
    revocations, run = Revocations(tmp_path, "kitchen"), started()

    def denied(directory: Path) -> Index | None:
        raise StateError(f"{directory}: Permission denied")

    record(tmp_path, revoked="a")
    with monkeypatch.context() as patch:
        patch.setattr("fedpatch.coordinator.guard.revocations.read_index", denied)
        poll(revocations, run, 2.0)
    assert "a" not in revocations.revoked
    (tmp_path / INDEX_NAME).chmod(0o640)
    poll(revocations, run, 4.0)
    assert "a" in revocations.revoked


def test_record_that_cannot_be_read_once_is_read_at_the_next_poll(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    """Such as with too many open files: the record itself does not change again."""
    record(tmp_path)
    revocations, run = Revocations(tmp_path, "kitchen"), started()
    record(tmp_path, revoked="a")

    def refused(directory: Path) -> Index | None:
        raise StateError(f"{directory}: Too many open files")

    with monkeypatch.context() as patch, caplog.at_level("WARNING", WORDS):
        patch.setattr("fedpatch.coordinator.guard.revocations.read_index", refused)
        for number in (1, 2):
            poll(revocations, run, 2.0 * number)
    assert "a" not in revocations.revoked
    assert caplog.text.count("Too many open files") == 1
    poll(revocations, run, 6.0)
    assert "a" in revocations.revoked


def test_unreadable_record_at_the_start_raises(tmp_path: Path):
    (tmp_path / INDEX_NAME).write_text("{")
    with pytest.raises(StateError, match="the record of a CA is damaged"):
        Revocations(tmp_path, "kitchen")


def test_ca_of_another_fleet_is_logged_and_ignored(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    record(tmp_path, revoked="a", fleet="garden")
    with caplog.at_level("WARNING", WORDS):
        assert "a" not in Revocations(tmp_path, "kitchen").revoked
    assert "is the CA of fleet 'garden', not of 'kitchen'" in caplog.text
