"""How much training a plan asks for, and whether that is more than the device's owner allows. No numpy."""

from __future__ import annotations

from fedpatch.shared.wire.messages import TrainPlan


def why_too_long(plan: TrainPlan, num_examples: int, *, max_steps: int, max_epochs: int, measured: bool = False) -> str:
    """Which limit of the owner a plan exceeds, in words; "" where it exceeds none.

    Args:
        plan: The plan of one work request.
        num_examples: Training examples of this device.
        max_steps: Most minibatches that one request may ask for, however it counts them.
        max_epochs: Most passes over the data that one request may ask for, however it counts them.
        measured: Whether what learning alone gives is measured too, which takes as many steps again.
    """
    times, twice = (2, ", those of learning alone among them") if measured else (1, "")
    steps = plan.steps_for(num_examples) * times
    size = min(plan.batch_size, num_examples)
    epochs = plan.epochs * times if not plan.steps else -(-steps * size // max(1, num_examples))
    found = [
        f"{asked} {unit} are asked for{twice}; the owner's limit is {name} = {most}"
        for asked, unit, name, most in (
            (epochs, "epochs", "max_epochs", max_epochs),
            (steps, "training steps", "max_steps", max_steps),
        )
        if asked > most
    ]
    # In the unit of the plan, where both are exceeded.
    return found[-1 if plan.steps else 0] if found else ""
