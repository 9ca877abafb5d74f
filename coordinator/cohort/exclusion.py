"""Exclusion: the offences after which a run does not ask a device again.

The engine requests ExcludeDevice, and its effect is on disk before a message or a line shows the refusal, so that a coordinator
that resumes the run excludes the device too.
"""

from __future__ import annotations

from fedpatch.coordinator.cohort.offences import OFFENCES


def excludes(reason: str) -> bool:
    """Return whether a run excludes a device whose update is refused for this reason: the reason is an offence.

    Example:
        >>> excludes("not_finite"), excludes("late")
        (True, False)
    """
    return ("refused", reason) in OFFENCES
