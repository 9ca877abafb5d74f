"""Devices that miss rounds are invited less and less often, and no round depends on them."""

from __future__ import annotations

from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpatch.coordinator.cohort.quorum import Standing
from fedpatch.coordinator.cohort.selection import Selection, draw
from fedpatch.coordinator.rounds.false_presence import MUTE_ROUNDS
from fedpatch.coordinator.rounds.missed_rounds import LONGEST_PERIOD, MAX_ABSENT, PROBATION, Absences, period_of
from fedpatch.coordinator.rounds.participant_transitions import State
from fedpatch.coordinator.rounds.round_record import RoundRecord
from fedpatch.coordinator.rounds.run_engine import Engine
from fedpatch.coordinator.rounds.run_events import (
    Aggregated,
    ChunkReceived,
    DevicePresence,
    DevicesRevoked,
    ModelPublished,
    TimePassed,
    UpdateRejected,
    UpdateStored,
)
from fedpatch.shared.wire.chunks import cut
from fedpatch.shared.wire.messages import Accept, Decline, Failed, Offer, Progress
from fedpatch.shared.wire.reason_codes import DeclineReason, FailReason, JobPhase, RefuseReason
from fedpatch.simulator.experiment.client_selection import select
from tests.coordinator.engines import (
    BLOB,
    DIGEST,
    accept,
    asking,
    current,
    engine,
    join,
    leave,
    report_all,
    report_of,
    send,
)
from tests.support.specs import gone, model, report, there, update


def drawn(absences: Absences, devices: str, number: int, participation: float = 1.0) -> Selection:
    draw = partial(_draw, number=number, participation=participation)
    standing = Standing(len(devices), missing=len(absences.missed.keys() & set(devices)))
    return absences.choose(list(devices), draw, number, all_count=standing.all_count)


def _draw(devices, number, participation):
    return select(devices, participation, 1.0, 1, 7, number)


def after_failure_of_d() -> Engine:
    """Return a run whose first round failed since d failed in it with a reason; round 2 is open."""
    made = asking("abcd", rounds=40)
    accept(made, "abc", 0.5)
    send(made, "d", Failed(FailReason.TRAINING), 0.5)
    assert (made.records[-1].outcome, made.records[-1].absent) == ("failed", {"d": 1})
    made.handle(TimePassed(), 10.0)
    made.handle(ModelPublished(model()), 10.0)
    return made


class TestAbsences:
    def test_nobody_absent_the_draw_is_unchanged(self):
        assert drawn(Absences(), "abcd", 3) == _draw("abcd", 3, 1.0)

    def test_device_that_missed_one_round_is_asked_next_but_not_counted(self):
        absences = Absences()
        assert absences.note(1, ["d"], ["a", "b", "c"]) == {"d": 1}
        chosen = drawn(absences, "abcd", 2)
        assert (chosen.target, sorted(chosen.invited)) == (3, ["a", "b", "c", "d"])

    def test_device_that_stays_absent_is_asked_less_and_less(self):
        absences, asked = Absences(), []
        for number in range(1, 100):
            if "d" in drawn(absences, "abcd", number).invited:
                asked.append(number)
                absences.note(number, ["d"], ["a", "b", "c"])
        assert asked == [1, 2, 4, 8, 16, 32, 48, 64, 80, 96]
        assert [period_of(missed) for missed in (1, 2, 3, 4, 5, 6, 1000)] == [1, 2, 4, 8, 16, 16, 16]
        assert LONGEST_PERIOD == 16

    def test_devices_that_missed_most_are_kept_then_the_first_by_name(self):
        """The ten devices with the last names have missed two rounds, all others one."""
        names = [f"pi-{number:03}" for number in range(MAX_ABSENT + 50)]
        absences = Absences()
        absences.note(1, names[-10:], [])
        kept = absences.note(2, names, [])
        assert kept == dict.fromkeys(names[: MAX_ABSENT - 10], 1) | dict.fromkeys(names[-10:], 2)

    def test_absent_devices_alone_are_invited_and_meet_no_target(self):
        absences = Absences()
        absences.note(1, ["d"], ["a", "b"])
        draw = partial(_draw, number=2, participation=1.0)
        assert absences.choose(["d"], draw, 2, all_count=False) == Selection(0, ("d",), frozenset("d"))

    def test_device_that_reports_counts_again(self):
        absences = Absences()
        for number in range(1, 5):
            absences.note(number, ["d"], ["a", "b", "c"])
        assert absences.note(8, [], ["d"]) == {}
        assert drawn(absences, "abcd", 9).target == 4

    def test_device_is_unsteady_for_twice_as_many_rounds_after_each_further_absence(self):
        absences, number, unsteady = Absences(), 0, []
        for _ in range(3):
            absences.note(number + 1, ["d"], ["a"])
            absences.note(number + 2, [], ["d"])
            number = back = number + 2
            while "d" in absences.unsteady:
                number += 1
                absences.note(number, [], ["d"])
            unsteady.append(number - back)
        assert unsteady == [PROBATION, 2 * PROBATION, 4 * PROBATION]

    def test_first_failure_with_a_reason_counts_like_an_absence_for_the_time_after_the_next_one(self):
        absences = Absences()
        absences.note(1, [], ["a"], failed=["d"])
        assert (absences.missed, set(absences.ever)) == ({}, {"d"})
        absences.note(100, ["d"], ["a"])
        absences.note(101, [], ["d"])
        absences.note(101 + 2 * PROBATION - 1, [], [])
        assert absences.unsteady == {"d"}
        absences.note(101 + 2 * PROBATION, [], [])
        assert absences.unsteady == set()

    def test_longest_time_for_which_a_device_is_unsteady_is_1024_rounds(self):
        absences = Absences()
        for number in range(1, 40, 2):
            absences.note(number, ["d"], ["a"])
            absences.note(number + 1, [], ["d"])
        absences.note(number + 1024, [], [])
        assert absences.unsteady == {"d"}
        absences.note(number + 1025, [], [])
        assert absences.unsteady == set()

    def test_device_that_left_the_count_is_forgotten(self):
        absences = Absences()
        absences.note(1, ["c", "d"], ["a", "b"])
        assert absences.note(2, [], ["a", "b"], left=["d"]) == {"c": 1}

    def test_device_that_restarts_is_asked_in_the_next_round(self):
        absences = Absences()
        for number in range(1, 5):
            absences.note(number, ["d"], ["a", "b", "c"])
        assert "d" not in drawn(absences, "abcd", 5).invited
        absences.restarted("d")
        chosen = drawn(absences, "abcd", 5)
        assert (chosen.target, "d" in chosen.invited) == (3, True)
        assert absences.note(5, [], "abcd") == {}

    def test_absent_devices_that_are_due_are_invited_in_the_share_of_the_others(self):
        """The engine draws a given number of devices, so the draw itself knows no share."""
        absences = Absences()
        absences.note(1, list("klmn"), list("abcdefghij"))
        chosen = absences.choose("abcdefghijklmn", lambda some: draw(some, 2, 1.0, 7, 2), 2, all_count=False)
        assert (chosen.target, len(chosen.invited), len(chosen.absent)) == (2, 3, 1)

    @pytest.mark.parametrize(
        ("devices", "absent"), [("ab", "b"), ("abcd", "cd"), ("abcdefghij", "bcdefghij"), ("a", "a")]
    )
    def test_half_of_the_devices_absent_all_are_asked_and_count(self, devices, absent):
        absences = Absences()
        for number in (1, 2, 3):
            absences.note(number, list(absent), [])
        chosen = drawn(absences, devices, 4)
        assert (chosen.target, sorted(chosen.invited)) == (len(devices), list(devices))

    def test_absences_are_restored_from_records(self):
        absences, records = Absences(), []
        for number, missed in enumerate((["d"], ["d"], [], ["d"], ["c"], []), 1):
            reported = ["a", "b"] + ["c"] * (number == 6)
            kept = absences.note(number, missed, reported)
            records.append(RoundRecord(number, "aggregated", 4, 4, 0, 3, absent=kept))
        again = Absences([RoundRecord.from_dict(record.to_dict()) for record in records])
        for number in range(7, 40):
            assert drawn(again, "abcd", number) == drawn(absences, "abcd", number)

    @given(st.lists(st.tuples(st.sets(st.sampled_from("abcdefg")), st.sets(st.sampled_from("abcdefg"))), max_size=30))
    def test_any_history_the_target_is_a_majority_and_is_invited(self, rounds):
        absences = Absences()
        for number, (missed, reported) in enumerate(rounds, 1):
            absences.note(number, missed - reported, reported)
            chosen = drawn(absences, "abcdefg", number + 1)
            assert 2 * chosen.target > 7
            assert len(chosen.invited) >= chosen.target


class TestRounds:
    def play(self, made, reporters: str, now: float, silent: str = "") -> float:
        """Complete a round in which `reporters` report and `silent` devices only accept; return the time of the next round."""
        number = made.last_round
        for device in silent:
            if device in made.open.round.participants:
                send(made, device, Accept(10), now, number)
        report_all(made, reporters, now + 1.0)
        now += 1.0
        while made.open is not None and made.open.round.number == number and not made.open.dismissed:
            now = made.next_deadline()
            made.handle(TimePassed(), now)
        if made.open is not None and made.open.dismissed:
            made.handle(Aggregated(), now)
        while made.open is None and made.stopped is None:
            now = made.next_deadline()
            made.handle(TimePassed(), now)
        if made.open is not None:
            made.handle(ModelPublished(model()), now)
        return now

    def test_mute_device_among_four_fails_one_round_only(self):
        made = asking("abcd", quorum=0.8, deadline_s=600.0, auto_deadline=True, grace_s=10.0, rejoin_s=10.0, rounds=40)
        now = self.play(made, "abc", 0.0, "d")
        assert (made.records[0].outcome, made.records[0].absent) == ("failed", {"d": 1})
        assert made.records[0].failures == {"silent": 1}
        assert now < 100.0
        asked = []
        while made.stopped is None:
            assert made.open is not None
            asked += [made.last_round] if "d" in made.open.round.participants else []
            now = self.play(made, "abc", now, "d")
        assert {record.outcome for record in made.records[1:]} == {"aggregated"}
        assert asked == [2, 4, 8, 16, 32]
        assert now < 100.0 + 40 * 2.0 + len(asked) * 11.0

    def test_failed_round_that_makes_a_minority_absent_for_the_first_time_does_not_end_the_run(self):
        terms = {"quorum": 0.8, "deadline_s": 600.0, "auto_deadline": True, "rounds": 40, "max_failed_rounds": 1}
        made = asking("abcd", grace_s=10.0, rejoin_s=10.0, **terms)
        now = self.play(made, "abc", 0.0, "d")
        assert (made.records[-1].outcome, made.stopped) == ("failed", None)
        self.play(made, "ab", now, "c")
        assert (made.records[-1].outcome, made.stopped is None) == ("failed", False)

    def test_device_that_fails_a_round_with_a_reason_is_unsteady_as_long_as_after_one_absence(self):
        made = after_failure_of_d()
        now, rounds = self.play(made, "abcd", 10.0), 0
        while "d" in made.fleet.count.unsteady:
            assert made.present == 3
            now, rounds = self.play(made, "abcd", now), rounds + 1
        assert (rounds, made.present) == (PROBATION, 4)

    def test_mute_device_among_six_costs_the_grace_less_and_less(self):
        """After the quorum the round asks the mute device again, and closes without an answer."""
        made = asking("abcdef", quorum=0.8, deadline_s=600.0, auto_deadline=True, grace_s=10.0, rounds=10)
        now = 0.0
        for _ in range(10):
            now = self.play(made, "abcde", now, "f")
        assert [record.outcome for record in made.records] == ["aggregated"] * 10
        assert made.records[-1].absent == {"f": 4}
        assert now == pytest.approx(4 * 11.0 + 6 * 1.0)

    def test_resumed_run_takes_no_first_presence_for_a_restart(self):
        record = RoundRecord(4, "aggregated", 3, 3, 0, 2, absent={"c": 3})
        for boots, invited in (("1", "ab"), ("12", "abc")):
            made = engine([record], epoch=2, devices=3, rounds=9)
            for device, boot in (("c", boots[0]), ("c", boots[-1]), ("a", "1"), ("b", "1")):
                made.handle(DevicePresence(device, there(boot)), 1.0)
            made.handle(ModelPublished(model()), 2.0)
            assert made.open is not None
            assert sorted(made.open.round.participants) == list(invited)

    def test_absent_device_that_is_invited_does_not_stand_in_for_one_that_leaves(self):
        """Devices a, b and c count, and c offends: two updates are enough, with or without an invitation of the mute x."""
        record = RoundRecord(1, "aggregated", 4, 3, 0, 3, absent={"x": 1})
        for before, invited in (([], "abc"), ([record], "abcx")):
            made = engine(before, devices=len(invited), quorum=0.8, rounds=9)
            join(made, invited)
            made.handle(ModelPublished(model()), 0.0)
            assert made.open is not None
            assert (made.open.round.policy.target, sorted(made.open.round.participants)) == (3, list(invited))
            send(made, "c", Accept(10), 0.5, made.last_round)
            made.handle(UpdateRejected(made.last_round, "c", "5c", RefuseReason.NOT_FINITE, "NaN"), 0.5)
            assert made.open.round.needed == 2
            assert made.open.round.left == {"c"}

    def test_absent_device_that_leaves_a_round_makes_it_no_smaller(self):
        made = engine([RoundRecord(1, "aggregated", 4, 3, 0, 3, absent={"x": 1})], devices=4, quorum=0.8, rounds=9)
        join(made, "abcx")
        made.handle(ModelPublished(model()), 0.0)
        send(made, "x", Decline(DeclineReason.PRIVATE_POLICY), 0.5, 2)
        assert (current(made).round.left, current(made).round.needed) == ({"x"}, 3)

    def test_slow_device_that_answers_is_not_absent(self):
        made = asking("abcdef", quorum=0.8, grace_s=10.0)
        accept(made, "abcdef", 0.5)
        report_all(made, "abcde", 1.0)
        send(made, "f", Progress(JobPhase.TRAINING, 1, 9), 2.0)
        made.handle(TimePassed(), 11.0)
        made.handle(Aggregated(), 11.0)
        assert (made.records[0].late, made.records[0].absent) == (1, {})

    @pytest.mark.parametrize("answer", [Failed(FailReason.TRAINING), Failed(FailReason.STORAGE)])
    def test_device_that_fails_with_a_reason_is_not_absent(self, answer):
        made = asking("abc", quorum=0.5)
        send(made, "c", answer, 0.5)
        report_all(made, "ab", 1.0)
        made.handle(Aggregated(), 2.0)
        assert made.records[0].absent == {}

    @pytest.mark.parametrize("since", [1, LONGEST_PERIOD, LONGEST_PERIOD + 1])
    def test_device_that_fails_within_16_rounds_of_a_round_that_it_missed_is_absent(self, since):
        made = after_failure_of_d()
        now = 10.0
        while made.last_round < 1 + since:
            now = self.play(made, "abcd", now)
        send(made, "d", Failed(FailReason.TRAINING), now, made.last_round)
        self.play(made, "abc", now)
        failed = made.records[since]
        assert (failed.round, failed.outcome, failed.failures) == (1 + since, "aggregated", {"training": 1})
        assert failed.absent == ({} if since > LONGEST_PERIOD else {"d": 1 + (since == 1)})

    def test_device_that_declines_fails_one_round_only(self):
        made, now = asking("abcd", quorum=0.8, deadline_s=600.0, rounds=4), 0.0
        accept(made, "abc", now)
        send(made, "d", Decline(DeclineReason.UNWILLING), now)
        while made.stopped is None:
            if made.open is None:
                now = made.next_deadline() or now
                made.handle(TimePassed(), now)
                if made.open is not None:
                    made.handle(ModelPublished(model()), now)
                continue
            asked = made.open.round.participants.get("d")
            if asked is not None and asked.state is State.INVITED:
                send(made, "d", Decline(DeclineReason.UNWILLING), now, made.last_round)
            now = self.play(made, "abc", now)
        assert [record.outcome for record in made.records] == ["failed", *["aggregated"] * 3]
        assert made.records[0].absent == {"d": 1}

    def test_device_that_left_the_count_is_not_absent(self):
        before = RoundRecord(1, "aggregated", 3, 2, 0, 2, absent={"c": 1})
        made = engine([before], devices=3, rounds=9)
        join(made, "abc")
        made.handle(ModelPublished(model()), 0.0)
        send(made, "c", Decline(DeclineReason.PRIVATE_POLICY), 0.5, 2)
        report_all(made, "ab", 1.0)
        made.handle(Aggregated(), 2.0)
        assert made.records[-1].absent == made.fleet.count.absent == {}

    def test_absent_device_that_is_revoked_between_its_rounds_is_no_longer_absent(self):
        before = RoundRecord(1, "aggregated", 3, 2, 0, 2, absent={"c": 2})
        made = engine([before], devices=3, rounds=9)
        join(made, "abc")
        made.handle(ModelPublished(model()), 0.0)
        assert made.open is not None and "c" not in made.open.round.participants
        made.handle(DevicesRevoked(frozenset("c")), 0.5)
        report_all(made, "ab", 1.0)
        made.handle(Aggregated(), 2.0)
        assert made.records[-1].absent == made.fleet.count.absent == {}

    def test_device_that_never_answers_is_absent(self):
        made = asking("abc", quorum=0.5, grace_s=100.0)
        report_all(made, "ab", 1.0)
        made.handle(TimePassed(), 10.0)
        made.handle(Aggregated(), 10.0)
        assert made.records[0].absent == {"c": 1}

    def test_devices_shown_online_without_an_answer_are_named_after_two_rounds(self):
        """Their broker died behind a bridge, so that nobody published their last wills."""
        made = asking("abcde", quorum=0.5, grace_s=10.0, rejoin_s=10.0, rounds=40)
        presence = made.fleet.false_presence
        now = self.play(made, "abc", 0.0)
        assert presence.mute == {"d": 1, "e": 1} and presence.words(MUTE_ROUNDS) == []
        self.play(made, "abc", now)
        (words,) = presence.words(MUTE_ROUNDS)
        assert words.startswith("shown online without any answer: d, e; their broker may have died behind a bridge")

    @pytest.mark.parametrize(("quorum", "named"), [(0.5, "d, e"), (1.0, "d")], ids=["late", "given up"])
    def test_devices_whose_broker_dies_in_a_round_are_named_after_that_round_and_the_next(
        self, quorum: float, named: str
    ):
        """They have accepted, and are shown online: their last wills are with the dead broker."""
        made = asking("abcde", quorum=quorum, grace_s=10.0, rejoin_s=10.0, deadline_s=600.0, rounds=40)
        presence = made.fleet.false_presence
        now = self.play(made, "abc", 0.0, silent="de")
        assert presence.words(MUTE_ROUNDS) == []
        self.play(made, "abc", now)
        (words,) = presence.words(MUTE_ROUNDS)
        assert words.startswith(f"shown online without any answer: {named};")

    def test_device_that_is_shown_offline_is_not_called_mute(self):
        made = asking("abcd", quorum=0.5, grace_s=10.0, rejoin_s=10.0, rounds=40)
        leave(made, "d", 0.5)
        self.play(made, "abc", 0.0)
        assert made.records and made.fleet.false_presence.mute == {}

    def test_device_that_is_gone_for_too_long_is_absent(self):
        made = asking("abc", quorum=0.5, rejoin_s=30.0, grace_s=100.0)
        accept(made, "abc", 0.5)
        made.handle(DevicePresence("c", gone()), 1.0)
        report_all(made, "ab", 2.0)
        made.handle(TimePassed(), 31.0)
        made.handle(Aggregated(), 31.0)
        assert made.records[0].absent == {"c": 1}
        made.handle(DevicePresence("c", there()), 32.0)
        made.handle(ModelPublished(model()), 33.0)
        for device in "abc":
            if made.open is not None and made.open.round.awaits(device):
                report_of(made, device, 34.0)
        made.handle(TimePassed(), 200.0)
        assert made.open is None or made.open.dismissed

    def test_device_that_is_at_work_at_the_deadline_is_absent(self):
        made = asking("abc", quorum=1.0, deadline_s=40.0, max_failed_rounds=9)
        accept(made, "abc", 0.5)
        report_all(made, "ab", 1.0)
        for second in range(2, 41):
            send(made, "c", Progress(JobPhase.TRAINING, second, 1000), float(second))
            made.handle(TimePassed(), float(second))
        assert (made.records[0].failure, made.records[0].absent) == ("quorum_missed", {"c": 1})


def test_device_that_waits_for_an_upload_slot_at_the_end_of_the_round_has_not_missed_it():
    """It has offered its update, and is silent because the coordinator gave the slots to others."""
    made = asking("abcd", quorum=0.5, grace_s=10.0, upload_slots=1)
    accept(made, "abcd")
    for device in "abcd":
        send(made, device, Offer(update(BLOB)), 2.0)
    for device in "ab":
        for index in range(4):
            made.handle(ChunkReceived(device, cut(BLOB, update(BLOB), index)), 2.5)
        send(made, device, Offer(update(BLOB)), 2.5)
        made.handle(UpdateStored(1, device, DIGEST, report()), 3.0)
        made.handle(TimePassed(), 3.0)
    waiting = [device for device in "cd" if current(made)._uploads.has_in_line(device)]
    assert waiting
    made.handle(TimePassed(), 3.0 + 10.0)
    made.handle(Aggregated(), 44.0)
    assert made.records[-1].outcome == "aggregated"
    assert not set(waiting) & made.records[-1].absent.keys()


@pytest.mark.parametrize(("closed_at", "state"), [(5.0, State.LATE), (200.0, State.FAILED)])
def test_lost_device_has_missed_the_round_and_a_device_that_failed_for_a_reason_has_not(closed_at, state):
    made = asking("abcd", quorum=0.5, grace_s=0.0)
    accept(made, "abcd")
    leave(made, "c", 2.0)
    send(made, "d", Failed(FailReason.TRAINING), 2.0)
    report_all(made, "ab", closed_at)
    lost, absentees = current(made).round.participants["c"], current(made).absentees
    assert (lost.state, lost.reason) == (state, "lost")
    assert (absentees.missed, absentees.unheard, absentees.failed) == (("c",), (), ("d",))


def test_devices_that_left_the_round_have_neither_missed_it_nor_failed():
    """Device d declines for good, and c is revoked; another decline is a missed round."""
    made = asking("abcd", quorum=0.5, grace_s=0.0)
    accept(made, "abc")
    send(made, "d", Decline(DeclineReason.PRIVATE_POLICY), 1.0)
    made.handle(DevicesRevoked(frozenset("c")), 2.0)
    report_all(made, "ab", 5.0)
    assert current(made).round.left == {"c", "d"}
    absentees = current(made).absentees
    assert (absentees.missed, absentees.failed) == ((), ())
