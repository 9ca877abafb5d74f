"""The owner's policy: the admission mode, the preferences against the facts with hysteresis, and the daily budget.

The admission mode is one word of the configuration: `preferences`, which is the default, or a mode that overrides them:
`always`, `never`, or `file:PATH`. The first line of the file is `accept`, or `decline` and the reason. If the file is absent
or has other content, requests are declined. The owner's pause counts in every mode.

The agent's loop calls `decide` before it accepts work, and `tick` while it works. Facts come from a watcher on another
thread, so that a source that hangs cannot block the loop; a request waits until the facts are there.
"""

from __future__ import annotations

import errno
import logging
import math
import os
import re
import stat
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from pathlib import PurePosixPath
from typing import Protocol

from fedpatch.device_agent.job.job_effects import JobKey, JobState
from fedpatch.device_agent.job.job_events import (
    AdmissionDecision,
    FromOwner,
    OwnerAbandoned,
    OwnerPaused,
    OwnerResumed,
)
from fedpatch.device_agent.job.job_state_machine import Job
from fedpatch.device_agent.policy.hysteresis import stricter
from fedpatch.device_agent.policy.objections import PAUSE, Objection, words_for_wire
from fedpatch.device_agent.policy.preference_rules import OwnUsage
from fedpatch.device_agent.policy.preferences import Preferences, unmet_preferences
from fedpatch.device_agent.policy.usage import JobUsage, OwnLoadAverage, Usage
from fedpatch.device_agent.sensors.device_facts import Facts
from fedpatch.shared.errors import UsageError
from fedpatch.shared.wire.reason_codes import Condition

LOSS_TOLD_AFTER_S = 1.0
"""Added to `loss_after_s`: by then the facts have been read again, and presence reports a lasting loss."""


class OnLoss(StrEnum):
    """Treatment of the work in progress when a preference is no longer met."""

    FINISH = "finish"
    PAUSE = "pause"
    ABANDON = "abandon"


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
        self._pausing = False
        self._published: Condition | None = None

    def use(self, preferences: Preferences) -> None:
        """Compare the next facts with other preferences; a pause and its time stay."""
        self._usual, self._stricter = preferences, stricter(preferences)
        self._terms = preferences.settings
        self._left_s = min(self._left_s, self._terms.loss_after_s)

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
        self._steady_since = -math.inf if _ends_at_once(self.reasons) else None
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
        if not _ends_at_once(objections):
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
        """Return the action for the current work: a pause that is sure to exceed its limit becomes an abandon at once."""
        chosen = OnLoss(self._terms.on_loss)
        in_vain = any(one.exact and one.retry_after_s > self._terms.pause_limit_s for one in self.reasons)
        return OnLoss.ABANDON if chosen is OnLoss.PAUSE and in_vain else chosen


def _ends_at_once(objections: Iterable[Objection]) -> bool:
    """Return whether no objection fluctuates, so that their end counts at once: the clock or the owner ends each of them."""
    return all(one.exact or one.condition is Condition.PAUSED for one in objections)


_FILE_PREFIX = "file:"
_MOST_FILE_BYTES = 4096

NEVER_S = 3600.0
"""The mode `never` holds until the agent is started with another mode; a file may change at any time."""


@dataclass(frozen=True)
class AdmissionMode:
    """The owner's admission mode.

    Attributes:
        always: Whether every request is accepted; without `path` and `follows_preferences`, False declines every request.
        path: File that is read for each request, "" for none.
        follows_preferences: Whether the preferences decide; then the other two have no effect.
    """

    always: bool
    path: str = ""
    follows_preferences: bool = False

    @property
    def may_accept(self) -> bool:
        """False if every request is declined."""
        return self.always or self.follows_preferences or bool(self.path)

    def objections(self, found: tuple[Objection, ...]) -> tuple[Objection, ...]:
        """Return the objections that count: a pause counts in every mode, other preferences only where they decide."""
        return found if self.follows_preferences else tuple(one for one in found if one.condition is Condition.PAUSED)


def parse_admission_mode(text: str) -> AdmissionMode:
    """Parse `preferences`, `always`, `never` or `file:PATH`. UsageError for anything else."""
    if text == "preferences":
        return AdmissionMode(always=False, follows_preferences=True)
    if text in ("always", "never"):
        return AdmissionMode(always=text == "always")
    if text.startswith(_FILE_PREFIX) and len(text) > len(_FILE_PREFIX):
        return AdmissionMode(always=False, path=str(PurePosixPath(text.removeprefix(_FILE_PREFIX))))
    raise UsageError(f"admission {text!r} is not known; write preferences, always, never or file:PATH")


def decide(order: AdmissionMode, file_text: str | None, objections: Sequence[Objection] = ()) -> AdmissionDecision:
    """Decide by the admission mode.

    Args:
        order: The admission mode.
        file_text: Content of the mode's file; None where it cannot be read.
        objections: Objections to the request, the most lasting first; a pause counts in every mode.
    """
    counted = order.objections(tuple(objections))
    if order.follows_preferences or (order.may_accept and counted):
        return follow_preferences(counted)
    if not order.path:
        return (
            AdmissionDecision(True)
            if order.always
            else AdmissionDecision(False, "its owner set admission to never", retry_after_s=NEVER_S)
        )
    if file_text is None:
        return AdmissionDecision(False, "its owner's file cannot be read")
    line = (file_text.splitlines() or [""])[0].strip()
    word, _, why = line.partition(" ")
    if word == "accept":
        return AdmissionDecision(True)
    if word.rstrip(":") == "decline":
        return AdmissionDecision(False, why.strip() or "its owner's file says decline")
    return AdmissionDecision(False, "its owner's file says neither accept nor decline")


def follow_preferences(objections: Sequence[Objection]) -> AdmissionDecision:
    """Decide by the objections alone."""
    if not objections:
        return AdmissionDecision(True)
    first = objections[0]
    return AdmissionDecision(False, words_for_wire(objections), first.condition, first.retry_after_s)


_log = logging.getLogger("fedpatch.owner")

LOOK_AT_WORK_S = 1.0
LOOK_IDLE_S = 30.0
FRESH_S = 1.0
"""Older facts are looked up again before a request is answered."""
NOTE_BYTES = 4 * 2**20
"""Traffic after which the usage of the current work is noted: a device that loses its power forgets less than that."""
NOTE_IDLE_BYTES = 64 * 2**10
"""The bound of traffic without work: its few messages must not write to the memory card each time."""
NOTE_TRAINING_S = 300.0
"""Seconds of training after which they are noted. At most this much of a training before midnight counts on the next day."""

_OF_THE_LINK = frozenset({Condition.NOT_WIFI, Condition.OTHER_SSID, Condition.METERED, Condition.TRAFFIC_SPENT})


class Asks(Protocol):
    """Source of facts (sensors.collect.FactWatcher)."""

    def ask(self) -> None:
        """Look up the facts once more; they arrive later, as an event."""


class UsageBook(Protocol):
    """Usage of the day (policy.usage.UsageLedger)."""

    @property
    def today(self) -> Usage:
        """Usage of this local day, without the current work."""

    def note(self, more: Usage) -> None:
        """Add the usage of a job."""


class OwnerPolicy:
    """Decides on work requests, and on the current work while facts change.

    Call `tick` in each turn of the loop and `update_facts` with each look-up.

    Attributes:
        unwilling: The preference that presence reports as not met; None while willing.
        words: Unmet preferences in words, for the owner; unchanged while `conditions` are unchanged.
        conditions: Unmet preferences.
        facts: The newest facts, None before the first look-up.
        meter: Usage of the current work.

    Args:
        order: The admission mode.
        preferences: The owner's preferences.
        usage: Usage of the day.
        watcher: Source of facts.
        local_now: Returns the aware local time.
        own_memory_mib: Returns the memory of the training process.
        own_load: Load that the training process causes.
        look_anyway: Whether facts are looked up although the admission mode needs none.
        is_paused: Returns whether the owner has paused the device; asked at a request that needs no facts.
    """

    def __init__(  # noqa: PLR0913 - the parts of an owner, each made by startup
        self,
        order: AdmissionMode,
        preferences: Preferences,
        *,
        usage: UsageBook,
        watcher: Asks,
        local_now: Callable[[], datetime],
        own_memory_mib: Callable[[], float],
        own_load: OwnLoadAverage,
        look_anyway: bool = False,
        is_paused: Callable[[], bool] = lambda: False,
    ) -> None:
        self.meter = JobUsage()
        self.unwilling: Condition | None = None
        self.words: tuple[str, ...] = ()
        self._order = order
        self._preferences = preferences
        self._usage = usage
        self._watcher = watcher
        self._local_now = local_now
        self._own_memory_mib = own_memory_mib
        self._own_load = own_load
        # Whether the device would accept work, and whether it continues its current work, which needs less of some resources.
        self._standing = Hysteresis(preferences)
        self._at_work = Hysteresis(preferences)
        self._work: JobKey | None = None
        self._awaited: JobKey | None = None
        self.facts: Facts | None = None
        self._seen_at = 0.0
        self._asked = False
        self.conditions: frozenset[Condition] = frozenset()
        # The reasons in `words` without their numbers; None where the words are to be written anew.
        self._told: frozenset[str] | None = frozenset()
        self._expected_bytes = 0  # of the last request: the next one is most likely as large
        self._looks = order.may_accept or look_anyway
        self._is_paused = is_paused

    def decide(self, task: str, traffic_bytes: int, now: float) -> AdmissionDecision | None:
        """Decide on a work request; None without fresh facts: call again after the next `update_facts`.

        Args:
            task: Name of the task of the request.
            traffic_bytes: Bytes that the work is expected to move, both ways.
            now: Monotonic seconds.
        """
        if not self._order.follows_preferences:
            return decide(self._order, text_of(self._order), [PAUSE] if self._is_paused() else [])
        if self.facts is None or now - self._seen_at > FRESH_S:
            self._ask()
            return None
        self._expected_bytes = traffic_bytes
        objections = self._judge(self._standing, self.facts, now, task=task, expected_bytes=traffic_bytes)
        self._tell(now)
        return decide(self._order, None, self._standing.answer(objections, now))

    def use(self, preferences: Preferences) -> None:
        """Follow other preferences from now on; the facts are looked up anew, since the answer may have changed."""
        self._preferences = preferences
        self._told = None  # a limit may be another one
        for one in (self._standing, self._at_work):
            one.use(preferences)
        if self._looks:
            self._ask()

    def update_facts(self, facts: Facts, job: Job, tasks: Sequence[str], now: float) -> list[FromOwner]:
        """Take new facts and return the events for the current work.

        Args:
            facts: The facts, as they are at `now`.
            job: The job, which is only read.
            tasks: Names of the tasks that the device can train.
            now: Monotonic seconds.
        """
        self.facts, self._seen_at, self._asked = facts, now, False
        if not self._order.may_accept:
            return []
        change = self._standing.observe(
            self._judge(self._standing, facts, now, task=tasks[0] if tasks else ""), now, working=False
        )
        if isinstance(change, ConditionLost) and job.key is None:
            _log.info("not willing: %s", _words(change.objections))
        self._tell(now)
        return self._check_running_job(facts, job, now)

    def tick(self, job: Job, now: float) -> None:
        """Let time pass: ask for facts when they are due, and note the usage of a job at its end and at the limits above."""
        trains = job.state is JobState.TRAINING and not job.paused
        self._own_load.see(trains, now)
        spent = self.meter.spent(now)
        over = job.key is None and bool(spent.rounds or spent.training_s or spent.traffic_bytes >= NOTE_IDLE_BYTES)
        is_due = spent.traffic_bytes >= NOTE_BYTES or spent.training_s >= NOTE_TRAINING_S
        if self.meter.trains(trains, now) or over or is_due:
            self._usage.note(self.meter.take(now))
        if job.awaits_clearance and job.key != self._awaited:
            self._awaited = job.key
            self._ask()
        due = self.next_deadline(job)
        if due is not None and now >= due:
            self._ask()

    @property
    def willing(self) -> bool | None:
        """True if the device would take work now; None if that is unknown, or a file decides for each request."""
        if not self._order.may_accept:
            return False
        if self._order.path and self._standing.willing:
            return None
        return None if self.facts is None and self._order.follows_preferences else self._standing.willing

    def spent_today(self, now: float) -> Usage:
        """Usage of this day, including the current work."""
        return self._usage.today.plus(self.meter.spent(now))

    def stop(self, now: float) -> None:
        """The agent ends: note the usage of the job so far."""
        self._usage.note(self.meter.take(now))

    def next_deadline(self, job: Job) -> float | None:
        """Return the time at which `tick` is due; None during a look-up of facts, or if no facts are needed."""
        if self._asked or not self._looks:
            return None
        if self.facts is None:
            return 0.0
        if not self._order.may_accept:
            return self._seen_at + LOOK_IDLE_S
        # An update may wait for days until the coordinator requests it.
        rests = job.key is None or (job.state is JobState.UPLOADING and not job.awaits_clearance)
        wanted = [self._seen_at + (LOOK_IDLE_S if rests else LOOK_AT_WORK_S)]
        # A look-up leads to the next: without a pause between them, a deadline in the past would keep the loop busy.
        soonest = self._seen_at + LOOK_AT_WORK_S
        changes = (self._standing.next_deadline(), self._at_work.next_deadline() if job.key is not None else None)
        return min([*wanted, *(max(one, soonest) for one in changes if one is not None)])

    def _ask(self) -> None:
        if not self._asked:
            self._asked = True
            self._watcher.ask()

    def _judge(
        self,
        willingness: Hysteresis,
        facts: Facts,
        now: float,
        *,
        task: str,
        expected_bytes: int = 0,
        working: bool = False,
    ) -> tuple[Objection, ...]:
        found = unmet_preferences(
            willingness.preferences,
            facts,
            self.spent_today(now),
            local=self._local_now(),
            task=task,
            expected_bytes=expected_bytes,
            own=OwnUsage(self._own_load.mean, self._own_memory_mib()),
            working=working,
        )
        return self._order.objections(found)

    def _tell(self, now: float) -> None:
        self.unwilling = self._standing.unwilling
        reasons = self._standing.reasons
        if self._standing.willing:
            # A smaller request would be accepted, so only the owner is told.
            assert self.facts is not None
            found = self._judge(self._standing, self.facts, now, task="", expected_bytes=self._expected_bytes)
            reasons = tuple(one for one in found if one.exact)
        self.conditions = frozenset(one.condition for one in reasons)
        # A measured value that fluctuates must not write status.json to the memory card each time.
        told = frozenset(_NUMBER.sub("", one.words) for one in reasons)
        if told != self._told:
            self._told, self.words = told, tuple(one.words for one in reasons)

    def _check_running_job(self, facts: Facts, job: Job, now: float) -> list[FromOwner]:
        """Decide about the current work, if there is any."""
        if job.key is None:
            self._work = None
            return []
        if _is_other_work(job.key, self._work):
            self._work, self._at_work = job.key, Hysteresis(self._preferences)
            if not job.awaits_clearance:
                # The work was accepted without objections, so new objections must last for a while.
                self._at_work.observe((), now, working=True)
        found = self._judge(self._at_work, facts, now, task=job.key.task, working=True)
        concern = _of_concern(found, job.state)
        change = self._at_work.observe(concern, now, working=True)
        events = self._apply(change)
        # The loss may have begun during training, which continued: sending is part of the work that has begun.
        finishes = not self._at_work.willing and OnLoss(self._preferences.settings.on_loss) is OnLoss.FINISH
        may_send = not concern or finishes
        return [*events, OwnerResumed()] if job.awaits_clearance and may_send else events

    def _apply(self, change: Change | None) -> list[FromOwner]:
        if change is None:
            return []
        if isinstance(change, ConditionRestored):
            _log.info("going on after %.0f s", change.lost_s)
            return [OwnerResumed()]
        words, condition = _words(change.objections), change.objections[0].condition
        if isinstance(change, ConditionLost) and change.action is OnLoss.FINISH:
            _log.info("not willing: %s; what has begun goes on", words)
            return []
        if isinstance(change, ConditionLost) and change.action is OnLoss.PAUSE:
            _log.info("not willing: %s; pausing", words)
            return [OwnerPaused(condition)]
        return [OwnerAbandoned(words, condition)]


def _is_other_work(key: JobKey, known: JobKey | None) -> bool:
    """Return whether a key is of other work; in a newer epoch, a coordinator asks for the same work."""
    return known is None or (key.run, key.round, key.task) != (known.run, known.round, known.task)


_NUMBER = re.compile(r"\d+")


def _words(objections: tuple[Objection, ...]) -> str:
    return "; ".join(one.words for one in objections)


def _of_concern(objections: tuple[Objection, ...], state: JobState) -> tuple[Objection, ...]:
    """Objections that matter in a phase: training uses no network, and sending hardly any power."""
    match state:
        case JobState.TRAINING:
            return tuple(one for one in objections if one.condition not in _OF_THE_LINK)
        case JobState.UPLOADING:
            return tuple(one for one in objections if one.condition in _OF_THE_LINK | {Condition.PAUSED})
        case _:
            return objections


def text_of(order: AdmissionMode, *, warn: bool = True) -> str | None:
    """Beginning of the mode's file; None where there is none, or it cannot be read, which is logged with `warn`."""
    if not order.path:
        return None
    try:
        return _beginning_of(order.path)
    except OSError as error:
        if warn:
            _log.warning("admission: %s: %s; write 'accept' into it to take part", order.path, error.strerror)
        return None


def _beginning_of(path: str) -> str:
    """Return the first kilobytes of a file. OSError for anything else, such as a pipe, on which a reader would wait."""
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "is not a regular file")
        return file.read(_MOST_FILE_BYTES).decode("utf-8", errors="replace")
