"""Hysteresis: a condition must fail for a while before work stops, and hold for a while before it resumes."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

from fedpatch.device_agent.policy.objections import Objection
from fedpatch.device_agent.policy.pause_limit import PauseTimer
from fedpatch.device_agent.policy.unmet_preferences import Preferences, stricter
from fedpatch.device_agent.policy.work_on_loss import OnLoss, action_on_loss
from fedpatch.shared.wire.reason_codes import Condition

LOSS_TOLD_AFTER_S = 1.0
"""Added to `loss_after_s`: by then the facts have been read again, and presence reports a lasting loss."""


@dataclass(frozen=True)
class ConditionLost:
    """The device is no longer willing; `action` is for the current work. ConditionRestored or PauseExpired end a pause."""

    objections: tuple[Objection, ...]
    action: OnLoss


@dataclass(frozen=True)
class ConditionRestored:
    """The device is willing again after `lost_s` seconds: paused work resumes."""

    lost_s: float


@dataclass(frozen=True)
class PauseExpired:
    """The pause has lasted as long as the owner allows: the work is abandoned."""

    objections: tuple[Objection, ...]


Change = ConditionLost | ConditionRestored | PauseExpired


class Hysteresis:
    """A condition must fail for a while before work stops, and hold before it resumes.

        WILLING  -- objections for `loss_after_s` -->  UNWILLING  -- none for `return_after_s` -->  WILLING

    Short losses, such as those of a loose plug, add up: times without objections do not count, but `loss_after_s` in a row
    without objections resets the sum. So a single short loss stops nothing, but repeated ones do.

    While unwilling, the facts are compared with stricter preferences, so that a value that fluctuates around its limit
    changes nothing. A condition that ends at a known time, such as quiet hours, and the owner's pause do not fluctuate and
    end at once. The owner's setting `on_loss` decides about the running work.

    Call `observe` with new objections, at the latest at `next_deadline`; `now` is monotonic seconds. The first observation
    decides at once. Losses add up over look-ups to `loss_after_s`, unless there was none for that time in a row.

    Attributes:
        willing: Whether the device takes work.
        reasons: Objections; while unwilling without objections, the last ones.
    """

    def __init__(self, preferences: Preferences) -> None:
        self.willing = True
        # The unmet preferences; while unwilling with all preferences met, the last unmet ones.
        self.reasons: tuple[Objection, ...] = ()
        self._usual, self._stricter = preferences, stricter(preferences)
        self._terms = preferences.settings
        self._fresh = True
        # While willing: the rest of `loss_after_s` after recent losses, and the time at which the present loss uses it up.
        self._left_s = self._terms.loss_after_s
        self._counts_at: float | None = None
        self._met_since = -math.inf
        # While unwilling: the time since which all objections are such that end by the clock.
        self._steady_since: float | None = None
        self._missing = False
        # The time at which the first of the objections that end by the clock ends.
        self._ends_at: float | None = None
        self._lost_at = 0.0
        self._pause = PauseTimer(self._terms.pause_limit_s)
        self._published: Condition | None = None

    def use(self, preferences: Preferences) -> None:
        """Compare the next facts with other preferences; a pause and its time stay."""
        self._usual, self._stricter = preferences, stricter(preferences)
        self._terms = preferences.settings
        self._left_s = min(self._left_s, self._terms.loss_after_s)
        self._pause.limit_s = self._terms.pause_limit_s

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
            working: Whether there is current work that could be paused.
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
        """Return the objections to a request, from facts looked up just now; none: the device accepts."""
        if self.willing:
            return self._perhaps_for_a_moment(objections)
        if objections:
            return objections
        steady_since = now if self._steady_since is None else self._steady_since
        rest_s = max(0.0, steady_since + self._terms.return_after_s - now)
        words = f"what was missed is met again, and must be for {rest_s:.0f} s more"
        return (Objection(self.reasons[0].condition, words, rest_s),)

    def next_deadline(self) -> float | None:
        """Return the latest time for the next look-up of facts; None if time alone changes nothing."""
        wanted = [one for one in (self._counts_at, self._ends_at, self._pause.next_deadline()) if one is not None]
        if self._steady_since is not None and not self._missing:
            wanted.append(self._steady_since + self._terms.return_after_s)
        return min(wanted, default=None)

    def _while_willing(self, now: float, *, working: bool, at_once: bool) -> Change | None:
        lasts = self._has_lasted(now)
        if not self.reasons or not (lasts or at_once):
            return None
        self.willing, self._lost_at = False, now
        self._left_s, self._counts_at = self._terms.loss_after_s, None
        self._published = self.reasons[0].condition
        self._steady_since = -math.inf if _ends_at_once(self.reasons) else None
        action = action_on_loss(OnLoss(self._terms.on_loss), self.reasons, self._terms.pause_limit_s)
        if working and action is OnLoss.PAUSE:
            self._pause.begin(now)
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
        if not working:
            self._pause.end()
        if objections and self._published not in {one.condition for one in objections}:
            self._published = objections[0].condition
        if not _ends_at_once(objections):
            self._steady_since = None
        elif self._steady_since is None:
            self._steady_since = now
        steady = self._steady_since is not None and now >= self._steady_since + self._terms.return_after_s
        if steady and not objections:
            self.willing, self._steady_since, self.reasons = True, None, ()
            self._pause.end()
            return ConditionRestored(now - self._lost_at)
        if self._pause.has_expired(now):
            self._pause.end()
            return PauseExpired(self.reasons)
        return None


def _ends_at_once(objections: Iterable[Objection]) -> bool:
    """Return whether no objection fluctuates, so that their end counts at once: the clock or the owner ends each of them."""
    return all(one.exact or one.condition is Condition.PAUSED for one in objections)
