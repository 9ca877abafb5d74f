"""The training plan of a work request, and the encodings that carry differences."""

from __future__ import annotations

import pytest

from fedpatch.shared.wire.messages import ENCODINGS, TrainPlan, is_delta


@pytest.mark.parametrize(
    ("num_examples", "epochs", "steps", "expected"),
    [
        pytest.param(100, 1, 0, 5, id="one-epoch"),
        pytest.param(100, 3, 0, 15, id="three-epochs"),
        pytest.param(109, 1, 0, 5, id="rounded-down"),
        pytest.param(111, 1, 0, 6, id="rounded-up"),
        pytest.param(1, 2, 0, 2, id="less-than-a-batch"),
        pytest.param(100, 3, 7, 7, id="steps-given"),
    ],
)
def test_steps_for_examples_of_a_device(num_examples, epochs, steps, expected):
    plan = TrainPlan("sgd", learning_rate=0.1, batch_size=20, epochs=epochs, steps=steps)
    assert plan.steps_for(num_examples) == expected


def test_is_delta_is_true_of_delta_encodings_only():
    assert {encoding for encoding in ENCODINGS if is_delta(encoding)} == {"delta-bf16", "delta-int8", "delta-int4"}
