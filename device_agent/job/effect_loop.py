"""The loop of effects: performs the effects of a job, and those that follow from their completion events."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from fedpatch.device_agent.job.job_effects import Effect
from fedpatch.device_agent.job.job_events import EffectFailed, JobEvent
from fedpatch.device_agent.job.job_state_machine import Job


class EffectHandler(Protocol):
    """Performs effects: the agent's EffectRunner, and the devices of simulator, benchmarks and tests."""

    def run_effect(self, effect: Effect) -> Sequence[JobEvent]:
        """Begin one effect, and return the events of effects that have finished.

        The end of a longer effect is reported by a later event. A refusal is returned as an EffectFailed, never raised.
        """


def drive_job(job: Job, effects: Iterable[Effect], handler: EffectHandler, clock: Callable[[], float]) -> None:
    """Perform `effects`, and those that follow from their completion events.

    After an EffectFailed the remaining effects are dropped, and the job ends.

    Args:
        job: The job that returned the effects.
        effects: Effects in their order.
        clock: Returns monotonic seconds.
    """
    waiting = deque(effects)
    while waiting:
        for event in handler.run_effect(waiting.popleft()):
            if isinstance(event, EffectFailed) and job.key is not None:
                waiting.clear()
            waiting.extend(job.handle(event, clock()))
