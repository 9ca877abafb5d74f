"""The events of the agent's loop, and their queue."""

from __future__ import annotations

from dataclasses import dataclass
from queue import SimpleQueue

from fedpatch.device_agent.runtime.model_fetcher import FetchEvent
from fedpatch.device_agent.runtime.name_check import NameChecked
from fedpatch.device_agent.runtime.training_supervisor import TrainerEvent
from fedpatch.device_agent.sensors.device_facts import Facts
from fedpatch.shared.mqtt.events import LinkEvent


@dataclass(frozen=True)
class Stop:
    """A request to end the agent with this exit code; `why` is for the log."""

    exit_code: int
    why: str = ""


@dataclass(frozen=True)
class Reload:
    """A request to read the preferences again."""


TurnEvent = LinkEvent | TrainerEvent | Facts | FetchEvent | NameChecked
"""An event that leads to effects of the job."""
AgentEvent = TurnEvent | Stop | Reload
EventQueue = SimpleQueue[AgentEvent]
