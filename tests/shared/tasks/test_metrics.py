"""The metrics that tasks can choose from."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedpatch.shared.errors import DataError
from fedpatch.shared.tasks import metrics
from fedpatch.shared.tasks.bundled import classification

CASES = st.integers(0, 2**32 - 1).map(np.random.default_rng)


def _classified(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    n, classes = int(rng.integers(1, 30)), int(rng.integers(1, 6))
    return rng.normal(size=(n, classes)), rng.integers(0, classes, n)


@given(CASES)
def test_accuracy_is_that_of_the_tasks_that_ship(rng):
    outputs, targets = _classified(rng)
    found = metrics.accuracy(outputs, targets)
    assert found == pytest.approx(classification.accuracy(torch.from_numpy(outputs), torch.from_numpy(targets)))
    assert metrics.accuracy(torch.from_numpy(outputs).requires_grad_(), torch.from_numpy(targets)) == found


@given(CASES)
def test_macro_f1_is_that_of_scikit_learn(rng):
    scores = pytest.importorskip("sklearn.metrics", reason="needs scikit-learn (pip install 'fedpatch[demo]')")
    outputs, targets = _classified(rng)
    expected = scores.f1_score(targets, outputs.argmax(axis=1), average="macro", zero_division=0.0)
    assert metrics.macro_f1(outputs, targets) == pytest.approx(expected)


@pytest.mark.parametrize("extra_axis", [False, True])
def test_errors_by_hand(extra_axis):
    """Errors 3 and 4: their mean is 3.5, the root of the mean of their squares sqrt(12.5)."""
    outputs, targets = np.array([1.0, 6.0], np.float32), np.array([4.0, 2.0], np.float32)
    if extra_axis:
        outputs = outputs[:, None]
    assert metrics.mae(outputs, targets) == 3.5
    assert metrics.rmse(torch.from_numpy(outputs), torch.from_numpy(targets)) == pytest.approx(12.5**0.5)


@pytest.mark.parametrize("metric", [metrics.mae, metrics.rmse, metrics.accuracy, metrics.macro_f1])
@pytest.mark.parametrize(("outputs", "targets"), [((4, 2), (2, 4)), ((4, 2), (3,)), ((0, 2), (0,))])
def test_outputs_and_targets_of_different_shape_are_refused(metric, outputs, targets):
    with pytest.raises(DataError, match="shape"):
        metric(np.zeros(outputs), np.zeros(targets))
