"""The update on its way to the coordinator: offered, sent within the window, and held back while the owner wants that.

What a job says to its coordinator: numbered messages of its round.
"""

from __future__ import annotations

from fedpatch.device_agent.job.job_effects import Effect, JobKey, JobState, SendMessage
from fedpatch.shared.wire.chunked_transfer import SendChunk, Upload
from fedpatch.shared.wire.messages import (
    Accept,
    Ack,
    Body,
    Envelope,
    Grant,
    Manifest,
    Offer,
    Progress,
    RetryAfter,
    TaskCapability,
)
from fedpatch.shared.wire.reason_codes import JobPhase


class UpdateUpload:
    """One update. Each method returns what to say and to send now; while `held` that is nothing."""

    def __init__(self, manifest: Manifest, now: float, *, held: bool = False) -> None:
        self.manifest = manifest
        self.held = held
        self._upload = Upload(manifest, now)

    def on_message(self, body: Body, now: float) -> list[Offer | SendChunk]:
        """What the coordinator says of this update. WireError for a bitmap that does not fit."""
        if self.held:
            return []  # the grant goes to another device meanwhile; an offer asks for the next
        match body:
            case Grant():
                return self._upload.on_grant(body, now)
            case Ack():
                return self._upload.on_ack(body, now)
            case RetryAfter():
                self._upload.on_retry_after(body.delay_s, now)
        return []

    def reconnected(self, now: float) -> None:
        """What was in flight may be lost."""
        self._upload.on_reconnect(now)

    def go_on(self, now: float) -> list[Offer | SendChunk]:
        """No longer held: offer it at once."""
        self.held = False
        self.reconnected(now)
        return self.tick(now)

    def tick(self, now: float) -> list[Offer | SendChunk]:
        """Lets time pass."""
        return [] if self.held else self._upload.tick(now)

    def next_deadline(self) -> float | None:
        """When `tick` has something to do."""
        return None if self.held else self._upload.next_deadline()


class MessageFactory:
    """`num_examples` and `trained`, steps done of all, are what the next ones tell."""

    def __init__(self) -> None:
        self.num_examples = 1
        self.trained = (0, 1)
        self._last_id = 0

    def begins(self, key: JobKey, tasks: tuple[TaskCapability, ...]) -> None:
        """A job is taken up; an update from before a restart does not say of how many examples it is."""
        self.num_examples = next((t.num_examples for t in tasks if t.task == key.task), 0) or self.num_examples

    def accept(self, key: JobKey) -> SendMessage:
        """The device takes part."""
        return self.reply(key, Accept(self.num_examples))

    def progress(self, key: JobKey) -> SendMessage:
        """It trains."""
        return self.reply(key, Progress(JobPhase.TRAINING, *self.trained))

    def where(self, state: JobState, key: JobKey) -> list[Effect]:
        """What a coordinator that asks again has to know; an upload speaks for itself, by its offers."""
        if state is JobState.DOWNLOADING:
            return [self.accept(key)]
        return [self.accept(key), self.progress(key)] if state is JobState.TRAINING else []

    def reply(self, key: JobKey, body: Body) -> SendMessage:
        """Anything else."""
        self._last_id += 1
        return SendMessage(
            Envelope(body, id=self._last_id, task=key.task, run=key.run, epoch=key.epoch, round=key.round)
        )
