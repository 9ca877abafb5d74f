"""Hysteresis of the owner's conditions: a condition must fail for a while before work stops, and hold before it resumes.

    WILLING  -- objections for `loss_after_s` -->  UNWILLING  -- none for `return_after_s` -->  WILLING

A plug that flaps counts too: times without objections are not counted, but only `loss_after_s` without any in a row resets the
count. So a single short loss stops nothing, and repeated ones do.

While unwilling, the facts are compared with stricter preferences, so that a value that trembles around its limit changes
nothing. A condition that ends by the clock, as quiet hours do, does not tremble: it is over when it is over. The owner's
setting `on_loss` decides about the running work.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import StrEnum

from fedpatch.device_agent.policy.preferences import Objection, Preferences
from fedpatch.shared.wire.reason_codes import Condition

LOSS_TOLD_AFTER_S = 1.0
"""Beyond `loss_after_s`: until then the facts have been read again, and presence has a lasting loss."""


class OnLoss(StrEnum):
    """Treatment of the work in progress when a preference is no longer met."""

    FINISH = "finish"
    PAUSE = "pause"
    ABANDON = "abandon"


@dataclass(frozen=True)
class ConditionLost:
    """The device is no longer willing; `action` is for the work in hand. ConditionRestored or PauseExpired end a pause."""

    objections: tuple[Objection, ...]
    action: OnLoss


@dataclass(frozen=True)
class ConditionRestored:
    """The device is willing again after `lost_s` seconds: paused work resumes."""

    lost_s: float


@dataclass(frozen=True)
class PauseExpired:
    """The pause has lasted as long as the owner allows: the work is given up."""

    objections: tuple[Objection, ...]


Change = ConditionLost | ConditionRestored | PauseExpired


class Hysteresis:
    """Call `observe` with new objections, at the latest at `next_deadline`; `now` is monotonic seconds.

    The first observation decides at once. Losses add up from look-up to look-up to `loss_after_s`, unless there was none for as
    long in a row.

    Attributes:
        willing: Whether the device takes work.
        reasons: Objections; while unwilling without any, the last ones.
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
        self._published: Condition | None = None

    @property
    def preferences(self) -> Preferences:
        """Preferences to compare the next facts with."""
        return self._usual if self.willing else self._stricter

    @property
    def unwilling(self) -> Condition | None:
        """The condition that presence reports, unchanged for as long as it is true; None while willing."""
        return None if self.willing else self._published

    def observe(self, objections: tuple[Objection, ...], now: float, *, working: bool) -> Change | None:
        """Take the objections of this moment, and return the change that they make.

        Args:
            objections: Objections by `preferences`.
            now: Monotonic seconds.
            working: Whether there is work in hand that could be paused.
        """
        fresh, self._fresh = self._fresh, False
        self._missing = bool(objections)
        self._ends_at = min((now + one.retry_after_s for one in objections if one.exact), default=None)
        if objections or self.willing:
            self.reasons = objections
        if self.willing:
            return self._while_willing(now, working=working, at_once=fresh)
        return self._while_unwilling(objections, now, working=working)

    def answer(self, objections: tuple[Objection, ...], now: float) -> tuple[Objection, ...]:
        """Objections to a request whose facts were looked up just now; none: the device accepts."""
        if self.willing:
            return self._perhaps_for_a_moment(objections)
        if objections:
            return objections
        steady_since = now if self._steady_since is None else self._steady_since
        rest_s = max(0.0, steady_since + self._terms.return_after_s - now)
        words = f"what was missed is met again, and must be for {rest_s:.0f} s more"
        return (Objection(self.reasons[0].condition, words, rest_s),)

    def next_deadline(self) -> float | None:
        """When facts should be looked up again at the latest; None where time alone changes nothing."""
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
        self._published = self.reasons[0].condition
        self._steady_since = -math.inf if all(one.exact for one in self.reasons) else None
        action = self._action()
        self._pausing = working and action is OnLoss.PAUSE
        return ConditionLost(self.reasons, action)

    def _has_lasted(self, now: float) -> bool:
        """Return whether the objections of this moment, if there are any, have lasted long enough to count."""
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
        """Shorten the retry times of objections that may pass in seconds, such as a loose plug."""
        soon_s = self._terms.loss_after_s + LOSS_TOLD_AFTER_S
        missed = {one.condition for one in self.reasons}
        lasting = (
            replace(one, retry_after_s=min(one.retry_after_s, soon_s))
            if one.condition in missed and not one.exact
            else one
            for one in objections
        )
        return tuple(sorted(lasting, key=lambda one: -one.retry_after_s))

    def _while_unwilling(self, objections: tuple[Objection, ...], now: float, *, working: bool) -> Change | None:
        self._pausing = self._pausing and working
        if objections and self._published not in {one.condition for one in objections}:
            self._published = objections[0].condition
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
        """The action for the work in hand: a pause that is sure to outlast its limit is an abandon at once."""
        chosen = OnLoss(self._terms.on_loss)
        in_vain = any(one.exact and one.retry_after_s > self._terms.pause_limit_s for one in self.reasons)
        return OnLoss.ABANDON if chosen is OnLoss.PAUSE and in_vain else chosen
