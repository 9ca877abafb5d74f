"""The training plan of a work request, and the encodings that carry differences."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fedpatch.shared.errors import UsageError
from fedpatch.shared.wire.codec import from_plain, to_plain
from fedpatch.shared.wire.messages import ENCODINGS, TrainPlan, is_delta
from fedpatch.shared.wire.plan_terms import PLAN_TERMS, make_terms, parse_personal, parse_phases


@pytest.mark.parametrize(
    ("num_examples", "epochs", "steps", "expected"),
    [
        (300, 1, 0, 15),
        (150, 1, 0, 8),
        (125, 1, 0, 6),
        (300, 3, 0, 45),
        (300, 3, 10, 10),
        (109, 1, 0, 5),
        (111, 1, 0, 6),
        (3, 1, 0, 1),
        (3, 2, 0, 2),
        (300, 0, 0, 0),
    ],
)
def test_steps_for_examples_of_a_device(num_examples, epochs, steps, expected):
    """The paper's K = round(n / B) * E (MNIST, W=200 and 400: 15 and 8; CIFAR10, W=400: 6), unless steps are given."""
    plan = TrainPlan("sgd", learning_rate=0.1, batch_size=20, epochs=epochs, steps=steps)
    assert plan.steps_for(num_examples) == expected


def test_plan_without_terms_has_no_key_more_on_the_wire():
    plan = TrainPlan("sgd", learning_rate=0.1, batch_size=20)
    assert not set(to_plain(plan)) & set(PLAN_TERMS)
    assert (plan.terms, from_plain(to_plain(plan), TrainPlan)) == ({}, plan)


def test_plan_with_terms_has_their_keys_on_the_wire():
    plan = replace(
        TrainPlan("sgd", learning_rate=0.1, batch_size=20),
        **make_terms(0.5, "private:2,public:30s", "ditto:0.1", "private:5"),
    )
    assert set(PLAN_TERMS) <= set(to_plain(plan))
    assert from_plain(to_plain(plan), TrainPlan) == plan
    assert plan.plain == TrainPlan("sgd", learning_rate=0.1, batch_size=20)


def test_steps_of_phases_are_added():
    plan = TrainPlan("sgd", learning_rate=0.1, batch_size=20, phases=parse_phases("private:2,public:30s,all"))
    assert plan.steps_for(100) == 2 * 5 + 30 + 5


@pytest.mark.parametrize("text", ["head:1", "all:0", "all:1,", "all:1e3", "all,all,all,all,all", "public:-1"])
def test_other_texts_are_no_phases(text):
    with pytest.raises(UsageError, match="such as private:5,public:1"):
        parse_phases(text)


@pytest.mark.parametrize("text", ["ditto", "ditto:0", "ditto:x", "apfl:0.1", "ditto:nan", "ditto:1e7"])
def test_other_texts_are_no_personal_copy(text):
    with pytest.raises(UsageError, match=r"such as ditto:0\.1"):
        parse_personal(text)


def test_is_delta_is_true_of_delta_encodings_only():
    assert {encoding for encoding in ENCODINGS if is_delta(encoding)} == {"delta-bf16", "delta-int8"}
