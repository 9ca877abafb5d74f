"""The owner's limit to the training of one request, in steps and in passes over the data."""

from __future__ import annotations

from functools import partial

from fedpatch.shared.wire.messages import TrainPlan
from fedpatch.shared.wire.plan_terms import DITTO


def why_too_long(
    plan: TrainPlan,
    num_examples: int,
    *,
    max_steps: int,
    max_epochs: int,
    measured: bool = False,
    hides_examples: bool = False,
) -> tuple[int, str]:
    """Name the limit of the owner that a plan exceeds.

    Args:
        num_examples: Training examples of this device.
        max_steps: Most minibatches that one request may ask for, in any unit of its plan.
        max_epochs: Most passes over the data that one request may ask for, in any unit of its plan.
        measured: Whether learning alone is measured too, which takes as many steps again.
        hides_examples: Whether the answer depends only on the powers of 4 next to the number of examples: the plan must be
            within the limits for both. Else a few plans near a limit would show the number.

    Returns:
        The steps or epochs that are asked for, and the words after this number, which do not depend on `num_examples`; 0 and
        "" where no limit is exceeded.
    """
    if hides_examples:
        least = 4 ** ((max(1, num_examples).bit_length() - 1) // 2)
        limits = partial(why_too_long, plan, max_steps=max_steps, max_epochs=max_epochs, measured=measured)
        return next((one for one in map(limits, (least, 4 * least)) if one[1]), (0, ""))
    ditto = bool(plan.personal and plan.personal.kind == DITTO)
    asked = {
        "learning alone": plan.parts * measured,
        "the personal copy": plan.parts * ditto,
        "finish": plan.finish or (),
    }
    others = [word for word, parts in asked.items() if parts]
    also = f", those of {' and '.join(others)} among them" if others else ""
    parts = sum(asked.values(), plan.parts)
    steps = sum(part.steps_for(num_examples, plan.batch_size) for part in parts)
    size = min(plan.batch_size, num_examples)
    in_steps = any(part.steps for part in parts)
    passes = -(-steps * size // max(1, num_examples))
    epochs = passes if in_steps else sum(part.epochs for part in parts)
    found = [
        (count, f"{unit} are asked for{also}; the owner's limit is {name} = {most}")
        for count, unit, name, most in (
            (epochs, "epochs", "max_epochs", max_epochs),
            (steps, "training steps", "max_steps", max_steps),
        )
        if count > most
    ]
    # If both limits are exceeded, name the one in the plan's unit.
    return found[-1 if in_steps else 0] if found else (0, "")
