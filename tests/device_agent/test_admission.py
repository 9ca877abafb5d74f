"""Admission: the owner's standing order, and what happens in doubt."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from device_agent.admission import Order, Verdict, decide, parse_order
from shared.errors import UsageError

FILE = parse_order("file:/etc/fedpatch/order")


@pytest.mark.parametrize(
    ("text", "order"),
    [
        ("always", Order(always=True)),
        ("never", Order(always=False)),
        ("file:/etc/fedpatch/order", Order(always=False, path="/etc/fedpatch/order")),
        ("file:order", Order(always=False, path="order")),
    ],
)
def test_orders_are_three_words(text, order):
    """Always, never, or as a file says."""
    assert parse_order(text) == order


@pytest.mark.parametrize("text", ["", "Always", "file", "file:", "maybe"])
def test_other_words_are_refused(text):
    """A typing error must not become consent."""
    with pytest.raises(UsageError, match="always, never or file:PATH"):
        parse_order(text)


def test_always_and_never_need_no_file():
    """And never says who decided."""
    assert decide(parse_order("always"), None) == Verdict(True)
    assert decide(parse_order("never"), "accept") == Verdict(False, "its owner said never")


@pytest.mark.parametrize("text", ["accept", "accept\n", "  accept  \ndecline", "accept while at home"])
def test_a_file_accepts_with_its_first_word(text):
    """What follows is a remark."""
    assert decide(FILE, text) == Verdict(True)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("decline on battery", "on battery"),
        ("decline: on battery\n", "on battery"),
        ("decline", "/etc/fedpatch/order says decline"),
    ],
)
def test_a_file_declines_and_says_why(text, why):
    """Its words reach the coordinator."""
    assert decide(FILE, text) == Verdict(False, why)


def test_a_file_that_cannot_be_read_declines():
    """In doubt the owner was not asked; the reason says how to change that."""
    verdict = decide(FILE, None)
    assert not verdict.accept
    assert "cannot be read" in verdict.why


@given(st.text())
def test_any_other_file_declines(text):
    """Only the word itself is consent."""
    first = (text.splitlines() or [""])[0].split()
    verdict = decide(FILE, text)
    assert verdict.accept == (first[:1] == ["accept"])
    assert verdict.accept or verdict.why
