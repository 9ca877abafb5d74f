"""How much training a plan asks for, and whether that is more than the device's owner allows. No numpy."""

from __future__ import annotations

from shared.messages import TrainPlan


def why_too_long(plan: TrainPlan, num_examples: int, *, max_steps: int, max_epochs: int) -> str:
    """Which limit of the owner a plan exceeds, in words; "" where it exceeds none.

    Args:
        plan: The plan of one work request.
        num_examples: Training examples of this device.
        max_steps: Most minibatches that one request may ask for, however it counts them.
        max_epochs: Most passes over the data that a request may ask for that counts in epochs.
    """
    if not plan.steps and plan.epochs > max_epochs:
        return f"{plan.epochs} epochs are asked for; the owner's limit is max_epochs = {max_epochs}"
    steps = plan.steps_for(num_examples)
    if steps > max_steps:
        return f"{steps} training steps are asked for; the owner's limit is max_steps = {max_steps}"
    return ""
