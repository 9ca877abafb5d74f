"""What the device's owner wants of it now: the standing order, the preferences against the facts, the daily allowance.

The agent's loop asks before it takes work, and lets time pass here while it works. Facts come from a watcher on another thread,
so that no source that hangs can hold the loop up; until they are there, an offer waits.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Protocol

from device_agent.admission import Order, Verdict, decide
from device_agent.allowance import Spent
from device_agent.effects import Effect, JobState
from device_agent.facts import Facts
from device_agent.job import Job
from device_agent.meter import Meter
from device_agent.preference_rules import Own
from device_agent.preferences import Objection, Preferences, judge
from device_agent.willingness import Change, Lost, OnLoss, Regained, Willingness
from shared.messages import WorkRequest
from shared.reasons import Condition, FailReason

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


class Ledger(Protocol):
    """What was spent today (usage.UsageLedger)."""

    @property
    def today(self) -> Spent:
        """What counts on this local day, without the work in hand."""

    def note(self, more: Spent) -> None:
        """A job took that."""


class Owner:
    """Drive it with `tick` in each turn of the loop and `see` for each look; `now` is monotonic, in seconds.

    `unwilling` is what presence tells; `words` are for the owner, and the same for as long as the conditions are.
    """

    def __init__(
        self,
        order: Order,
        preferences: Preferences,
        *,
        usage: Ledger,
        watcher: Asks,
        local_now: Callable[[], datetime],
        own_work: Callable[[], Own],
    ) -> None:
        self.meter = Meter()
        self.unwilling: Condition | None = None
        self.words: tuple[str, ...] = ()
        self._order = order
        self._willingness = Willingness(preferences)
        self._usage = usage
        self._watcher = watcher
        self._local_now = local_now
        self._own_work = own_work
        self._facts: Facts | None = None
        self._seen_at = 0.0
        self._asked = False
        self._conditions: frozenset[Condition] = frozenset()

    def consider(self, task: str, request: WorkRequest, now: float) -> Verdict | None:
        """Whether to take an offer; None until there are fresh facts: ask again after the next `see`."""
        if not self._order.by_preferences:
            return decide(self._order, text_of(self._order))
        if self._facts is None or now - self._seen_at > FRESH_S:
            self._ask()
            return None
        # The update is at most about as large as the model.
        objections = self._judge(self._facts, now, task=task, expected_bytes=2 * request.model.size_bytes)
        return decide(self._order, None, self._willingness.answer(objections, now))

    def see(self, facts: Facts, job: Job, now: float) -> list[Effect]:
        """The facts as they are: what becomes of the work in hand."""
        self._facts, self._seen_at, self._asked = facts, now, False
        working = job.key is not None
        task = job.key.task if job.key is not None else ""
        objections = self._judge(facts, now, task=task, work=self._own_work() if working else None)
        change = self._willingness.observe(_of_concern(objections, job.state), now, working=working)
        self._tell()
        return self._act(change, job, now)

    def tick(self, job: Job, now: float) -> None:
        """Lets time pass: looks again when it is time, and notes what a job took once it is over."""
        self.meter.trains(job.state is JobState.TRAINING and not job.paused, now)
        if job.key is None:
            self._usage.note(self.meter.take(now))
        due = self.next_deadline(job)
        if due is not None and now >= due:
            self._ask()

    def stop(self, now: float) -> None:
        """The agent ends: what its job has taken so far is noted."""
        self._usage.note(self.meter.take(now))

    def next_deadline(self, job: Job) -> float | None:
        """When to look again; None while a look is under way, or where nobody asks for facts."""
        if self._asked or not self._order.by_preferences:
            return None
        if self._facts is None:
            return 0.0
        look_at = self._seen_at + (LOOK_IDLE_S if job.key is None else LOOK_AT_WORK_S)
        changes_at = self._willingness.next_deadline()
        # A look leads to the next: without a pause between them, a moment that has passed would keep the loop busy.
        return look_at if changes_at is None else min(look_at, max(changes_at, self._seen_at + LOOK_AT_WORK_S))

    def _ask(self) -> None:
        if not self._asked:
            self._asked = True
            self._watcher.ask()

    def _judge(
        self, facts: Facts, now: float, *, task: str, expected_bytes: int = 0, work: Own | None = None
    ) -> tuple[Objection, ...]:
        return judge(
            self._willingness.preferences,
            facts,
            self._usage.today.plus(self.meter.spent(now)),
            local=self._local_now(),
            task=task,
            expected_bytes=expected_bytes,
            work=work,
        )

    def _tell(self) -> None:
        self.unwilling = self._willingness.unwilling
        reasons = () if self._willingness.willing else self._willingness.reasons
        conditions = frozenset(one.condition for one in reasons)
        if conditions != self._conditions:
            self._conditions, self.words = conditions, tuple(one.words for one in reasons)

    def _act(self, change: Change | None, job: Job, now: float) -> list[Effect]:
        if change is None:
            return []
        if isinstance(change, Regained):
            _log.info("willing again after %.0f s", change.lost_s)
            return job.go_on(now)
        words = "; ".join(one.words for one in change.objections)
        if isinstance(change, Lost) and (job.key is None or change.action is OnLoss.FINISH):
            _log.info("not willing: %s%s", words, "" if job.key is None else "; what has begun goes on")
            return []
        if isinstance(change, Lost) and change.action is OnLoss.PAUSE:
            _log.info("not willing: %s; pausing", words)
            return job.pause()
        return job.give_up(FailReason.UNWILLING, words, change.objections[0].condition)


def _of_concern(objections: tuple[Objection, ...], state: JobState) -> tuple[Objection, ...]:
    """What a phase does not use, it need not have: training uses no network, sending no power worth mentioning."""
    match state:
        case JobState.TRAINING:
            return tuple(one for one in objections if one.condition not in _OF_THE_LINK)
        case JobState.UPLOADING:
            return tuple(one for one in objections if one.condition in _OF_THE_LINK | {Condition.PAUSED})
        case _:
            return objections


def text_of(order: Order) -> str | None:
    """What the order's file holds now, None where there is none to read."""
    if not order.path:
        return None
    try:
        return Path(order.path).read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        _log.warning("admission: %s: %s; write 'accept' into it to take part", order.path, error.strerror)
        return None
