"""Kills of a coordinator before each of its writes in a masked round: the same model, and no device reveals both secrets."""

from __future__ import annotations

import itertools
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select, update

from fedpatch.coordinator.masking.masked_groups import REGISTER
from fedpatch.coordinator.storage.checkpoint import load_checkpoint
from fedpatch.coordinator.storage.database.tables import masking
from fedpatch.coordinator.storage.run_registry import REGISTRY_FILE, Registry
from fedpatch.shared.wire.masking_messages import Inbox, Reveal, Roster, Shares, Unmask
from fedpatch.shared.wire.messages import Accept, Decline, Offer
from fedpatch.shared.wire.reason_codes import DeclineReason
from tests.coordinator.effect_runners import Bench
from tests.coordinator.masked_fleets import TERMS, Change, Clock, MaskedDevice, MaskedFleet
from tests.coordinator.registry_builders import new_run, seen
from tests.coordinator.runtime.test_kill_anywhere import Guillotine, Killed
from tests.coordinator.runtime.test_resumed_rounds import checkpoint_names
from tests.faults.simulated.lesson import prepared

DEVICES, SILENT, LATE = 11, "pi-04", "pi-07"


def lose_two(device: str, answer: Any) -> Any:
    """Lose one device before its upload, another one before its reveal."""
    lost = (device == LATE and isinstance(answer, Offer)) or (device == SILENT and isinstance(answer, Reveal))
    return None if lost else answer


def lose_three(device: str, answer: Any) -> Any:
    """Lose the acceptance of one device, the shares of a second and the offer of a third."""
    kinds = {"pi-02": Accept, "pi-03": Shares, LATE: Offer}
    return None if isinstance(answer, kinds.get(device, ())) else answer


def play(
    directory: Path, clock: Clock, fatal: tuple[int, ...], changes: tuple[Change, ...] = (lose_two,)
) -> tuple[dict[str, bytes], Any, int, list[Any]]:
    """Run one round of eleven devices; each process except the last dies before its own fatal write.

    `changes` has a change for the first process, for the second and so on; the last change is for all later processes.
    """
    directory.mkdir()
    run, kills = "", 0
    devices: dict[str, MaskedDevice] = {}
    transcript: list[Any] = []
    for count, fatal_write in enumerate((*fatal, 0)):
        guillotine = Guillotine(fatal_write)
        with Registry(directory / REGISTRY_FILE) as registry, pytest.MonkeyPatch.context() as patch:
            run = run or new_run(registry).id
            guillotine.installed(patch)
            try:
                terms = {**TERMS, "devices": DEVICES, "quorum": 0.6, "rounds": 1, "group_size": 11, "deadline_s": 100.0}
                fleet = MaskedFleet(Bench(directory, prepared(), registry, run, **terms), clock, DEVICES, devices)
                devices, fleet.transcript, fleet.change = (
                    fleet.devices,
                    transcript,
                    changes[min(count, len(changes) - 1)],
                )
                fleet.come().wait(400.0)
            except Killed:
                kills += 1
                continue
            [record] = registry.rounds.records(run)
            break
    model = {name: array.tobytes() for name, array in load_checkpoint(directory)[0].tensors.items()}
    return model, record, kills, transcript


def assert_one_set_of_each(transcript: list[Any]) -> None:
    """Check that all coordinators sent a device the same roster, masking set and reported set."""
    sent: dict[tuple[str, type], set[Any]] = defaultdict(set)
    for device, body in transcript:
        if isinstance(body, Roster | Inbox | Unmask):
            sent[device, type(body)].add(body)
    assert {key: len(bodies) for key, bodies in sent.items() if len(bodies) > 1} == {}


@pytest.mark.medium
@pytest.mark.parametrize("every", [11, pytest.param(1, marks=pytest.mark.slow)])
def test_kill_before_any_write_changes_no_bit_of_the_model(tmp_path, clock, every):
    whole, record, _, transcript = play(tmp_path / "whole", clock, ())
    assert (record.outcome, record.reported) == ("aggregated", DEVICES - 1)
    assert_one_set_of_each(transcript)
    for fatal in itertools.count(1, every):
        model, found, kills, transcript = play(tmp_path / f"killed-{fatal}", clock, (fatal,))
        assert model == whole, f"killed before write {fatal}"
        assert (found.outcome, found.reported, found.num_examples) == ("aggregated", DEVICES - 1, record.num_examples)
        assert_one_set_of_each(transcript)
        if kills == 0:
            assert fatal > 60
            return


@pytest.mark.medium
@pytest.mark.parametrize("every", [31, pytest.param(1, marks=pytest.mark.slow)])
def test_kill_before_any_write_never_makes_a_second_roster_masking_set_or_reported_set(tmp_path, clock, every):
    """This also holds if the next process knows more devices than the killed process."""
    for fatal in itertools.count(1, every):
        changes = (lose_three, lambda device, answer: answer)
        _, _, kills, transcript = play(tmp_path / f"killed-{fatal}", clock, (fatal,), changes)
        assert_one_set_of_each(transcript)
        if kills == 0:
            return


def decline_for_good(device: str, answer: Any) -> Any:
    """Let one device decline for a reason that lasts; the uploads of the others are lost."""
    if device == LATE and isinstance(answer, Accept):
        return Decline(DeclineReason.PLAN_LIMIT)
    return None if isinstance(answer, Offer) else answer


def test_resumed_masked_round_needs_no_update_of_a_device_that_left_the_count(tmp_path, prepared, registry, clock):
    """The groups are drawn, so the next coordinator does not ask the device again."""
    terms = {**TERMS, "devices": 9, "quorum": 1.0, "group_size": 8}
    fleet = MaskedFleet(Bench(tmp_path, prepared, registry, **terms), clock, 9)
    fleet.change = decline_for_good
    fleet.come()
    again = MaskedFleet(fleet.bench.again(), clock, devices=fleet.devices).come().wait(100.0)
    [record] = registry.rounds.records(again.bench.engine.spec.run)
    assert (record.outcome, record.reported, record.needed) == ("aggregated", 8, 8), again.bench.lines
    assert record.decline_reasons == {"plan_limit": 1}


@pytest.mark.parametrize(("before", "after"), [(2, 0), (0, 2)])
def test_resumed_masked_round_measures_nothing_beside_the_work_whatever_independent_every_says(
    tmp_path, prepared, registry, clock, before, after
):
    """And it goes on with its groups, though the setting has changed."""
    terms = {**TERMS, "devices": 8, "quorum": 1.0, "rounds": 3, "independent_every": before}
    bench = Bench(tmp_path, prepared, registry, **terms)
    fleet = MaskedFleet(bench, clock, 8)
    fleet.change = lambda device, answer: (
        None if device == LATE and isinstance(answer, Offer) and bench.engine.last_round == 2 else answer
    )
    fleet.come()
    request = fleet.devices[LATE].request
    assert request is not None
    assert not request.measure_independent
    again = MaskedFleet(bench.again(independent_every=after), clock, devices=fleet.devices).come().wait(100.0)
    records = registry.rounds.records(again.bench.engine.spec.run)
    assert [(record.outcome, record.reported) for record in records] == [("aggregated", 8)] * 3, again.bench.lines


@pytest.mark.parametrize(
    ("step", "changes"),
    [
        ("roster", {"content": b"\xc1"}),
        ("shares", {"content": b"\xc1"}),
        ("shares", {"team": 7}),
        ("shares", {"device": "pi-99"}),
        ("masking", {"team": 7}),
    ],
)
def test_masked_round_whose_saved_steps_are_damaged_fails_and_the_run_goes_on(
    tmp_path, prepared, registry, clock, step, changes
):
    again = resumed_with_damage(tmp_path, prepared, registry, clock, step, changes)
    first, second, *_ = registry.rounds.records(again.bench.engine.spec.run)
    assert (first.round, first.outcome, first.failure) == (1, "failed", "groups_lost")
    assert (second.round, second.outcome) == (2, "aggregated"), again.bench.lines


def test_masked_round_whose_saved_terms_are_damaged_starts_again(tmp_path, prepared, registry, clock):
    again = resumed_with_damage(tmp_path, prepared, registry, clock, "terms", {"content": b"\xc1"})
    assert "round 1 was open without its masked terms; it starts again" in again.bench.lines
    first, *_ = registry.rounds.records(again.bench.engine.spec.run)
    assert (first.round, first.outcome) == (1, "aggregated"), again.bench.lines


def test_devices_that_accepted_before_a_kill_send_their_keys_again(tmp_path, prepared, registry, clock):
    """Acceptances are saved without keys. Here the last device answers the next coordinator before all others."""
    terms = {**TERMS, "devices": 10, "rounds": 1, "group_size": 10}
    fleet = MaskedFleet(Bench(tmp_path, prepared, registry, **terms), clock, 10)
    for name in fleet.devices:
        seen(registry, name, fleet="demo")
    fleet.change = lambda device, answer: None if device == "pi-00" else answer
    fleet.come()
    fleet.bench.performer.counters.flush()
    again = MaskedFleet(fleet.bench.again(), clock, devices=fleet.devices).come().wait(900.0)
    [record] = registry.rounds.records(again.bench.engine.spec.run)
    assert (record.outcome, record.reported) == ("aggregated", 10), again.bench.lines
    again.bench.performer.counters.flush()
    assert [device.accepted for device in registry.devices()] == [1] * 10


def test_masked_round_repeated_after_a_damaged_checkpoint_has_a_moved_base_and_counts(
    tmp_path, prepared, registry, clock
):
    """A device offers one masked update from a base, so the repeated round begins with another one."""
    terms = {**TERMS, "devices": 9, "rounds": 1, "group_size": 9}
    fleet = MaskedFleet(Bench(tmp_path, prepared, registry, **terms), clock, 9).come()
    newest = checkpoint_names(fleet.bench)[-1]
    fleet.bench.blobs.put(newest, b"damaged")
    again = MaskedFleet(fleet.bench.again(rounds=2), clock, devices=fleet.devices).come().wait(900.0)
    records = registry.rounds.records(again.bench.engine.spec.run)
    assert [(one.round, one.outcome) for one in records] == [(1, "aggregated"), (2, "aggregated")], again.bench.lines


def test_masked_round_repeated_from_the_same_base_fails_by_base_spent_and_the_next_one_counts(
    tmp_path, prepared, registry, clock
):
    """A restored backup of the whole state may repeat a round as it was; the rule of the devices costs it that round alone."""
    terms = {**TERMS, "devices": 9, "rounds": 1, "group_size": 9}
    fleet = MaskedFleet(Bench(tmp_path, prepared, registry, **terms), clock, 9).come()
    fleet.bench.blobs.put(checkpoint_names(fleet.bench)[-1], b"damaged")
    again = MaskedFleet(fleet.bench.again(entropy=1, rounds=2), clock, devices=fleet.devices).come().wait(900.0)
    first, second, *_ = registry.rounds.records(again.bench.engine.spec.run)
    assert (first.outcome, first.decline_reasons) == ("failed", {"base_spent": 9}), again.bench.lines
    assert (second.round, second.outcome) == (2, "aggregated"), again.bench.lines


def resumed_with_damage(
    directory: Path, prepared: Any, registry: Registry, clock: Clock, step: str, changes: dict[str, Any]
) -> MaskedFleet:
    """Kill a coordinator before the first upload, change the first saved row of a step, and run the next coordinator."""
    terms = {**TERMS, "devices": 9, "rounds": 3, "group_size": 9}
    fleet = MaskedFleet(Bench(directory, prepared, registry, **terms), clock, 9)
    fleet.change = lambda device, answer: None if isinstance(answer, Offer) else answer
    fleet.come()

    def damage(db: Any) -> None:
        of_round = (masking.c.step == step) & (masking.c.round != REGISTER)
        number = db.scalar(select(masking.c.number).where(of_round).order_by(masking.c.number))
        assert number is not None
        db.execute(update(masking).where(masking.c.number == number).values(**changes))

    registry.rounds._change(damage)
    return MaskedFleet(fleet.bench.again(), clock, devices=fleet.devices).come().wait(900.0)
