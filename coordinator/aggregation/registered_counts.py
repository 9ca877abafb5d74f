"""Checks of the examples and members of an update against the numbers that its device has registered."""

from __future__ import annotations

from fedpatch.shared.errors import UpdateRefused
from fedpatch.shared.wire.reason_codes import RefuseReason

EXAMPLES_FACTOR, EXAMPLES_MARGIN = 2, 100
"""An update may have EXAMPLES_FACTOR times the registered examples of its device and EXAMPLES_MARGIN more, since data grow."""


def check_members(members: int, registered: int | None, most: int) -> None:
    """Raise UpdateRefused("num_examples") for more members than the run allows, or far more than the device has registered.

    Args:
        members: Devices whose mean the update is.
        registered: Members that the device registered; None: unknown.
        most: The run's `max_members`.
    """
    if members > most:
        detail = f"the mean of {members} devices; max_members is {most}"
        raise UpdateRefused(RefuseReason.NUM_EXAMPLES, detail)
    if registered is not None and members > EXAMPLES_FACTOR * registered:
        detail = f"the mean of {members} devices, registered {registered}"
        raise UpdateRefused(RefuseReason.NUM_EXAMPLES, detail)


def check_registered(num_examples: int, registered: int | None) -> None:
    """Raise UpdateRefused("num_examples") for far more examples than the device has registered (None: unknown)."""
    if registered is not None and num_examples > EXAMPLES_FACTOR * registered + EXAMPLES_MARGIN:
        detail = f"trained on {num_examples} examples, registered {registered}"
        raise UpdateRefused(RefuseReason.NUM_EXAMPLES, detail)
