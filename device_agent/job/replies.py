"""What a job says to its coordinator: numbered messages of its round."""

from __future__ import annotations

from device_agent.effects import Effect, JobKey, JobState, Reply
from shared.messages import Accept, Body, Envelope, Progress, TaskCapability
from shared.reasons import JobPhase


class Replies:
    """`num_examples` and `trained`, steps done of all, are what the next ones tell."""

    def __init__(self) -> None:
        self.num_examples = 1
        self.trained = (0, 1)
        self._last_id = 0

    def begins(self, key: JobKey, tasks: tuple[TaskCapability, ...]) -> None:
        """A job is taken up; an update from before a restart does not say of how many examples it is."""
        self.num_examples = next((t.num_examples for t in tasks if t.task == key.task), 0) or self.num_examples

    def accept(self, key: JobKey) -> Reply:
        """The device takes part."""
        return self.reply(key, Accept(self.num_examples))

    def progress(self, key: JobKey) -> Reply:
        """It trains."""
        return self.reply(key, Progress(JobPhase.TRAINING, *self.trained))

    def where(self, state: JobState, key: JobKey) -> list[Effect]:
        """What a coordinator that asks again has to know; an upload speaks for itself, by its offers."""
        if state is JobState.DOWNLOADING:
            return [self.accept(key)]
        return [self.accept(key), self.progress(key)] if state is JobState.TRAINING else []

    def reply(self, key: JobKey, body: Body) -> Reply:
        """Anything else."""
        self._last_id += 1
        return Reply(Envelope(body, id=self._last_id, task=key.task, run=key.run, epoch=key.epoch, round=key.round))
