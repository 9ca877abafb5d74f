"""The device's state for the bus, read from the agent's state directory, and the owner's pause file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedpatch.device_agent.bus.home_assistant import OFF, ON
from fedpatch.device_agent.models.store import MODELS_DIRECTORY, ModelStore
from fedpatch.device_agent.policy.admission_file import text_of
from fedpatch.device_agent.policy.admission_mode import decide, parse_admission_mode
from fedpatch.device_agent.policy.objections import PAUSED_WORDS, besides_pause
from fedpatch.device_agent.state.pause_file import end_pause, is_paused, write_pause
from fedpatch.device_agent.state.status_file import STARTING, AgentStatus, read_standing
from fedpatch.shared.errors import FedpatchError
from fedpatch.shared.tasks.model_metadata import ModelMetadata

_MOST_REASONS = 20
_LONGEST = 200


def read_state(state_dir: Path) -> dict[str, Any]:
    """Return the state as plain data; an agent that never ran, or whose files cannot be read, is `unknown` with the reason."""
    paused = is_paused(state_dir, if_unknown=False)
    try:
        standing, model = read_standing(state_dir), _model(state_dir)
    except FedpatchError as error:
        return _state("unknown", [str(error)], {}, None, paused)
    status = standing.status
    return _state(_word(standing, paused), _reasons(standing, paused), status, model, paused)


def set_paused(state_dir: Path, paused: bool) -> None:
    """Write or delete the owner's pause file.

    Raises:
        StateError: The disk refused.
    """
    if paused:
        write_pause(state_dir)
    else:
        end_pause(state_dir)


def _state(
    word: str, reasons: list[str], status: Mapping[str, Any], model: ModelMetadata | None, paused: bool
) -> dict[str, Any]:
    return {
        "state": word,
        "user_accuracy": model.user_accuracy if model else None,
        "round": model.round if model else None,
        "last_round": str(status.get("last_outcome") or "none")[:_LONGEST],
        "examples": sum(int(task["num_examples"]) for task in status.get("tasks", ())),
        "willing": OFF if reasons else ON,
        "reasons": [reason[:_LONGEST] for reason in reasons[:_MOST_REASONS]],
        "may_work": OFF if paused else ON,
    }


def _word(standing: AgentStatus, paused: bool) -> str:
    """Return the agent's state in a word. The pause file makes an idle agent paused: the agent reads it only at a request."""
    if not standing.running:
        return "stopped"
    if not standing.status:
        return STARTING
    word = str(standing.status.get("state", STARTING))[:_LONGEST]
    return "paused" if standing.status.get("paused") or (paused and word == "idle") else word


def _reasons(standing: AgentStatus, paused: bool) -> list[str]:
    """Return the reasons why the device would not accept work now; none if it would."""
    if not standing.running:
        return ["the agent is not running"]
    status = standing.status
    if not status or status.get("state") == STARTING:
        return ["the task is being loaded"]
    reasons = [PAUSED_WORDS] if paused else []
    if status.get("declines"):
        reasons.append(status["declines"])
    if status.get("admission") == "never":
        reasons.append("its owner chose never")
    if refused := status.get("refused"):
        reasons.append(f"a request like the last one is declined: {refused}")
    reasons += besides_pause(status.get("unwilling", ()))
    return reasons + _reasons_of_file(str(status.get("admission", "")))


def _reasons_of_file(admission: str) -> list[str]:
    """Return the reason to decline in the owner's file; none where it accepts, or `admission` names no file."""
    if not admission.startswith("file:"):
        return []
    order = parse_admission_mode(admission)
    verdict = decide(order, text_of(order, warn=False))  # it looks every few seconds
    return [] if verdict.accept else [verdict.why]


def _model(state_dir: Path) -> ModelMetadata | None:
    """The metadata of the present personal model of the first task that has one."""
    store = ModelStore(state_dir / MODELS_DIRECTORY)
    for task in store.tasks():
        for version in store.versions(task):
            if version.current:
                return version.metadata
    return None
