"""The times at which the usage of the current work is noted on disk.

A device that loses its power forgets less than these limits; each note is a write to the memory card.
"""

from __future__ import annotations

from fedpatch.device_agent.policy.usage import Usage

NOTE_BYTES = 4 * 2**20
"""Traffic after which the usage of the current work is noted."""

NOTE_IDLE_BYTES = 64 * 2**10
"""The bound of traffic without work: its few messages must not write to the memory card each time."""

NOTE_TRAINING_S = 300.0
"""Seconds of training after which they are noted. At most this much of a training before midnight counts on the next day."""


def is_note_due(spent: Usage, *, working: bool) -> bool:
    """Return whether usage is noted now: at the end of a job, and at the limits above.

    Args:
        spent: Usage since the last note.
        working: Whether there is a current job.
    """
    if spent.traffic_bytes >= NOTE_BYTES or spent.training_s >= NOTE_TRAINING_S:
        return True
    return not working and bool(spent.rounds or spent.training_s or spent.traffic_bytes >= NOTE_IDLE_BYTES)
