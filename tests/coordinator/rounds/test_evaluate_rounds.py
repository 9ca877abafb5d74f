"""Evaluate rounds in the engine: their start, invited devices, counted answers, and unchanged state."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from fedpatch.coordinator.buffered.staleness_weight import CarryPolicy
from fedpatch.coordinator.rounds.round_record import RoundRecord
from fedpatch.coordinator.rounds.run_effects import AggregateUpdates, Effect, SaveJournal, SaveRecord, StoreUpdate
from fedpatch.coordinator.rounds.run_engine import Engine
from fedpatch.coordinator.rounds.run_events import (
    Aggregated,
    DevicePresence,
    Interrupted,
    ModelPublished,
    TimePassed,
)
from fedpatch.coordinator.rounds.termination import Stopped
from fedpatch.shared.wire.features import EVALUATE_FEATURE, INDEPENDENT_FEATURE
from fedpatch.shared.wire.messages import Accept, Cancel, Evaluation, Failed, Offer, Progress, WorkRequest
from fedpatch.shared.wire.reason_codes import FailReason, JobPhase
from tests.coordinator.engines import BLOB, current, end_of, engine, kinds, report_all, send
from tests.support.specs import model, sent, there, update

KNOWS = (EVALUATE_FEATURE, INDEPENDENT_FEATURE)


def fleet(devices: str, old: str = "", every: int = 2, **changes: Any) -> Engine:
    """Return an engine with devices that can measure, and `old` devices that cannot."""
    made = engine(devices=len(devices + old), evaluate_every=every, **changes)
    for device in devices + old:
        made.handle(DevicePresence(device, replace(there("b1"), features=() if device in old else KNOWS)), 0.0)
    return made


def train(made: Engine, devices: str, now: float) -> None:
    """Complete a training round with those of the devices that are asked."""
    invited = dict(asked(made.handle(ModelPublished(model()), now)))
    report_all(made, [device for device in devices if device in invited], now)
    made.handle(Aggregated(), now)


def until_evaluation(devices: str, **changes: Any) -> Engine:
    """Return an engine whose third round, an evaluate round, has asked these devices."""
    made = fleet(devices, **changes)
    train(made, devices, 1.0)
    train(made, devices, 2.0)
    return made


def asked(effects: list[Effect]) -> list[tuple[str, bool]]:
    """Return the devices that get a work request, sorted, each with a flag for a request that only measures."""
    return sorted((device, body.evaluates) for device, body in sent(effects) if isinstance(body, WorkRequest))


def measured(value: float | None = 0.5, base: str = "") -> Evaluation:
    """Return the answer of a device."""
    return Evaluation(base or model().digest, value, 20, 0.25)


def last(made: Engine) -> RoundRecord:
    """Return the last record."""
    return made.records[-1]


def test_after_every_n_training_rounds_all_devices_are_asked_to_measure_once():
    made = until_evaluation("abc", participation=0.5, rounds=4, quorum=1.0)
    assert asked(made.handle(ModelPublished(model()), 3.0)) == [("a", True), ("b", True), ("c", True)]


def test_training_requests_of_the_same_run_do_not_ask_to_measure():
    made = fleet("ab", every=1)
    assert (made.evaluates_next, made.required_devices()) == (False, 2)
    assert asked(made.handle(ModelPublished(model()), 0.0)) == [("a", False), ("b", False)]


def test_record_has_mean_tenth_and_worst_of_all_devices_that_answered():
    made = until_evaluation("abc")
    effects = made.handle(ModelPublished(model()), 3.0)
    for device, value in zip("abc", (0.5, 0.7, None), strict=True):
        effects = send(made, device, measured(value), 4.0, number=3)
    record = last(made)
    assert SaveRecord(record) in effects
    assert (record.outcome, record.reported, record.measured) == ("evaluated", 3, 2)
    assert record.user_accuracy == pytest.approx(0.6)
    assert record.user_accuracy_min == 0.5
    assert (record.user_accuracies, record.train_loss) == ({"a": 0.5, "b": 0.7}, None)


def test_an_evaluate_round_writes_no_journal_and_takes_no_update():
    made = until_evaluation("ab")
    seen = kinds(made.handle(ModelPublished(model()), 3.0))
    seen += kinds(send(made, "a", Offer(update(BLOB)), 4.0, number=3))
    seen += kinds(send(made, "a", measured(), 4.0, number=3)) + kinds(send(made, "b", measured(), 4.0, number=3))
    assert not {SaveJournal, StoreUpdate, AggregateUpdates} & set(seen)


def test_training_goes_on_after_it_and_the_run_ends_after_its_training_rounds_and_a_last_evaluation():
    made = until_evaluation("ab", rounds=4)
    for first in (3, 6):
        made.handle(ModelPublished(model()), first)
        for device in "ab":
            send(made, device, measured(), first, number=first)
        if first == 3:
            assert made.stopped is None
            train(made, "ab", 4.0)
            train(made, "ab", 5.0)
    assert [one.outcome for one in made.records] == [*["aggregated"] * 2, "evaluated"] * 2
    assert made.stopped is Stopped.MAX_ROUNDS
    assert made.rounds_in_all == 6


def test_run_without_a_successful_round_names_its_last_training_round_and_not_the_evaluation_after_it():
    made = fleet("a", every=1, rounds=1)
    made.handle(ModelPublished(model()), 1.0)
    send(made, "a", Failed(FailReason.TRAINING), 1.0, 1)
    made.handle(ModelPublished(model()), 2.0)
    end = end_of(send(made, "a", measured(), 2.0, 2))
    assert [record.outcome for record in made.records] == ["failed", "evaluated"]
    why = "the last one: too_few_accepted, with 0 of the 1 updates needed"
    assert end.detail == f"no round succeeded, so the model is unchanged; {why}"


@pytest.mark.parametrize(
    ("evaluate_every", "independent_every", "measuring"), [(1, 2, [2, 4]), (2, 3, [3]), (0, 2, [2, 4])]
)
def test_learning_alone_is_measured_every_n_training_rounds_also_with_evaluate_rounds_between_them(
    evaluate_every, independent_every, measuring
):
    """Evaluate rounds have numbers too. With every second number, all multiples of two are evaluate rounds."""
    made = fleet("ab", every=evaluate_every, independent_every=independent_every, rounds=5)
    found, trained = [], 0
    while trained < 5:
        effects = made.handle(ModelPublished(model()), float(made.last_round))
        if made.evaluates_next:
            for device in "ab":
                send(made, device, measured(), float(made.last_round), number=made.last_round)
            continue
        trained += 1
        requests = [body for _, body in sent(effects) if isinstance(body, WorkRequest)]
        found += [trained] if all(request.measure_independent for request in requests) else []
        report_all(made, "ab", float(made.last_round))
        made.handle(Aggregated(), float(made.last_round))
    assert found == measuring


def test_devices_without_the_feature_train_and_are_not_asked_to_measure():
    made = fleet("a", old="z")
    train(made, "az", 1.0)
    train(made, "az", 2.0)
    assert [device for device, _ in sent(made.handle(ModelPublished(model()), 3.0))] == ["a"]


def test_without_a_device_that_can_measure_the_evaluation_fails_and_training_goes_on():
    made = fleet("", old="yz")
    train(made, "yz", 1.0)
    train(made, "yz", 2.0)
    made.handle(ModelPublished(model()), 3.0)
    assert (last(made).outcome, last(made).outcome_words) == (
        "evaluation_failed",
        "evaluation failed (too_few_accepted)",
    )
    assert current(made).round.number == 4
    assert not current(made).evaluates


def test_slow_devices_are_waited_for_until_the_deadline_and_one_answer_is_enough():
    made = until_evaluation("ab", quorum=1.0, grace_s=0.0)
    made.handle(ModelPublished(model()), 3.0)
    send(made, "b", Accept(10), 3.0, number=3)
    send(made, "a", measured(), 4.0, number=3)
    deadline_s = current(made).round.policy.deadline_s
    send(made, "b", Progress(JobPhase.TRAINING, 0, 1), 2.0 + deadline_s, number=3)
    made.handle(TimePassed(), 3.0 + deadline_s - 1)
    assert current(made).round.number == 3
    made.handle(TimePassed(), 3.0 + deadline_s + 1)
    assert (last(made).outcome, last(made).reported, last(made).late) == ("evaluated", 1, 1)


def test_slow_device_of_an_evaluate_round_is_cancelled_where_training_rounds_carry_work():
    made = until_evaluation("ab", quorum_updates=2, carries=True, carry=CarryPolicy(2, 0.5), upload_slots=9)
    made.handle(ModelPublished(model(), version=2), 3.0)
    send(made, "b", Accept(10), 3.0, number=3)
    send(made, "a", measured(), 4.0, number=3)
    send(made, "b", Progress(JobPhase.TRAINING, 0, 1), 2.0 + current(made).round.policy.deadline_s, number=3)
    effects = made.handle(TimePassed(), 1e4)
    assert (last(made).outcome, made.carried.works) == ("evaluated", {})
    assert ("b", Cancel("late")) in sent(effects)


@pytest.mark.parametrize("answer", [measured(base="ab" * 32), measured(7.0), Failed(FailReason.TRAINING)])
def test_a_measure_of_another_model_or_beyond_the_metric_does_not_count(answer):
    made = until_evaluation("ab")
    made.handle(ModelPublished(model()), 3.0)
    send(made, "b", answer, 4.0, number=3)
    send(made, "a", measured(), 4.0, number=3)
    made.handle(TimePassed(), 1e4)
    assert (last(made).outcome, last(made).user_accuracies) == ("evaluated", {"a": 0.5})


def test_an_evaluation_in_a_training_round_is_ignored():
    made = fleet("ab")
    made.handle(ModelPublished(model()), 0.0)
    assert send(made, "a", measured(), 1.0) == []
    assert not current(made).reports


def test_a_device_that_misses_an_evaluation_is_asked_to_train_as_before():
    made = until_evaluation("abc", quorum=0.5)
    made.handle(ModelPublished(model()), 3.0)
    send(made, "a", measured(), 4.0, number=3)
    made.handle(TimePassed(), 1e4)
    assert not last(made).absent
    assert asked(made.handle(ModelPublished(model()), 1e4)) == [(device, False) for device in "abc"]


def test_an_engine_of_a_later_process_begins_the_evaluate_round_anew():
    made = until_evaluation("ab")
    made.handle(ModelPublished(model()), 3.0)
    send(made, "a", measured(), 4.0, number=3)
    made.handle(Interrupted(), 5.0)
    again = fleet("ab", records=made.records)
    assert asked(again.handle(ModelPublished(model()), 6.0)) == [("a", True), ("b", True)]
    assert current(again).round.number == 3


def test_a_run_that_only_evaluates_stops_after_one_round():
    made = engine(devices=1, evaluates_only=True)
    made.handle(DevicePresence("a", replace(there("b1"), features=KNOWS)), 0.0)
    made.handle(ModelPublished(model()), 0.0)
    end = end_of(send(made, "a", measured(), 1.0))
    assert (made.stopped, end.detail) == (Stopped.MAX_ROUNDS, "")
    assert last(made).outcome == "evaluated"
