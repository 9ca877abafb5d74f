"""Over-selection: a round invites more devices than it is meant for, because some decline or drop out.

Bonawitz et al. 2019, Towards Federated Learning at Scale: 130 %.
"""

from __future__ import annotations

import math

from fedpatch.coordinator.cohort.quorum import ROUNDING


def invitations(meant: float, over_select: float) -> int:
    """Return the number of devices to invite.

    Args:
        meant: Devices that the round is meant for.
        over_select: Invitations per device that the round is meant for, at least 1.

    Example:
        >>> invitations(10, 1.3), invitations(50, 1.1)
        (13, 55)
    """
    return math.ceil(meant * over_select - ROUNDING)
