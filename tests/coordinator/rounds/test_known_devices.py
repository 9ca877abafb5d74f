"""The known devices of a run: present, eligible and starting devices, and the last wills that count."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fedpatch.coordinator.aggregation.privacy_policy import PrivacyPolicy
from fedpatch.coordinator.cohort.quorum import Standing
from fedpatch.coordinator.rounds.device_needs import CANNOT_MASK
from fedpatch.coordinator.rounds.known_devices import Fleet
from fedpatch.coordinator.rounds.missing_devices import left_out_words, missing_text, missing_words
from fedpatch.coordinator.rounds.round_phases import STARTING_S
from fedpatch.coordinator.rounds.round_record import RoundRecord
from fedpatch.coordinator.rounds.run_effects import EndRun, PublishModel
from fedpatch.coordinator.rounds.run_events import DevicePresence, TimePassed
from fedpatch.coordinator.rounds.secure_policy import SecurePolicy
from fedpatch.shared.wire.features import DEVICE_FEATURES, MASKED_FEATURE, MASKED_PRIVACY_FEATURE, PRIVACY_FEATURE
from fedpatch.shared.wire.masking_messages import ThresholdRule
from fedpatch.shared.wire.messages import Decline, TaskCapability, TrainPlan
from fedpatch.shared.wire.reason_codes import Condition, DeclineReason
from tests.coordinator.engines import engine
from tests.support.specs import SCHEMA, TASK, TASKS, gone, there

OTHER = TaskCapability("mnist", SCHEMA, 5)


def fleet() -> Fleet:
    """Return a fleet with one device that has the task."""
    known = Fleet(TASK)
    assert known.update("a", there())
    return known


def test_devices_online_with_the_task_are_eligible():
    known = fleet()
    known.update("c", there())
    known.update("b", there(tasks=(OTHER, *TASKS)))
    known.update("d", there(tasks=(OTHER,)))
    known.update("e", gone())
    assert known.eligible() == ["a", "b", "c"]


def test_last_will_counts_for_its_own_connection_only():
    known = fleet()
    assert known.update("a", gone())
    assert known.eligible() == []
    assert known.update("a", there("b2"))
    assert not known.update("a", gone("b1"))
    assert known.eligible() == ["a"]
    assert (known.boot("a"), known.boot("stranger")) == ("b2", "")


def test_bar_lasts_through_reconnections():
    known = fleet()
    known.bar("a", "schema_mismatch")
    assert known.eligible() == []
    known.update("a", there())
    known.update("a", gone())
    known.update("a", there())
    assert known.eligible() == []


def test_bar_ends_with_a_restart_or_other_tasks():
    known = fleet()
    known.bar("a", "schema_mismatch")
    known.update("a", there("b2"))
    assert known.eligible() == ["a"]
    known.bar("a", "schema_mismatch")
    known.update("a", there("b2", tasks=(OTHER, *TASKS)))
    assert known.eligible() == ["a"]


def test_notes_about_unknown_devices_are_ignored():
    known = fleet()
    known.bar("stranger", "schema_mismatch")
    known.rest("stranger", "not_charging", 60.0)
    known.note_version("stranger", "0" * 64)
    assert set(known.members) == {"a"}
    assert (known.version("stranger"), known.next_pause_end()) == ("", None)


def test_unwilling_device_is_not_eligible_until_its_presence_changes():
    known = fleet()
    known.update("a", replace(there(), unwilling=Condition.NOT_CHARGING))
    assert known.eligible() == []
    assert known.unwilling() == {"not_charging": 1}
    known.update("a", there())
    assert known.eligible() == ["a"]
    assert not known.unwilling()


def test_resting_device_is_not_eligible_before_its_time():
    known = fleet()
    known.rest("a", "quiet_hours", until=100.0)
    known.update("a", there())
    known.update("a", gone())
    known.update("a", there())
    known.wake(99.0)
    assert known.eligible() == []
    assert known.next_pause_end() == 100.0
    known.wake(100.0)
    assert known.eligible() == ["a"]
    assert known.next_pause_end() is None


def test_later_rest_replaces_the_earlier():
    known = fleet()
    known.rest("a", "too_hot", until=10.0)
    known.rest("a", "too_hot", until=20.0)
    known.wake(15.0)
    assert known.eligible() == []
    known.wake(20.0)
    assert known.eligible() == ["a"]


def test_changed_presence_ends_a_rest():
    known = fleet()
    known.update("a", replace(there(), unwilling=Condition.NOT_CHARGING))
    known.rest("a", "not_charging", until=100.0)
    known.update("a", there())
    assert known.eligible() == ["a"]


def test_offline_or_barred_devices_are_not_counted_as_unwilling():
    known = fleet()
    known.update("a", replace(there(), unwilling=Condition.METERED))
    known.update("b", replace(there(), unwilling=Condition.METERED))
    known.update("c", replace(there(), unwilling=Condition.METERED))
    known.update("b", gone())
    known.bar("c", "schema_mismatch")
    assert known.unwilling() == {"metered": 1}


class TestWhoIsMissing:
    def test_missing_text_names_held_and_starting_devices(self):
        known = fleet()
        known.hold({"a": "drained"})
        known.update("b", replace(there(), tasks=()))
        assert missing_text(known, 2, 5.0) == (
            "0 of 2 devices came within 5 s, and 1 more are still starting 300 s later; see the logs of their agents, "
            "start fewer of them on one machine, or give them longer with --wait-s; "
            "1 of those that are there are held back, as a: drained"
        )

    @pytest.mark.parametrize(
        ("last_run", "of_fleet"), [("bc", ["c"]), ("", ["c", "x"])], ids=["later run", "first run"]
    )
    def test_missing_text_names_held_offline_devices_of_the_fleet(self, last_run, of_fleet):
        """Only the last run tells which held devices belong to the fleet."""
        known = fleet()
        known.count.expect(last_run)
        known.hold(dict.fromkeys("xc", "drained"))
        words = f"{len(of_fleet)} of those that are not there are held back, as c: drained"
        assert words in missing_text(known, 2, 5.0)

    def test_missing_text_counts_no_offline_device_as_present(self):
        known = fleet()
        known.update("b", there())
        for device in "ab":
            known.declined(device, Decline(DeclineReason.PRIVATE_POLICY, "not mine"), 0.0)
        known.update("a", gone())
        text = missing_text(known, 2, 5.0)
        assert "1 of those that are there cannot take part, as b: not mine. 1 declined with private_policy" in text

    @pytest.mark.parametrize(
        ("most", "words"),
        [
            (4, "b (starting), c (offline), d (not_charging), e (without the task)"),
            (2, "b (starting), c (offline), 2 more"),
        ],
    )
    def test_missing_words_name_the_first_devices_with_their_reasons(self, most, words):
        known = fleet()
        for device in "edcb":
            known.update(device, there())
        known.update("b", there("b2", tasks=()))
        known.update("c", gone())
        known.update("d", replace(there(), unwilling=Condition.NOT_CHARGING))
        known.update("e", there(tasks=(OTHER,)))
        assert known.missing() == list("bcde")
        assert missing_words(known, most) == words


def test_registered_examples_are_those_of_the_task():
    known = fleet()
    known.update("b", there(tasks=(OTHER, *TASKS)))
    known.update("c", there(tasks=(OTHER,)))
    assert [known.registered(device) for device in "abcd"] == [10, 10, None, None]


PASSING = {DeclineReason.UNWILLING, DeclineReason.STORAGE, DeclineReason.BASE_SPENT}


@pytest.mark.parametrize("reason", [reason for reason in DeclineReason if reason not in PASSING], ids=str)
def test_lasting_decline_bars_the_device(reason):
    known = fleet()
    known.declined("a", Decline(reason, "why"), 0.0)
    known.wake(1e9)
    assert known.eligible() == []


@pytest.mark.parametrize("reason", sorted(PASSING), ids=str)
def test_passing_decline_rests_the_device(reason):
    known = fleet()
    known.declined("a", Decline(reason, "why", retry_after_s=300.0), 0.0)
    known.wake(299.0)
    assert known.eligible() == []
    known.wake(301.0)
    assert known.eligible() == ["a"]


def test_unwilling_decline_without_a_time_bars_nobody():
    known = fleet()
    known.declined("a", Decline(DeclineReason.UNWILLING, "on battery"), 0.0)
    assert known.eligible() == ["a"]


OTHER_TASKS = (TaskCapability("faces", "11" * 32, 10), TaskCapability("gaits", "22" * 32, 10))


def starting(boot: str = "b1"):
    """Return the presence of a device that is loading its task."""
    return there(boot, tasks=())


class TestFleet:
    def test_device_without_tasks_is_starting_and_cannot_be_asked(self):
        fleet = Fleet(TASK)
        fleet.update("a", fleet.relevant(starting()))
        assert (fleet.starting, fleet.is_starting("a"), fleet.present, fleet.eligible()) == (1, True, 0, [])
        fleet.update("a", fleet.relevant(there()))
        assert (fleet.starting, fleet.is_starting("a"), fleet.present) == (0, False, 1)

    def test_device_with_other_tasks_is_not_starting(self):
        fleet = Fleet(TASK)
        state = fleet.relevant(there(tasks=OTHER_TASKS))
        fleet.update("a", state)
        assert (fleet.starting, fleet.present, state.tasks) == (0, 0, OTHER_TASKS[:1])

    def test_offline_or_held_device_is_not_starting(self):
        fleet = Fleet(TASK)
        for device in "ab":
            fleet.update(device, starting())
        fleet.update("a", gone())
        fleet.hold({"b": "drained"})
        assert fleet.starting == 0

    def test_evicted_device_does_not_count(self):
        fleet = Fleet(TASK, most=1)
        fleet.update("a", there())
        fleet.update("a", gone())
        fleet.update("b", there())
        assert (fleet.evicted, fleet.missing()) == (["a"], [])
        assert fleet.count.standing == Standing(1)

    def test_evicted_device_is_not_starting(self):
        fleet = Fleet(TASK, most=1)
        fleet.update("a", starting())
        fleet.update("a", gone())
        fleet.update("b", starting())
        assert (fleet.starting, fleet.evicted) == (1, ["a"])


class TestWaiting:
    def test_run_waits_longer_while_devices_are_starting(self):
        made = engine(devices=10, wait_s=60.0)
        for number in range(10):
            made.handle(DevicePresence(f"pi-{number}", starting()), 30.0)
        assert made.next_deadline() == 60.0 + STARTING_S
        assert made.handle(TimePassed(), 61.0) == []
        for number in range(9):
            assert made.handle(DevicePresence(f"pi-{number}", there()), 200.0 + number) == []
        assert made.handle(DevicePresence("pi-9", there()), 300.0) == [PublishModel(1)]

    def test_run_that_ends_without_devices_counts_those_that_are_starting(self):
        made = engine(devices=3, wait_s=60.0)
        made.handle(DevicePresence("a", there()), 1.0)
        made.handle(DevicePresence("b", starting()), 1.0)
        assert made.handle(TimePassed(), 60.0 + STARTING_S - 1) == []
        [finish] = made.handle(TimePassed(), 60.0 + STARTING_S)
        assert isinstance(finish, EndRun)
        assert "1 of 3 devices came within 60 s, and 1 more are still starting 300 s later" in finish.detail
        assert "--wait-s" in finish.detail

    def test_run_ends_when_too_few_devices_came_and_none_is_starting(self):
        made = engine(devices=2, wait_s=60.0)
        made.handle(DevicePresence("a", starting()), 1.0)
        assert made.handle(TimePassed(), 70.0) == []
        [finish] = made.handle(DevicePresence("a", there()), 80.0)
        assert isinstance(finish, EndRun)

    def test_resumed_run_waits_for_devices_that_are_starting(self):
        made = engine([RoundRecord(1, "aggregated", 2, 2, 0, 2)], epoch=2, devices=2, wait_s=60.0)
        made.handle(DevicePresence("a", there()), 1.0)
        made.handle(DevicePresence("b", starting()), 1.0)
        assert made.handle(TimePassed(), 100.0) == []
        assert made.handle(DevicePresence("b", there()), 120.0) == [PublishModel(2)]


def test_device_that_cannot_mask_is_not_asked_in_a_masked_run_and_leaves_the_count():
    fleet = Fleet(TASK, needs={MASKED_FEATURE: CANNOT_MASK})
    fleet.update("a", there())
    fleet.update("b", replace(there(), features=(MASKED_FEATURE,)))
    assert (fleet.eligible(), fleet.left) == (["b"], {"a"})
    assert "a: cannot mask" in missing_text(fleet, 2, 60.0)


def test_devices_left_out_of_the_run_are_named_and_offline_and_declining_ones_are_not():
    fleet = Fleet(TASK, needs={MASKED_FEATURE: "cannot mask"})
    for device in "abcdefg":
        fleet.update(device, there())
    fleet.update("a", replace(there(), online=False))
    fleet.update("h", replace(there(), features=(MASKED_FEATURE,)))
    fleet.declined("h", Decline(DeclineReason.PRIVATE_POLICY), 0.0)
    assert left_out_words(fleet, 2) == "b (cannot mask), c (cannot mask), 4 more"


def test_device_that_can_mask_after_all_is_asked():
    fleet = Fleet(TASK, needs={MASKED_FEATURE: CANNOT_MASK})
    fleet.update("a", there())
    fleet.update("a", replace(there(), features=(MASKED_FEATURE,)))
    assert (fleet.eligible(), fleet.left) == (["a"], set())


@pytest.mark.parametrize("masked", [False, True])
def test_device_without_the_noise_of_masked_rounds_is_asked_in_other_private_rounds_only(masked):
    secure = SecurePolicy(9, 2, ThresholdRule.HALF, 8, 1.0, 600, 5.0, lambda: 0.0) if masked else None
    fleet = engine(privacy=PrivacyPolicy(1.0, 0.5), secure=secure).fleet
    features = (PRIVACY_FEATURE, MASKED_FEATURE)
    fleet.update("old", replace(there(), features=features))
    fleet.update("new", replace(there(), features=(*features, MASKED_PRIVACY_FEATURE)))
    assert fleet.eligible() == (["new"] if masked else ["new", "old"])
    assert ("does not know dp" in fleet.members["old"].barred) == masked


def test_device_that_does_not_know_a_term_of_the_plan_is_not_asked():
    fleet = engine(plan=TrainPlan("sgd", 0.1, 20, prox=0.1)).fleet
    fleet.update("old", replace(there(), features=DEVICE_FEATURES[:4]))
    fleet.update("new", replace(there(), features=DEVICE_FEATURES))
    assert fleet.eligible() == ["new"]
    assert "old: its version does not know prox" in missing_text(fleet, 2, 60.0)


def test_device_that_does_not_know_control_variates_is_not_asked():
    fleet = engine(plan=TrainPlan("sgd", 0.1, 20, moments=("control",))).fleet
    fleet.update("old", replace(there(), features=DEVICE_FEATURES[:-1]))
    fleet.update("new", replace(there(), features=DEVICE_FEATURES))
    assert fleet.eligible() == ["new"]
    assert "old: its version does not know control variates" in missing_text(fleet, 2, 60.0)


def test_masking_is_kept_of_a_presence():
    state = replace(there(), features=(MASKED_FEATURE, "unknown"))
    assert Fleet(TASK).relevant(state).features == (MASKED_FEATURE,)


@pytest.mark.parametrize(("members", "relay"), [(1, False), (2, True)])
def test_device_that_speaks_for_two_or_more_may_be_a_relay(members, relay):
    known = Fleet(TASK, max_members=2)
    known.update("a", there(tasks=(TaskCapability(TASK, SCHEMA, 10, members=members),)))
    assert (known.members_of("a"), known.may_be_relay("a")) == (members, relay)


@pytest.mark.parametrize("max_members", [1, 2])
def test_unknown_device_may_be_a_relay_where_the_run_asks_relays(max_members):
    assert Fleet(TASK, max_members=max_members).may_be_relay("stranger") == (max_members > 1)


def test_only_the_encoding_that_the_run_uses_is_kept_of_a_presence():
    fleet = Fleet(TASK, encoding="fp16")
    assert fleet.relevant(there()).encodings == ("fp16",)
    assert fleet.relevant(replace(there(), encodings=("fp32",))).encodings == ("fp32",)


@pytest.mark.parametrize(("how", "standing"), [("held", Standing(3)), ("barred", Standing(4, left=1))])
def test_device_that_is_held_or_barred_after_a_vain_wait_counts_no_more_as_missing(how, standing):
    fleet = Fleet(TASK, least=4)
    for device in "abcd":
        fleet.update(device, there())
    fleet.update("d", gone())
    fleet.count.give_up()
    assert fleet.count.standing == Standing(4, missing=1)
    if how == "held":
        fleet.hold({"d": "drained"})
    else:
        fleet.bar("d", "schema_mismatch")
    assert fleet.count.standing == standing


def test_devices_that_come_after_a_vain_wait_are_missing_no_more():
    fleet = Fleet(TASK, least=5)
    for device in "ab":
        fleet.update(device, there())
    fleet.count.give_up()
    assert fleet.count.standing.missing == 3
    for device in "cd":
        fleet.update(device, there())
    assert fleet.count.standing.missing == 1
