"""Loss and metric of the classifying tasks, on numbers that are easy to check."""

from __future__ import annotations

import math

import pytest
import torch

from fedpatch.shared.tasks.bundled.classification import accuracy, cross_entropy


def test_cross_entropy_is_the_mean_over_the_batch():
    """Equal logits of four classes cost log 4 per example, whatever the batch."""
    targets = torch.tensor([0, 1, 3])
    assert cross_entropy(torch.zeros(3, 4), targets).item() == pytest.approx(math.log(4))


def test_accuracy_is_the_share_of_right_classes():
    outputs = torch.tensor([[2.0, 1.0], [0.0, 1.0], [5.0, 4.0], [9.0, -9.0]])
    assert accuracy(outputs, torch.tensor([0, 1, 0, 1])) == 0.75
