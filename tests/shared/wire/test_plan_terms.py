"""Terms of a plan that do not fit the other settings, the optimizer or the patch are named with what they conflict with."""

from __future__ import annotations

from typing import Any

import pytest

from fedpatch.shared.errors import UsageError
from fedpatch.shared.wire.messages import TrainPlan
from fedpatch.shared.wire.plan_terms import (
    CONTROL,
    PersonalCopy,
    make_terms,
    parse_personal,
    require_fitting,
    term_problems,
)

SETTINGS: dict[str, Any] = dict(prox=0.0, phases="", personal="", finish="", private="affine", epochs=1, steps=0)


@pytest.mark.parametrize(
    ("changes", "conflicts"),
    [
        ({}, []),
        ({"phases": "private:1,public:1"}, []),
        ({"prox": 0.1, "personal": "ditto:1"}, []),
        ({"phases": "public:1", "steps": 5}, [("phases", "steps")]),
        ({"phases": "public:1", "epochs": 2}, [("phases", "steps")]),
        ({"phases": "public:1", "personal": "ditto:1"}, [("personal", "phases")]),
        ({"finish": "private:1", "personal": "ditto:1"}, [("finish", "personal")]),
        ({"prox": 0.1, "personal": "pfedme:1"}, [("prox", "personal")]),
        ({"phases": "private:1,public:1", "private": "none"}, [("phases", "private")]),
        ({"finish": "private:1", "private": "none"}, [("finish", "private")]),
        ({"finish": "all:1", "private": "none"}, []),
        ({"phases": "private:2"}, [("phases", "private")]),
        ({"phases": "no phase", "private": "none"}, []),
    ],
)
def test_terms_that_do_not_fit_are_named_with_the_setting_that_they_conflict_with(changes, conflicts):
    found = list(term_problems(**{**SETTINGS, **changes}))
    assert [(name, other) for name, _, other in found] == conflicts
    assert all("leave" in why or "set private" in why or "add public" in why for _, why, _ in found)


@pytest.mark.parametrize("text", ["ditto", "fedrep:1", "ditto:0", "ditto:-1", "ditto:nan", "pfedme:1000000.5"])
def test_text_that_is_no_personal_copy_is_refused(text):
    with pytest.raises(UsageError, match=r"is no personal copy; write ditto:LAMBDA or pfedme:LAMBDA, such as"):
        parse_personal(text)
    assert parse_personal("pfedme:1e6") == PersonalCopy("pfedme", 1e6)


def plan(rate: float = 0.5, optimizer: str = "sgd", moments: tuple[str, ...] = (), **terms: Any) -> TrainPlan:
    terms = make_terms(**{"prox": 0.0, **terms})
    return TrainPlan(optimizer, learning_rate=rate, batch_size=20, epochs=1, moments=moments, **terms)


@pytest.mark.parametrize(
    ("made", "private", "words"),
    [
        (plan(phases="private:1,public:1"), "b", None),
        (plan(phases="private:1,public:1"), "", "the phase private has nothing to train; leave it out of phases"),
        (plan(phases="public:1"), "ab", "the phase public has nothing to train; leave it out of phases"),
        (plan(finish="private:1"), "", "the phase private has nothing to train; leave it out of finish"),
        (plan(finish="all:1"), "ab", None),
        (plan(moments=(CONTROL,)), "b", None),
        (plan(moments=(CONTROL,), prox=0.1), "b", "prox: control variates .* leave prox out"),
        (plan(moments=(CONTROL,), phases="public:1"), "b", "phases: control variates .* leave phases out"),
        (plan(moments=(CONTROL,), personal="ditto:1"), "b", "personal: control variates .* leave personal out"),
        (plan(0.5, personal="pfedme:2"), "b", None),
        (plan(2.0, personal="pfedme:0.5"), "b", None),
        (plan(0.5, personal="pfedme:3"), "b", r"LAMBDA = 3 times the learning rate 0\.5 is above 1"),
        (plan(0.5, "adam", personal="pfedme:2"), "b", "pfedme is defined for SGD on the devices"),
        (plan(0.5, "adam", personal="ditto:3"), "b", None),
    ],
)
def test_plan_with_a_phase_or_copy_that_cannot_be_trained_is_refused(made, private, words):
    """The values that can learn are a and b."""
    if words is None:
        require_fitting(made, "ab", private)
        return
    with pytest.raises(UsageError, match=words):
        require_fitting(made, "ab", private)
