"""The current work when a preference is no longer met: it is finished, paused up to `pause_limit_s`, or abandoned.

A pause that is sure to exceed its limit, such as one for quiet hours, is not begun: the work is abandoned at once.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

from fedpatch.device_agent.policy.objections import Objection


class OnLoss(StrEnum):
    """Treatment of the work in progress when a preference is no longer met."""

    FINISH = "finish"
    PAUSE = "pause"
    ABANDON = "abandon"


def action_on_loss(chosen: OnLoss, objections: Iterable[Objection], pause_limit_s: float) -> OnLoss:
    """Return the action for the current work.

    Args:
        chosen: The owner's setting `on_loss`.
    """
    in_vain = any(one.exact and one.retry_after_s > pause_limit_s for one in objections)
    return OnLoss.ABANDON if chosen is OnLoss.PAUSE and in_vain else chosen
