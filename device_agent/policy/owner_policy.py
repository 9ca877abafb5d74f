"""The owner's policy: the admission mode, the preferences against the facts with hysteresis, and the daily budget.

The agent's loop calls `decide` before it accepts work, and `tick` while it works. Facts come from a watcher on another
thread, so that a source that hangs cannot block the loop; a request waits until the facts are there.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Protocol

from fedpatch.device_agent.job.job_effects import JobKey, JobState
from fedpatch.device_agent.job.job_events import AdmissionDecision, FromOwner, OwnerAbandoned, OwnerPaused, OwnerResumed
from fedpatch.device_agent.job.job_state_machine import Job
from fedpatch.device_agent.policy.admission_file import text_of
from fedpatch.device_agent.policy.admission_mode import AdmissionMode, decide
from fedpatch.device_agent.policy.check_times import CHECK_IDLE_S, are_fresh, next_check
from fedpatch.device_agent.policy.conditions_of_phase import objections_that_count
from fedpatch.device_agent.policy.loss_and_return import Change, ConditionLost, ConditionRestored, Hysteresis
from fedpatch.device_agent.policy.objections import PAUSE, Objection
from fedpatch.device_agent.policy.own_load import OwnLoadAverage
from fedpatch.device_agent.policy.preference_rules import OwnUsage
from fedpatch.device_agent.policy.unmet_preferences import Preferences, unmet_preferences
from fedpatch.device_agent.policy.usage import JobUsage, Usage
from fedpatch.device_agent.policy.usage_notes import is_note_due
from fedpatch.device_agent.policy.work_on_loss import OnLoss
from fedpatch.device_agent.sensors.device_facts import Facts
from fedpatch.shared.wire.reason_codes import Condition

_log = logging.getLogger("fedpatch.owner")


class Asks(Protocol):
    """Source of facts (sensors.fact_watcher.FactWatcher)."""

    def ask(self) -> None:
        """Look up the facts once more; they arrive later, as an event."""


class UsageStore(Protocol):
    """Usage of the day (policy.usage.UsageFile)."""

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
        usage: UsageStore,
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
            traffic_bytes: Bytes that the work is expected to move, both ways.
            now: Monotonic seconds.
        """
        if not self._order.follows_preferences:
            return decide(self._order, text_of(self._order), [PAUSE] if self._is_paused() else [])
        if self.facts is None or not are_fresh(self._seen_at, now):
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
        """Let time pass: ask for facts when they are due, and note the usage of a job when it is due."""
        trains = job.state is JobState.TRAINING and not job.paused
        self._own_load.see(trains, now)
        spent = self.meter.spent(now)
        if self.meter.trains(trains, now) or is_note_due(spent, working=job.key is not None):
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
            return self._seen_at + CHECK_IDLE_S
        changes = (self._standing.next_deadline(), self._at_work.next_deadline() if job.key is not None else None)
        return next_check(job, self._seen_at, changes)

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
        concern = objections_that_count(found, job.state)
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
