"""What a job says to its coordinator: numbered messages of its round."""

from __future__ import annotations

from device_agent.effects import JobKey, Reply
from shared.messages import Accept, Body, Envelope, Progress
from shared.reasons import JobPhase


class Replies:
    """`num_examples` and `trained`, steps done of all, are what the next ones tell."""

    def __init__(self) -> None:
        self.num_examples = 1
        self.trained = (0, 1)
        self._last_id = 0

    def accept(self, key: JobKey) -> Reply:
        """The device takes part."""
        return self.reply(key, Accept(self.num_examples))

    def progress(self, key: JobKey) -> Reply:
        """It trains."""
        return self.reply(key, Progress(JobPhase.TRAINING, *self.trained))

    def reply(self, key: JobKey, body: Body) -> Reply:
        """Anything else."""
        self._last_id += 1
        return Reply(Envelope(body, id=self._last_id, task=key.task, run=key.run, epoch=key.epoch, round=key.round))
