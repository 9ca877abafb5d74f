"""Terms of a fleet study, and the comparison of policies."""

from __future__ import annotations

import random
from dataclasses import fields, replace

import pytest

from fedpatch.coordinator.settings import RoundSettings
from fedpatch.shared.errors import ConfigError, UsageError
from fedpatch.simulator.fleet.random_traits import draw_outcome, draw_traits
from fedpatch.simulator.fleet.report import quantile
from fedpatch.simulator.fleet.settings import FleetTerms
from fedpatch.simulator.fleet.sweep import SweepAxis, SweepRow, combine, compare_policies, parse_axis

SMALL = FleetTerms(devices=30, rounds=3, participation=0.5)


def test_the_defaults_can_be_played():
    assert FleetTerms().check() == []


def test_a_policy_has_the_limits_of_a_run():
    ours = {one.name: one.metadata["rules"] for one in fields(FleetTerms)}
    theirs = {one.name: one.metadata["rules"] for one in fields(RoundSettings)}
    shared = ours.keys() & theirs.keys()
    assert {"over_select", "quorum", "deadline_s", "grace_s", "upload_slots"} < shared
    for name in shared:
        assert (ours[name].ge, ours[name].gt, ours[name].le) == (theirs[name].ge, theirs[name].gt, theirs[name].le)


@pytest.mark.parametrize(
    ("changes", "blamed"),
    [
        ({"recruit_deadline_s": 700.0, "deadline_s": 600.0}, "recruit_deadline_s"),
        ({"min_cohort": 31}, "min_cohort"),
        ({"quorum_updates": 31}, "quorum_updates"),
        ({"upload_slots": 100, "upload_window": 100}, "upload_window"),
        ({"update_bytes": 2**31, "chunk_kib": 8}, "update_bytes"),
    ],
)
def test_terms_that_contradict_each_other_are_refused(changes, blamed):
    assert [name for name, *_ in FleetTerms(devices=30, **changes).check()] == [blamed]


def test_other_probabilities_leave_the_other_draws_alone():
    calm, wild = FleetTerms(), FleetTerms(dropout_training=1.0, unwilling=1.0, outdated=1.0)
    for device in range(1, 20):
        traits = draw_traits(calm, device)
        assert draw_traits(wild, device).train_s == traits.train_s
        one, other = (draw_outcome(terms, device, traits.train_s, 3) for terms in (calm, wild))
        assert (one.train_s, one.away_s, one.off_upload) == (other.train_s, other.away_s, other.off_upload)
        assert not other.willing
        assert other.off_training is not None


def test_without_spread_all_are_alike():
    like = FleetTerms(train_spread=1.0, link_spread=1.0, slow_share=0.0)
    traits = draw_traits(like, 1)
    assert (traits.train_s, traits.down_bits_s, traits.up_bits_s) == (20.0, 20e6, 5e6)
    assert {draw_traits(like, device) for device in range(1, 9)} == {traits}


@pytest.mark.parametrize(("speed_range", "shuffles"), [(1.0, 0), (10.0, 1)])
def test_the_traits_of_a_whole_fleet_shuffle_the_speeds_at_most_once(monkeypatch, speed_range, shuffles):
    seen: list[int] = []
    shuffle = random.Random.shuffle

    def counted(rng: random.Random, ranks: list[int]) -> None:
        seen.append(len(ranks))
        shuffle(rng, ranks)

    monkeypatch.setattr(random.Random, "shuffle", counted)
    terms = FleetTerms(devices=57, seed=4_711, speed_range=speed_range)
    for device in range(1, terms.devices + 1):
        draw_traits(terms, device)
    assert seen == [terms.devices] * shuffles


def test_a_speed_range_spreads_training_times_evenly_by_ratio_over_a_shuffled_fleet():
    terms = FleetTerms(devices=9, train_spread=1.0, slow_share=0.0, speed_range=16.0)
    ranks = list(range(9))
    random.Random(f"{terms.seed}:speeds").shuffle(ranks)
    drawn = [draw_traits(terms, device).train_s for device in range(1, 10)]
    assert drawn == [20.0 * 16.0 ** (rank / 8) for rank in ranks]


def test_an_axis_is_a_term_and_its_values():
    assert parse_axis("over_select=1.0,1.3,1") == SweepAxis("over_select", (1.0, 1.3))
    assert parse_axis("upload-slots = 4, 8") == SweepAxis("upload_slots", (4, 8))


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("quorun=1", "did you mean 'quorum'"),
        ("quorum", "names no values"),
        ("quorum=0.5,2", "2 is above 1"),
        ("upload_slots=1.5", "expected a whole number"),
    ],
)
def test_an_axis_that_cannot_be_is_refused(text, complaint):
    with pytest.raises(UsageError, match=complaint):
        parse_axis(text)


def test_every_combination_is_checked_before_any_is_played():
    with pytest.raises(ConfigError, match="recruit-deadline-s"):
        combine(replace(SMALL, deadline_s=600.0), [SweepAxis("recruit_deadline_s", (1.0, 900.0))])
    with pytest.raises(UsageError, match="is there twice"):
        combine(SMALL, [SweepAxis("quorum", (0.5,)), SweepAxis("quorum", (0.6,))])


def test_default_that_follows_from_a_compared_value_is_derived_in_each_combination():
    rows = combine(SMALL, [SweepAxis("late", ("refuse", "carry"))])
    assert [terms.grace_s for _, terms in rows] == [10.0, 0.0]
    [(_, given)] = combine(replace(SMALL, grace_s=3.0), [SweepAxis("late", ("carry",))])
    assert given.grace_s == 3.0


def test_a_comparison_has_a_row_for_each_combination():
    reported: list[SweepRow] = []
    rows = compare_policies(
        SMALL, [SweepAxis("over_select", (1.0, 1.5)), SweepAxis("deadline_s", (15.0, 60.0))], reported.append
    )
    assert reported == rows
    assert [dict(row.changes) for row in rows] == [
        {"over_select": over_select, "deadline_s": deadline_s}
        for over_select in (1.0, 1.5)
        for deadline_s in (15.0, 60.0)
    ]
    assert [row.report.terms.deadline_s for row in rows] == [15.0, 60.0, 15.0, 60.0]
    short = rows[0].to_dict()
    assert (short["rounds"], short["failed"], short["wasted_share"]) == (3, 3, 1.0)
    assert short["p95_round_s"] <= 15.0 + SMALL.grace_s


def test_a_quantile_is_one_of_the_values():
    values = [5.0, 1.0, 4.0, 2.0, 3.0]
    assert [quantile(values, fraction) for fraction in (0.0, 0.5, 0.95, 1.0)] == [1.0, 3.0, 5.0, 5.0]
    assert quantile([], 0.5) is None
