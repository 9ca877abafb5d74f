"""Numbers as people read them."""

from __future__ import annotations

import pytest

from fedpatch.shared.app.formatting import accuracy, age, counted, duration, minute, size


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (54_321, "54 kB"), (999_700, "1.0 MB"), (1_250_000_000, "1.2 GB")],
)
def test_bytes_have_two_or_three_digits_and_a_decimal_prefix(count, text):
    assert size(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.04, "0.0 s"), (1.94, "1.9 s"), (9.96, "10 s"), (59.7, "1 min 0 s"), (185, "3 min 5 s"), (7_860, "2 h 11 min")],
)
def test_durations_have_at_most_two_units(seconds, text):
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.2, "now"), (12, "12 s ago"), (300, "5 min ago"), (7_300, "2 h ago"), (260_000, "3 d ago")]
)
def test_ages_are_rough(seconds, text):
    assert age(seconds) == text


def test_minute_is_in_utc_in_any_time_zone():
    assert minute(1_770_091_559.9) == "2026-02-03 04:05 UTC"


def test_accuracy_none_is_a_dash():
    assert (accuracy(None), accuracy(0.0), accuracy(0.97149)) == ("-", "0.000", "0.971")


def test_the_most_frequent_reason_comes_first():
    assert counted({"": 1, "late": 2, "deadline": 2}) == "deadline 2, late 2, no reason 1"
