"""The number of training examples of an owner who hides it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fedpatch.device_agent.policy.examples_in_presence import with_hidden_examples
from fedpatch.shared.wire.messages import TaskCapability

TASK = TaskCapability("digits", "5c" * 32, 0)


@pytest.mark.parametrize(("examples", "told"), [(0, 0), (1, 1), (2, 1), (60_000, 1)])
def test_number_of_examples_is_1_where_there_are_some_and_the_rest_stays(examples, told):
    assert with_hidden_examples((replace(TASK, num_examples=examples),)) == (replace(TASK, num_examples=told),)
