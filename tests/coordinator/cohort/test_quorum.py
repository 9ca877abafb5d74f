"""The rule of quorum and target: its arithmetic, and its text in the documentation."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpatch.coordinator.cohort.quorum import RULE, Standing, devices_meant, updates_needed, without
from tests.support.paths import ROOT

DOCS = ROOT / "docs"
PAGES = ("explanation/concepts.md",)

shares = st.sampled_from((0.01, 0.1, 0.3, 0.5, 0.7, 0.8, 0.9, 1.0))
counts = st.integers(0, 60)


@pytest.mark.parametrize("page", PAGES)
def test_documentation_pages_contain_each_paragraph_of_the_rule(page):
    text = " ".join((DOCS / page).read_text("utf-8").split())
    assert [paragraph for paragraph in RULE if paragraph not in text] == []


@pytest.mark.parametrize(
    ("fleet", "left", "missing", "meant", "needed"),
    [
        (10, 0, 0, 10, 8),
        (4, 0, 0, 4, 4),
        (4, 1, 0, 3, 3),  # an offender among four
        (4, 2, 0, 2, 2),  # two offenders
        (4, 3, 0, 2, 2),  # one device remains; two updates are still needed
        (2, 1, 0, 2, 2),
        (1, 0, 0, 1, 1),
        (1, 1, 0, 1, 1),
        (4, 0, 1, 3, 3),  # one missing device
        (4, 0, 2, 4, 4),  # half of the fleet is missing: all count
        (4, 0, 3, 4, 4),
        (10, 0, 4, 6, 5),
        (10, 0, 5, 10, 8),
        (10, 4, 3, 6, 5),  # half of the remaining six are missing: all six count
    ],
)
def test_devices_meant_and_updates_needed_with_the_default_quorum(fleet, left, missing, meant, needed):
    """With full participation a round is meant for all devices that count, and needs 80 % of them."""
    assert devices_meant(Standing(fleet, left, missing), 1.0, 0.8, 1) == meant
    assert updates_needed(meant, 0.8, 1) == needed


@given(counts, st.data(), shares, shares, st.integers(1, 5))
def test_updates_needed_lie_between_min_cohort_and_devices_meant(fleet, data, participation, quorum, min_cohort):
    left = data.draw(st.integers(0, fleet))
    missing = data.draw(st.integers(0, fleet - left))
    meant = devices_meant(Standing(fleet, left, missing), participation, quorum, min_cohort)
    needed = updates_needed(meant, quorum, min_cohort)
    assert min_cohort <= needed <= meant <= max(min_cohort, fleet)
    assert needed <= updates_needed(
        devices_meant(Standing(fleet), participation, quorum, min_cohort), quorum, min_cohort
    )


@given(counts, counts, counts, shares)
def test_without_never_reduces_updates_needed_from_two_to_one(meant, first, then, quorum):
    whole, rest = math.ceil(quorum * meant - 1e-9), without(meant, first, quorum)
    assert math.ceil(quorum * rest - 1e-9) >= min(2, whole)
    assert rest <= meant
    assert rest == max(0, meant - first) or math.ceil(quorum * (rest - 1) - 1e-9) < min(2, whole)
    assert without(rest, then, quorum) == without(meant, first + then, quorum)


@given(st.integers(1, 60), counts)
def test_counted_devices_are_more_than_half_of_the_fleet(fleet, missing):
    assert 2 * Standing(fleet, 0, min(missing, fleet)).counted > fleet
