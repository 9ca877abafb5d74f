"""docs/explanation/threat-model.md has the number of tested attacks, the table of offences, and the law of masked groups."""

from __future__ import annotations

import json
import math
import re
from functools import partial

import pytest

from fedpatch.coordinator.cohort.offences import NOT_OFFENCES, OFFENCES
from fedpatch.coordinator.guard.ingress_filter import MAX_WAITING_BYTES
from fedpatch.coordinator.guard.rate_limiter import (
    BYTES_AT_ONCE,
    BYTES_PER_S,
    MESSAGES_AT_ONCE,
    MESSAGES_PER_REQUEST,
    MESSAGES_PER_S,
)
from fedpatch.coordinator.masking.masked_groups import LEAST_GROUP, group_sizes
from fedpatch.coordinator.rounds.upload_scheduler import STALL_S
from fedpatch.coordinator.settings import RunSettings
from fedpatch.shared.masking.group_threshold import most_colluders, threshold_of
from fedpatch.shared.privacy.plan import make_plan, spread_of
from fedpatch.shared.tensors.arrays import base_name
from fedpatch.shared.wire.masking_messages import MAX_GROUP, ThresholdRule
from tests.attacks.table import KINDS
from tests.docs import what_stays
from tests.support.paths import ROOT

EXPLANATION = ROOT / "docs" / "explanation"
PAGE = (EXPLANATION / "threat-model.md").read_text("utf-8")
RESULTS = ROOT / "results"


@pytest.mark.parametrize(("kind", "attacks"), KINDS.items(), ids=list(KINDS))
def test_page_has_the_number_of_attacks_of_each_kind(kind, attacks):
    assert f"| {kind} | {len({one.name for one in attacks})} |" in PAGE
    assert len({one.name for one in attacks}) == len(attacks)


@pytest.mark.medium
def test_the_table_of_what_stays_is_that_of_a_bundled_tasks_schema():
    """For each policy and tensor; `python -m tests.docs.what_stays` prints the table. Moments stay where their tensors stay."""
    assert what_stays.markdown() in PAGE
    for policy in what_stays.POLICIES:
        stays, travels = what_stays.split(policy)
        model = {name for name in stays if name in what_stays.schema()}
        assert stays == {name for name in stays | travels if base_name(name) in model}
    stays, travels = what_stays.split(RunSettings().private)
    assert {"bn1.weight", "bn1.bias", "bn1.weight:exp_avg"} <= stays
    assert {"bn1.running_mean", "bn1.running_var", "bn1.num_batches_tracked"} <= travels


@pytest.mark.parametrize("page", ["README.md", "ARCHITECTURE.md", "docs/reference/preferences.md"])
def test_other_pages_point_to_the_one_table(page):
    """The pages name no other default of private tensors."""
    text = " ".join((ROOT / page).read_text("utf-8").split())
    assert "threat-model.md#what-stays-on-a-device" in text
    assert not re.search(r"batch-norm layers(,| by default)", text)


def test_page_lists_each_offence_with_its_meaning():
    for (what, reason), words in OFFENCES.items():
        assert f"| {'' if what == 'refused' else f'{what}: '}`{reason}` | {words} |" in PAGE


def test_page_names_each_reason_that_is_no_offence():
    named = PAGE.partition("Never counted")[2].partition("### Limits")[0]
    assert set(re.findall(r"`(\w+)`", named)) == {str(reason) for _, reason in NOT_OFFENCES}


def test_limits_on_the_page_are_those_of_the_program():
    for words in (
        f"{MESSAGES_AT_ONCE:g} at once, {MESSAGES_PER_S:g} a second; {MESSAGES_PER_REQUEST:g} more",
        f"{BYTES_AT_ONCE / 2**20:g} MiB at once, {BYTES_PER_S / 1024:g} KiB a second",
        f"{MAX_WAITING_BYTES // 2**20} MiB",
        f"{STALL_S:g} s without",
    ):
        assert words in PAGE, words


def test_pages_have_the_thresholds_and_colluders_of_the_law():
    needed = {size: threshold_of(ThresholdRule.TWO_THIRDS, size) for size in (8, 10, 16, 32, 64)}
    most = {size: most_colluders(threshold, size) for size, threshold in needed.items()}
    left = [threshold - most[size] for size, threshold in needed.items()]
    agreement = (EXPLANATION / "agreement.md").read_text("utf-8")
    for name, row in (
        ("*g*", needed),
        ("*t*", needed.values()),
        ("colluders at most, 2 *t* - *g* - 1", most.values()),
        ("honest devices of the sum at least, without colluders", needed.values()),
        ("with as many colluders as possible", left),
    ):
        assert f"| {name} | {' | '.join(map(str, row))} |" in agreement, name
    for words in (
        f"({most[32] + 1} of 32, {most[10] + 1} of 10)",
        f"({needed[8]} with groups of 8, {needed[32]} with groups of 32)",
        f"{needed[8] - most[8]} of 8, {needed[32] - most[32]} of 32",
    ):
        assert words in PAGE, words


def test_page_has_the_price_of_noise_of_the_devices():
    text = (EXPLANATION / "privacy.md").read_text("utf-8")
    factors = {rule: math.sqrt(spread_of([(50, threshold_of(rule, 50))] * 4)) for rule in ThresholdRule}
    two_thirds, half = factors[ThresholdRule.TWO_THIRDS], factors[ThresholdRule.HALF]
    assert (
        f'{two_thirds:.1f} times with 200 devices in groups of 50, {half:.1f} times with `threshold = "half"`' in text
    )
    plan = partial(make_plan, parameters=1000, rounds=7, epsilon=8.0)
    sizes = group_sizes(1100, size=MAX_GROUP, least=LEAST_GROUP)
    groups = [(size, threshold_of(ThresholdRule.TWO_THIRDS, size)) for size in sizes]
    planned = plan(devices=1100, groups=groups, group_max=MAX_GROUP).ratio
    assert "1,100 devices (groups of 64) have the same ratio as 200 with `central`" in text
    assert planned == pytest.approx(plan(devices=200).ratio, rel=0.03)


ATTACKED = {
    "weights of 3e38": "weights of 3e38",
    "noise x 1e6": "normal noise times 1e6 on all weights",
    "running_var of 1e30": "`running_var` of 1e30",
    "exp_avg_sq of 1e15": "`exp_avg_sq` of 1e15",
    "what it learned, reversed x 100": "its own change, reversed, times 100",
}
"""Attacks of benchmarks.training.norm_bounds, each with its words on the page."""


def _of_bounds(figure: str, fleet: str, bound: str, attack: str = "") -> float:
    runs = json.loads((RESULTS / "benchmarks" / "norm-bounds.json").read_text("utf-8"))["runs"]
    found = [one[figure] for one in runs if (one["fleet"], one["bound"], one["attack"]) == (fleet, bound, attack)]
    return math.fsum(found) / len(found)


@pytest.mark.parametrize(("attack", "words"), ATTACKED.items(), ids=list(ATTACKED))
def test_page_has_the_measured_accuracy_under_an_attack_after_all_checks(attack, words):
    off, bounded = (_of_bounds("user_accuracy", "digits, 6 devices", one, attack) for one in ("off", "auto:2"))
    ends = ", and the run ends" if attack == "weights of 3e38" else ""
    assert f"| {words} | {off:.3f}{ends} | {bounded:.3f} |" in PAGE


def test_page_has_the_measured_cost_and_saving_of_the_default_bounds():
    text = " ".join(PAGE.split())

    def gain(fleet: str) -> float:
        return _of_bounds("user_accuracy", fleet, "auto:2") - _of_bounds("user_accuracy", fleet, "off")

    def rises(fleet: str) -> str:
        return " to ".join(f"{_of_bounds('user_accuracy', fleet, bound):.3f}" for bound in ("off", "auto:2"))

    def shares(*fleets: str) -> str:
        return " to ".join(f"{100 * _of_bounds('bounded_share', fleet, 'auto:2'):.0f}" for fleet in fleets)

    even, uneven = (
        ("digits, 6 devices", "mnist, 6 of 100 devices"),
        ("digits, 6 uneven devices", "mnist, 6 of 100 uneven devices"),
    )
    assert f"bound {shares(*even)} % of the updates" in text
    assert f"{gain(even[0]):+.3f} (digits, 6 devices) and {gain(even[1]):+.3f} (MNIST, 6 of 100 devices)" in text
    assert (
        f"bound {shares(*uneven)} % of the updates, and UA rises from {rises(uneven[0])} and from {rises(uneven[1])}"
        in text
    )


def test_page_has_the_measured_accuracy_of_a_run_with_noise_of_the_devices():
    outcomes = json.loads((RESULTS / "privacy" / "outcomes.json").read_text("utf-8"))
    [found] = [one for one in outcomes if one["fleet"] == "head, noise of devices"]
    without, noised = (
        f"{math.fsum(found[f'user_accuracy_{one}']) / len(found['seeds']):.3f}" for one in ("without", "with")
    )
    plan = found["plan"]
    assert (
        f"[{without} falls to {noised}](privacy.md#plan-a-run) with {plan['devices']} devices, {plan['rounds']} rounds"
        in PAGE
    )
