"""The owner's limit to the training of one request."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fedpatch.device_agent.policy.plan_limit import why_too_long
from fedpatch.shared.wire.messages import TrainPlan

PLAN = TrainPlan("sgd", 0.1, 5)


@pytest.mark.parametrize(
    ("plan", "limit"),
    [
        (replace(PLAN, steps=100_000_000), "max_steps = 100000"),
        (replace(PLAN, steps=100_001), "max_steps = 100000"),
        (replace(PLAN, steps=100_000), ""),
        (replace(PLAN, epochs=101), "max_epochs = 100"),
        (replace(PLAN, batch_size=10, epochs=100), ""),
        (replace(PLAN, steps=5, epochs=101), ""),
        (replace(PLAN, steps=100, batch_size=1_000_000), ""),
        (replace(PLAN, steps=101, batch_size=1_000_000), "max_epochs = 100"),
        (replace(PLAN, steps=99_000, batch_size=10), "max_epochs = 100"),
        (replace(PLAN, batch_size=1, epochs=100), "max_steps = 100000"),
    ],
)
def test_a_plan_is_within_the_owners_limits_or_names_the_one_it_exceeds(plan, limit):
    count, words = why_too_long(plan, 6000, max_steps=100_000, max_epochs=100)
    assert limit in words
    assert bool(limit) == bool(words) == bool(count)


@pytest.mark.parametrize(
    ("plan", "limit"),
    [
        (replace(PLAN, steps=50_001, batch_size=1), "max_steps = 100000"),
        (replace(PLAN, steps=51, batch_size=6000), "max_epochs = 100"),
        (replace(PLAN, epochs=51), "max_epochs = 100"),
        (replace(PLAN, steps=50), ""),
    ],
)
def test_a_plan_counts_twice_where_learning_alone_is_measured_too(plan, limit):
    assert why_too_long(plan, 6000, max_steps=100_000, max_epochs=100) == (0, "")
    count, words = why_too_long(plan, 6000, max_steps=100_000, max_epochs=100, measured=True)
    assert limit in words
    assert bool(limit) == bool(words) == bool(count)
