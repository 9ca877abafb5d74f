"""The training of a relay's agent: a round of its site in place of a training process."""

from __future__ import annotations

from collections.abc import Callable

from fedpatch.device_agent.job.job_state_machine import Job
from fedpatch.device_agent.job.training_messages import MakeModel, MaskCommand, TrainCommand, TrainFailed
from fedpatch.device_agent.runtime.training_supervisor import TrainerEvent
from fedpatch.relay.site import Site
from fedpatch.shared.wire.features import MEMBERS_FEATURE
from fedpatch.shared.wire.reason_codes import FailReason


class SiteTrainer:
    """The TrainingPort of a relay's agent.

    Args:
        site: Runs the rounds.
        job: The agent's job, whose request says which fields the hub knows.
        events: Takes the events for the agent.
    """

    def __init__(self, site: Site, job: Job, events: Callable[[TrainerEvent], None]) -> None:
        self._site = site
        self._job = job
        self._events = events

    @property
    def pid(self) -> int | None:
        """None: there is no other process."""
        return None

    def start(self) -> None:
        """Start the site's thread, unless it runs."""
        self._site.start()

    def train(self, command: TrainCommand) -> None:
        """Begin the round of the site for the request of the job."""
        request = self._job.request
        self._site.play(command, tells_members=request is not None and MEMBERS_FEATURE in request.features)

    def cancel(self) -> None:
        """End the current round: the hub does not want its update any more."""
        self._site.cancel()

    def pause(self) -> None:
        """Do nothing: the owners of the site's devices decide when these work."""

    def go_on(self) -> None:
        """Do nothing, as `pause`."""

    def stop(self) -> None:
        """Do nothing: the site's devices stay connected while the hub has no work."""

    def mask(self, command: MaskCommand) -> None:
        """Fail the round: a relay offers no masked updates, so the agent never asks for one."""
        self._events(TrainFailed(command.key, FailReason.MASKING, "a relay masks no updates"))

    def make_model(self, command: MakeModel) -> None:
        """Do nothing: a relay keeps no personal model."""
