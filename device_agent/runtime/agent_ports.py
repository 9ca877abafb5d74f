"""The parts of an agent that a relay replaces: the training, the owner's decisions and the owner's limits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from fedpatch.device_agent.job.job_events import AdmissionDecision, FromOwner
from fedpatch.device_agent.job.job_state_machine import Job
from fedpatch.device_agent.job.training_messages import MakeModel, MaskCommand, Ready, TrainCommand
from fedpatch.device_agent.policy.privacy_budget import PrivacyBudget
from fedpatch.device_agent.policy.unmet_preferences import Preferences
from fedpatch.device_agent.policy.usage import Usage
from fedpatch.device_agent.sensors.device_facts import Facts
from fedpatch.shared.wire.messages import Manifest, WorkRequest
from fedpatch.shared.wire.reason_codes import Condition


class TrainingPort(Protocol):
    """Trains for the agent: a training process (training_supervisor.Trainer), or the site of a relay.

    It answers by events (training_supervisor.TrainerEvent); `Trainer` describes which event follows which call.
    """

    @property
    def pid(self) -> int | None:
        """Process id; None while there is no process."""

    def start(self) -> None:
        """Begin to load model and data; Ready follows."""

    def train(self, command: TrainCommand) -> None:
        """Begin a round."""

    def mask(self, command: MaskCommand) -> None:
        """Mask the vector of a round."""

    def make_model(self, command: MakeModel) -> None:
        """Make the personal model of an earlier round."""

    def pause(self) -> None:
        """Pause the round."""

    def go_on(self) -> None:
        """Continue the round."""

    def cancel(self) -> None:
        """End the round without an update."""

    def stop(self) -> None:
        """Give back the memory of the training."""


class OwnerPort(Protocol):
    """Decides on work (policy.owner_policy.OwnerPolicy describes the calls)."""

    @property
    def unwilling(self) -> Condition | None:
        """The condition that presence reports as not met; None while willing."""

    @property
    def words(self) -> tuple[str, ...]:
        """Unmet preferences in words, for the owner."""

    @property
    def facts(self) -> Facts | None:
        """The newest facts, None before the first look-up."""

    def decide(self, task: str, traffic_bytes: int, now: float) -> AdmissionDecision | None:
        """Decide on a work request; None without fresh facts."""

    def use(self, preferences: Preferences) -> None:
        """Follow other preferences from now on."""

    def update_facts(self, facts: Facts, job: Job, tasks: Sequence[str], now: float) -> list[FromOwner]:
        """Take new facts and return the events for the current work."""

    def tick(self, job: Job, now: float) -> None:
        """Let time pass."""

    def next_deadline(self, job: Job) -> float | None:
        """Return the time at which `tick` is due; None if it is due at no time."""

    def spent_today(self, now: float) -> Usage:
        """Return the usage of this day, including the current work."""

    def stop(self, now: float) -> None:
        """The agent ends."""


class LimitsPort(Protocol):
    """Limits what may leave the device (policy.owner_limits.OwnerLimits describes the calls)."""

    @property
    def privacy(self) -> PrivacyBudget | None:
        """The limit of privacy loss; None for none."""

    @property
    def declines(self) -> str:
        """The damage because of which every request is declined; "" for none."""

    def take(self, ready: Ready) -> None:
        """Take the model and data that are loaded."""

    def refusal(self, task: str, request: WorkRequest) -> AdmissionDecision | None:
        """Return the decision to decline a request beyond the limits; None if it is within them."""

    def why_not_send(self, request: WorkRequest | None, manifest: Manifest) -> str:
        """Return why an update must not leave the device; "" if it may."""

    def terms(self) -> list[str]:
        """Return what a request must have, in words."""

    def status(self) -> dict[str, Any]:
        """Return what stays private, for status.json."""
