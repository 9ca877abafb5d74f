"""The memory of the agent's process, hidden from other processes of its user: the training process runs the task's code."""

from __future__ import annotations

import ctypes

_PR_SET_DUMPABLE = 4


def hide_memory() -> None:
    """Forbid other processes of this user to read or change the agent's memory, descriptors and environment in /proc.

    The agent has the network. A task that changes its memory would have it too. The kernel also writes no core dump of it.
    Programs that the agent starts are not hidden.
    """
    ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
