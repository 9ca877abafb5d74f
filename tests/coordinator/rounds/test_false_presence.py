"""Devices whose presence is not true: two agents with one id, and devices that are shown online and never answer."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import example, given
from hypothesis import strategies as st

from fedpatch.coordinator.observability.status_message import status_message
from fedpatch.coordinator.rounds.failed_rounds import RETRY_S
from fedpatch.coordinator.rounds.false_presence import STARTS, WINDOW_S, FalsePresence
from fedpatch.coordinator.rounds.participant_transitions import Phase
from fedpatch.coordinator.rounds.run_effects import Effect
from fedpatch.coordinator.rounds.run_events import DevicePresence, ModelPublished, TimePassed
from fedpatch.shared.wire.features import SHARED_ID_FEATURE
from tests.coordinator.engines import end_of, engine, join
from tests.support.specs import gone, model, there


@example([0.0, 1.0, 2.0, WINDOW_S])
@example([0.0, 500.0, 600.0, 610.0, 620.0])
@given(st.lists(st.floats(0.0, 1000.0), max_size=12).map(sorted))
def test_id_is_shared_only_after_many_starts_in_a_short_time(times: list[float]):
    presence = FalsePresence()
    for at in times:
        presence.started("pi", at)
    close = any(late - early <= WINDOW_S for early, late in zip(times, times[STARTS - 1 :], strict=False))
    assert ("pi" in presence.shared) == close


def test_starts_of_a_thousand_ids_in_turn_are_all_counted():
    presence, ids = FalsePresence(), [f"pi-{number}" for number in range(1000)]
    for at in range(STARTS):
        for device in ids:
            presence.started(device, float(at))
    assert presence.shared == set(ids)


def test_words_name_the_first_shared_ids_and_count_the_others():
    presence = FalsePresence()
    for device in "gfedcba":
        for at in range(STARTS):
            presence.started(device, float(at))
    [words] = presence.words()
    assert "the id a, b, c, d, e and 2 more " in words


def test_run_that_waits_in_vain_names_the_id_that_agents_share():
    made = engine(devices=2, wait_s=50.0)
    for number in range(STARTS + 1):
        join(made, "a", float(number), boot=f"b{number}")
    end = end_of(made.handle(TimePassed(), 60.0))
    assert "1 of 2 devices came" in end.detail
    assert "several agents use the id a " in end.detail and "its own --device-id" in end.detail
    assert "are the agents running" not in end.detail


def test_run_that_waits_in_vain_names_an_id_whose_agent_says_that_it_is_shared():
    """Agents that know of each other connect once a minute only."""
    made = engine(devices=2, wait_s=50.0)
    state = replace(there(), features=(*there().features, SHARED_ID_FEATURE))
    made.handle(DevicePresence("a", state), 1.0)
    assert "several agents use the id a " in end_of(made.handle(TimePassed(), 60.0)).detail


def test_status_of_a_run_that_waits_names_the_id_that_agents_share():
    """`fedpatch watch` and the console show it while the run waits."""
    made = engine(devices=2, wait_s=50.0)
    for number in range(STARTS + 1):
        join(made, "a", float(number), boot=f"b{number}")
    assert status_message(made, 6.0).status.missing.startswith("several agents use the id a ")


def test_id_is_shared_until_its_agent_says_otherwise():
    made = engine(devices=2, wait_s=50.0)
    made.handle(DevicePresence("a", replace(there(), features=(SHARED_ID_FEATURE,))), 1.0)
    made.handle(DevicePresence("a", gone()), 2.0)
    assert made.fleet.false_presence.shared == {"a"}
    join(made, "a", 3.0)
    assert made.fleet.false_presence.shared == set()


def test_device_that_restarts_now_and_then_is_not_called_shared():
    made = engine(devices=2, wait_s=50.0)
    for number in range(STARTS + 1):
        join(made, "a", number * WINDOW_S / 2, boot=f"b{number}")
    assert made.fleet.false_presence.words() == []


def test_run_that_fails_names_the_devices_that_are_shown_online_without_any_answer():
    made = engine(devices=2, max_failed_rounds=2, rounds=9, recruit_deadline_s=RETRY_S)
    join(made, "ab")
    effects: list[Effect] = []
    for turn in range(50):
        if made.open is not None and made.open.round.phase is Phase.SELECTING:
            made.handle(ModelPublished(model()), turn * RETRY_S)
        effects += made.handle(TimePassed(), turn * RETRY_S)
    detail = end_of(effects).detail
    assert "rounds in a row failed" in detail and "shown online without any answer: a, b; " in detail


def test_answer_ends_the_silence_of_a_device():
    presence = FalsePresence()
    presence.round_over({"a", "b"}, ())
    presence.round_over({"b"}, {"a"})
    assert presence.mute == {"b": 2}
    assert presence.words(3) == [] and len(presence.words(2)) == 1
