"""What the device's owner wants of it now: the standing order, the preferences against the facts, the daily allowance.

The agent's loop asks before it takes work, and lets time pass here while it works. Facts come from a watcher on another thread,
so that no source that hangs can hold the loop up; until they are there, an offer waits.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Protocol

from fedpatch.device_agent.job.download_plan import expected_bytes, plan_download
from fedpatch.device_agent.job.job_effects import Effect, JobKey, JobState
from fedpatch.device_agent.job.job_state_machine import Job
from fedpatch.device_agent.job.request_answers import AdmissionDecision
from fedpatch.device_agent.policy.admission_mode import AdmissionMode, decide
from fedpatch.device_agent.policy.daily_budget import Usage
from fedpatch.device_agent.policy.hysteresis import Change, ConditionLost, ConditionRestored, Hysteresis, OnLoss
from fedpatch.device_agent.policy.job_usage import JobUsage, OwnLoadAverage
from fedpatch.device_agent.policy.preference_catalogue import OwnUsage
from fedpatch.device_agent.policy.preference_check import Objection, Preferences, judge
from fedpatch.device_agent.sensors.device_facts import Facts
from fedpatch.shared.wire.messages import MAX_BLOB_BYTES, WorkRequest
from fedpatch.shared.wire.reason_codes import Condition, FailReason

_log = logging.getLogger("fedpatch.owner")

LOOK_AT_WORK_S = 1.0
LOOK_IDLE_S = 30.0
FRESH_S = 1.0
"""Facts that are older are looked up again before an offer is answered."""

_OF_THE_LINK = frozenset({Condition.NOT_WIFI, Condition.OTHER_SSID, Condition.METERED, Condition.TRAFFIC_SPENT})


class Asks(Protocol):
    """Where facts come from (watching.Watcher)."""

    def ask(self) -> None:
        """Look once more; the facts come later."""


class UsageBook(Protocol):
    """What was spent today (usage.UsageLedger)."""

    @property
    def today(self) -> Usage:
        """What counts on this local day, without the work in hand."""

    def note(self, more: Usage) -> None:
        """A job took that."""


class OwnerPolicy:
    """Drive it with `tick` in each turn of the loop and `see` for each look; `now` is monotonic, in seconds.

    `unwilling` is what presence tells; `words` are for the owner, and the same for as long as the conditions are, which are
    `conditions`. `facts` are the newest. With `look_anyway` there are facts even where the order asks for none.
    """

    def __init__(
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
        # Whether the device would take work, and whether it goes on with what it has: that needs less of some things.
        self._standing = Hysteresis(preferences)
        self._at_work = Hysteresis(preferences)
        self._work: JobKey | None = None
        self._awaited: JobKey | None = None
        self.facts: Facts | None = None
        self._seen_at = 0.0
        self._asked = False
        self.conditions: frozenset[Condition] = frozenset()
        self._looks = order.follows_preferences or look_anyway

    def decide(self, task: str, request: WorkRequest, now: float, held: str = "") -> AdmissionDecision | None:
        """Whether to take an offer; None until there are fresh facts: ask again after the next `see`.

        `held` is the digest of the global model that the device has from before.
        """
        if not self._order.follows_preferences:
            return decide(self._order, text_of(self._order))
        if self.facts is None or now - self._seen_at > FRESH_S:
            self._ask()
            return None
        takes = expected_bytes(request, plan_download(request, held, MAX_BLOB_BYTES))
        objections = self._judge(self._standing, self.facts, now, task=task, expected_bytes=takes)
        return decide(self._order, None, self._standing.answer(objections, now))

    def update_facts(self, facts: Facts, job: Job, tasks: Sequence[str], now: float) -> list[Effect]:
        """The facts as they are: what becomes of the work in hand. `tasks` are those that the device can train."""
        self.facts, self._seen_at, self._asked = facts, now, False
        if not self._order.follows_preferences:
            return []
        change = self._standing.observe(
            self._judge(self._standing, facts, now, task=tasks[0] if tasks else ""), now, working=False
        )
        if isinstance(change, ConditionLost) and job.key is None:
            _log.info("not willing: %s", _words(change.objections))
        self._tell()
        return self._check_running_job(facts, job, now)

    def tick(self, job: Job, now: float) -> None:
        """Lets time pass: looks again when it is time, and notes what a job took as soon as it is over."""
        trains = job.state is JobState.TRAINING and not job.paused
        self._own_load.see(trains, now)
        if self.meter.trains(trains, now) or job.key is None:
            self._usage.note(self.meter.take(now))
        if job.awaits_clearance and job.key != self._awaited:
            self._awaited = job.key
            self._ask()
        due = self.next_deadline(job)
        if due is not None and now >= due:
            self._ask()

    @property
    def willing(self) -> bool | None:
        """Whether it would take work now; None where that is not known, or a file is asked for each offer."""
        if not self._order.follows_preferences:
            return None if self._order.path else self._order.always
        return None if self.facts is None else self._standing.willing

    def spent_today(self, now: float) -> Usage:
        """What counts today, the work in hand included."""
        return self._usage.today.plus(self.meter.spent(now))

    def stop(self, now: float) -> None:
        """The agent ends: what its job has taken so far is noted."""
        self._usage.note(self.meter.take(now))

    def next_deadline(self, job: Job) -> float | None:
        """When to look again; None while a look is under way, or where nobody asks for facts."""
        if self._asked or not self._looks:
            return None
        if self.facts is None:
            return 0.0
        if not self._order.follows_preferences:
            return self._seen_at + LOOK_IDLE_S
        # An update that waits to be fetched may do so for days.
        rests = job.key is None or (job.state is JobState.UPLOADING and not job.awaits_clearance)
        wanted = [self._seen_at + (LOOK_IDLE_S if rests else LOOK_AT_WORK_S)]
        # A look leads to the next: without a pause between them, a moment that has passed would keep the loop busy.
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
        return judge(
            willingness.preferences,
            facts,
            self.spent_today(now),
            local=self._local_now(),
            task=task,
            expected_bytes=expected_bytes,
            own=OwnUsage(self._own_load.mean, self._own_memory_mib()),
            working=working,
        )

    def _tell(self) -> None:
        self.unwilling = self._standing.unwilling
        reasons = () if self._standing.willing else self._standing.reasons
        conditions = frozenset(one.condition for one in reasons)
        if conditions != self.conditions:
            self.conditions, self.words = conditions, tuple(one.words for one in reasons)

    def _check_running_job(self, facts: Facts, job: Job, now: float) -> list[Effect]:
        """The work in hand, if there is any."""
        if job.key is None:
            self._work = None
            return []
        if _is_other_work(job.key, self._work):
            self._work, self._at_work = job.key, Hysteresis(self._preferences)
            if not job.awaits_clearance:
                # It was accepted when all was well: what is missed now must be missed for a while.
                self._at_work.observe((), now, working=True)
        found = self._judge(self._at_work, facts, now, task=job.key.task, working=True)
        concern = _of_concern(found, job.state)
        change = self._at_work.observe(concern, now, working=True)
        effects = self._apply(change, job, now)
        # The loss may be one of before, which training outlasted: sending is part of what has begun.
        finishes = not self._at_work.willing and OnLoss(self._preferences.settings.on_loss) is OnLoss.FINISH
        may_send = not concern or finishes
        return [*effects, *job.go_on(now)] if job.awaits_clearance and may_send else effects

    def _apply(self, change: Change | None, job: Job, now: float) -> list[Effect]:
        if change is None:
            return []
        if isinstance(change, ConditionRestored):
            _log.info("going on after %.0f s", change.lost_s)
            return job.go_on(now)
        words, condition = _words(change.objections), change.objections[0].condition
        if isinstance(change, ConditionLost) and change.action is OnLoss.FINISH:
            _log.info("not willing: %s; what has begun goes on", words)
            return []
        if isinstance(change, ConditionLost) and change.action is OnLoss.PAUSE:
            _log.info("not willing: %s; pausing", words)
            return job.pause(condition)
        return job.give_up(FailReason.UNWILLING, words, condition)


def _is_other_work(key: JobKey, known: JobKey | None) -> bool:
    """A newer epoch of the coordinator asks for the same."""
    return known is None or (key.run, key.round, key.task) != (known.run, known.round, known.task)


def _words(objections: tuple[Objection, ...]) -> str:
    return "; ".join(one.words for one in objections)


def _of_concern(objections: tuple[Objection, ...], state: JobState) -> tuple[Objection, ...]:
    """What a phase does not use, it need not have: training uses no network, sending no power worth mentioning."""
    match state:
        case JobState.TRAINING:
            return tuple(one for one in objections if one.condition not in _OF_THE_LINK)
        case JobState.UPLOADING:
            return tuple(one for one in objections if one.condition in _OF_THE_LINK | {Condition.PAUSED})
        case _:
            return objections


def text_of(order: AdmissionMode) -> str | None:
    """What the order's file holds now, None where there is none to read."""
    if not order.path:
        return None
    try:
        return Path(order.path).read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        _log.warning("admission: %s: %s; write 'accept' into it to take part", order.path, error.strerror)
        return None
