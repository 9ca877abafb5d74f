"""Whether the device works, steadied: a moment's loss of what its owner demands stops nothing, its return starts nothing.

    WILLING  -- objections for `loss_after_s` -->  UNWILLING  -- none for `return_after_s` -->  WILLING

A plug that flaps is missed, too: moments without objections are not counted, but only `loss_after_s` without any in a row
begin the count anew. So a single short loss stops nothing, and one that comes back again and again does.

While unwilling, the facts are judged by stricter preferences, so that a value that trembles around its limit does not
change the device's mind. What ends by the clock, as quiet hours do, does not tremble: it is over when it is over. What work
in hand makes of a loss is its owner's choice: `on_loss`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import StrEnum

from fedpatch.device_agent.policy.preference_check import Objection, Preferences
from fedpatch.shared.wire.reason_codes import Condition

LOSS_TOLD_AFTER_S = 1.0
"""Beyond `loss_after_s`: until then what is missed has been looked at again, and presence tells of it if it lasts."""


class OnLoss(StrEnum):
    """What becomes of work in hand."""

    FINISH = "finish"
    PAUSE = "pause"
    ABANDON = "abandon"


@dataclass(frozen=True)
class ConditionLost:
    """The device is no longer willing; `action` is what to do with work in hand. A pause ends by Regained or PauseExpired."""

    objections: tuple[Objection, ...]
    action: OnLoss


@dataclass(frozen=True)
class ConditionRestored:
    """The device is willing again, after `lost_s`: paused work goes on."""

    lost_s: float


@dataclass(frozen=True)
class PauseExpired:
    """The pause has lasted as long as its owner allows: the work is to be given up."""

    objections: tuple[Objection, ...]


Change = ConditionLost | ConditionRestored | PauseExpired


class Hysteresis:
    """Drive it with `observe`, at the latest at `next_deadline`; `now` is monotonic, in seconds.

    The first observation decides at once: there is nothing yet to be steady about. What is missed counts from look to look:
    `loss_after_s` in all, unless nothing was missed for as long in a row.
    """

    def __init__(self, preferences: Preferences) -> None:
        self.willing = True
        # What is missed; while unwilling and nothing is, what was missed last.
        self.reasons: tuple[Objection, ...] = ()
        self._usual, self._stricter = preferences, preferences.stricter()
        self._terms = preferences.settings
        self._fresh = True
        # While willing: what losses shortly before have left of `loss_after_s`, and when it is used up by the present one.
        self._left_s = self._terms.loss_after_s
        self._counts_at: float | None = None
        self._met_since = -math.inf
        # While unwilling: since when nothing is missed but what ends by the clock.
        self._steady_since: float | None = None
        self._missing = False
        # When the first of what ends by the clock does.
        self._ends_at: float | None = None
        self._lost_at = 0.0
        self._pausing = False
        self._told: Condition | None = None

    @property
    def preferences(self) -> Preferences:
        """Those to judge the next facts by."""
        return self._usual if self.willing else self._stricter

    @property
    def unwilling(self) -> Condition | None:
        """What presence tells: the same word for as long as it is true, None while willing."""
        return None if self.willing else self._told

    def observe(self, objections: tuple[Objection, ...], now: float, *, working: bool) -> Change | None:
        """What the facts say now, by `preferences`; `working` is whether there is work in hand that could be paused."""
        fresh, self._fresh = self._fresh, False
        self._missing = bool(objections)
        self._ends_at = min((now + one.retry_after_s for one in objections if one.exact), default=None)
        if objections or self.willing:
            self.reasons = objections
        if self.willing:
            return self._while_willing(now, working=working, at_once=fresh)
        return self._while_unwilling(objections, now, working=working)

    def answer(self, objections: tuple[Objection, ...], now: float) -> tuple[Objection, ...]:
        """What there is to say against an offer whose facts were judged just now; nothing: the device accepts."""
        if self.willing:
            return self._perhaps_for_a_moment(objections)
        if objections:
            return objections
        steady_since = now if self._steady_since is None else self._steady_since
        rest_s = max(0.0, steady_since + self._terms.return_after_s - now)
        words = f"what was missed is met again, and must be for {rest_s:.0f} s more"
        return (Objection(self.reasons[0].condition, words, rest_s),)

    def next_deadline(self) -> float | None:
        """When the facts should be looked at again, whatever else happens; None: time alone changes nothing."""
        wanted = [one for one in (self._counts_at, self._ends_at) if one is not None]
        if self._steady_since is not None and not self._missing:
            wanted.append(self._steady_since + self._terms.return_after_s)
        if self._pausing:
            wanted.append(self._lost_at + self._terms.pause_limit_s)
        return min(wanted, default=None)

    def _while_willing(self, now: float, *, working: bool, at_once: bool) -> Change | None:
        lasts = self._has_lasted(now)
        if not self.reasons or not (lasts or at_once):
            return None
        self.willing, self._lost_at = False, now
        self._left_s, self._counts_at = self._terms.loss_after_s, None
        self._told = self.reasons[0].condition
        self._steady_since = -math.inf if all(one.exact for one in self.reasons) else None
        action = self._action()
        self._pausing = working and action is OnLoss.PAUSE
        return ConditionLost(self.reasons, action)

    def _has_lasted(self, now: float) -> bool:
        """Whether what is missed now, if anything is, has been for long enough to count."""
        if not self.reasons:
            if self._counts_at is not None:
                self._left_s, self._counts_at, self._met_since = max(0.0, self._counts_at - now), None, now
            return False
        if self._counts_at is None:
            if now >= self._met_since + self._terms.loss_after_s:
                self._left_s = self._terms.loss_after_s
            self._counts_at = now + self._left_s
        return now >= self._counts_at

    def _perhaps_for_a_moment(self, objections: tuple[Objection, ...]) -> tuple[Objection, ...]:
        """What may be a loose plug is soon known, but not told: a device that stays willing is silent about it."""
        soon_s = self._terms.loss_after_s + LOSS_TOLD_AFTER_S
        missed = {one.condition for one in self.reasons}
        told = (
            replace(one, retry_after_s=min(one.retry_after_s, soon_s))
            if one.condition in missed and not one.exact
            else one
            for one in objections
        )
        return tuple(sorted(told, key=lambda one: -one.retry_after_s))

    def _while_unwilling(self, objections: tuple[Objection, ...], now: float, *, working: bool) -> Change | None:
        self._pausing = self._pausing and working
        if objections and self._told not in {one.condition for one in objections}:
            self._told = objections[0].condition
        if not all(one.exact for one in objections):
            self._steady_since = None
        elif self._steady_since is None:
            self._steady_since = now
        steady = self._steady_since is not None and now >= self._steady_since + self._terms.return_after_s
        if steady and not objections:
            self.willing, self._pausing, self._steady_since, self.reasons = True, False, None, ()
            return ConditionRestored(now - self._lost_at)
        if self._pausing and now >= self._lost_at + self._terms.pause_limit_s:
            self._pausing = False
            return PauseExpired(self.reasons)
        return None

    def _action(self) -> OnLoss:
        """A pause that is sure to outlast its limit would only keep the coordinator waiting."""
        chosen = OnLoss(self._terms.on_loss)
        in_vain = any(one.exact and one.retry_after_s > self._terms.pause_limit_s for one in self.reasons)
        return OnLoss.ABANDON if chosen is OnLoss.PAUSE and in_vain else chosen
