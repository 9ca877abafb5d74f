"""Losses and gradients without autograd equal those with autograd."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.functional import mse_loss

from fedpatch.shared.tasks.bundled.classification import cross_entropy
from fedpatch.simulator.kernels.losses import KEPT_STEPS, loss_of

CLASSES = 4
STEPS = st.lists(st.tuples(st.integers(1, 6), st.booleans()), max_size=3 * KEPT_STEPS)


def squares(outputs, targets):
    """A loss whose gradient only autograd can compute."""
    return mse_loss(outputs, torch.eye(CLASSES, dtype=outputs.dtype)[targets])


@pytest.mark.parametrize("function", [cross_entropy, squares])
@given(STEPS, STEPS)
def test_losses_are_summed_and_gradients_are_those_of_autograd(function, first, second):
    loss = loss_of(function)
    for steps in (first, second):
        expected = 0.0
        for examples, counts in steps:
            outputs = (3 * torch.randn(examples, CLASSES, dtype=torch.float64)).requires_grad_()
            targets = torch.randint(CLASSES, (examples,))
            value = function(outputs, targets)
            (grad,) = torch.autograd.grad(value, outputs)
            expected += value.item() * counts
            into = torch.empty_like(grad)
            with torch.inference_mode():
                assert loss.gradient(outputs.detach(), targets, into, counts=counts) is into
            torch.testing.assert_close(into, grad)
        assert loss.total() == pytest.approx(expected)
    assert loss.total() == 0.0


def test_outputs_far_apart_have_a_finite_loss():
    loss, into = loss_of(cross_entropy), torch.empty(1, 2)
    loss.gradient(torch.tensor([[0.0, 1000.0]]), torch.tensor([0]), into)
    assert loss.total() == pytest.approx(1000.0)
    assert into.tolist() == [[-1.0, 1.0]]


def test_the_loss_follows_the_precision_of_the_outputs():
    loss = loss_of(cross_entropy)
    for dtype in (torch.float64, torch.float32, torch.float64):
        into = torch.empty(2, CLASSES, dtype=dtype)
        loss.gradient(torch.zeros(2, CLASSES, dtype=dtype), torch.tensor([1, 3]), into)
        assert loss.total() == pytest.approx(torch.tensor(CLASSES).log().item())
