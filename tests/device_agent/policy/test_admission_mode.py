"""Admission: the owner's standing order, and what happens in doubt."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpatch.device_agent.job.request_answers import AdmissionDecision
from fedpatch.device_agent.policy.admission_mode import NEVER_S, AdmissionMode, decide, parse_admission_mode
from fedpatch.device_agent.policy.preference_check import Objection
from fedpatch.shared.errors import UsageError
from fedpatch.shared.wire.reason_codes import Condition

FILE = parse_admission_mode("file:/etc/fedpatch/order")


@pytest.mark.parametrize(
    ("text", "order"),
    [
        ("preferences", AdmissionMode(always=False, follows_preferences=True)),
        ("always", AdmissionMode(always=True)),
        ("never", AdmissionMode(always=False)),
        ("file:/etc/fedpatch/order", AdmissionMode(always=False, path="/etc/fedpatch/order")),
        ("file:order", AdmissionMode(always=False, path="order")),
    ],
)
def test_orders_are_four_words(text, order):
    """As the preferences say, always, never, or as a file says."""
    assert parse_admission_mode(text) == order


@pytest.mark.parametrize("text", ["", "Always", "file", "file:", "maybe"])
def test_other_words_are_refused(text):
    """A typing error must not become consent."""
    with pytest.raises(UsageError, match="preferences, always, never or file:PATH"):
        parse_admission_mode(text)


def test_always_and_never_need_no_file():
    """And never says who decided."""
    assert decide(parse_admission_mode("always"), None) == AdmissionDecision(True)
    assert decide(parse_admission_mode("never"), "accept") == AdmissionDecision(
        False, "its owner said never", retry_after_s=NEVER_S
    )


@pytest.mark.parametrize("text", ["accept", "accept\n", "  accept  \ndecline", "accept while at home"])
def test_a_file_accepts_with_its_first_word(text):
    """What follows is a remark."""
    assert decide(FILE, text) == AdmissionDecision(True)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("decline on battery", "on battery"),
        ("decline: on battery\n", "on battery"),
        ("decline", "its owner's file says decline"),
    ],
)
def test_a_file_declines_and_says_why(text, why):
    """Its words reach the coordinator."""
    assert decide(FILE, text) == AdmissionDecision(False, why)


def test_a_file_that_cannot_be_read_declines():
    """In doubt the owner was not asked; where the file is stays with the owner."""
    assert decide(FILE, None) == AdmissionDecision(False, "its owner's file cannot be read")


OBJECTIONS = (
    Objection(Condition.OTHER_SSID, "the WiFi network 'neighbours' is not among ssids", 600.0),
    Objection(Condition.TOO_HOT, "it has 81 °C, it may have 70 °C", 120.0),
)


def test_preferences_decline_with_the_most_lasting_objection():
    """The coordinator hears which preferences are missed and when to ask again, and nothing of what was found."""
    verdict = decide(parse_admission_mode("preferences"), None, OBJECTIONS)
    assert verdict == AdmissionDecision(False, "other ssid, too hot", Condition.OTHER_SSID, 600.0)
    assert decide(parse_admission_mode("preferences"), None, ()) == AdmissionDecision(True)


@pytest.mark.parametrize(("text", "accept"), [("always", True), ("never", False), ("file:/order", True)])
def test_any_other_order_overrules_the_preferences(text, accept):
    """The owner's last word is the last word."""
    assert decide(parse_admission_mode(text), "accept", OBJECTIONS).accept is accept


@given(st.text())
def test_any_other_file_declines(text):
    """Only the word itself is consent."""
    first = (text.splitlines() or [""])[0].split()
    verdict = decide(FILE, text)
    assert verdict.accept == (first[:1] == ["accept"])
    assert verdict.accept or verdict.why
