"""Runs from Python: a call that returns the result, or a job in a thread with the events of its rounds."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from fedpatch.coordinator.api.events import Emit, EventView, RunEvent, shown_on_stderr
from fedpatch.coordinator.observability.status_message import View
from fedpatch.coordinator.rounds.run_summary import RunSummary
from fedpatch.coordinator.runtime.event_queue import EventQueue, Interrupt
from fedpatch.coordinator.runtime.ports import REAL, Ports
from fedpatch.coordinator.runtime.run_or_resume import run_or_resume
from fedpatch.coordinator.runtime.run_preparation import Prepared
from fedpatch.coordinator.settings import RunSettings
from fedpatch.shared.config.load import load
from fedpatch.shared.scripting.jobs import BackgroundJob, Cancellation
from fedpatch.shared.scripting.turns import TORCH_TURN

Result = TypeVar("Result")
Play = Callable[[View, Ports], RunSummary]


def run(
    *,
    config: str | Path | None = None,
    new: bool = False,
    unless_done: bool = False,
    progress: bool | None = None,
    **settings: Any,
) -> RunSummary:
    """Train with the devices of a fleet, as `fedpatch run` does, and return when the run has ended.

    An interrupt (Ctrl-C, the notebook's stop button) cancels the devices' work and ends the run, which the same call resumes.

    Args:
        config: A TOML file with settings.
        new: Begin a new run in any case. Otherwise an interrupted run with the same settings is resumed.
        unless_done: If the last run ended and had the same settings, return its result without contact to the broker.
        progress: Show the run on stderr: None where a terminal or a notebook can draw it, True in any case, False never.
        settings: Settings by name, as in docs/reference/configuration.md: `broker`, `task`, `devices`, `rounds`, ... They
            override variables FEDPATCH_..., which override the file. The text "none" unsets a setting.

    Returns:
        The result. `stopped_because` is "interrupted" after an interrupt, and "failed" after an error within the run.

    Raises:
        ConfigError: Settings are unknown, wrong, or do not fit together.
        BrokerError: The broker does not answer.
        UsageError: Another coordinator is running.

    Example:
        >>> import fedpatch
        >>> result = fedpatch.run(broker="mqtt://localhost", task="digits", devices=4, rounds=10)  # doctest: +SKIP
        >>> result.to_frame()["user_accuracy"].plot()  # doctest: +SKIP
    """
    loaded = _settings(config, settings)
    return play_here(
        lambda view, ports: run_or_resume(loaded, view, new=new, unless_done=unless_done, ports=ports), progress
    )


def start_run(
    *, config: str | Path | None = None, new: bool = False, unless_done: bool = False, **settings: Any
) -> BackgroundJob[RunEvent, RunSummary]:
    """Start a run in a thread of its own. One process may have several runs, each with its own fleet or state directory.

    Args:
        config: As of `run`.
        new: As of `run`.
        unless_done: As of `run`.
        settings: As of `run`.

    Returns:
        The job. Its events are `RoundOpened`, `RoundEnded` and `RunMessage`; `cancel` interrupts the run.

    Raises:
        ConfigError: Settings are unknown, wrong, or do not fit together. Other errors come from `BackgroundJob.result`.

    Example:
        >>> import fedpatch
        >>> with fedpatch.start_run(broker="mqtt://localhost", task="digits", devices=4) as job:  # doctest: +SKIP
        ...     for event in job:
        ...         if isinstance(event, fedpatch.RoundEnded):
        ...             print(event.record.round, event.record.user_accuracy)
    """
    loaded = _settings(config, settings)
    return play_in_thread(
        lambda view, ports: run_or_resume(loaded, view, new=new, unless_done=unless_done, ports=ports),
        f"run of fleet {loaded.fleet}",
    )


def play_here(play: Callable[[View, Ports], Result], progress: bool | None) -> Result:
    """Execute a run or an evaluate round in this thread; in the main thread SIGINT and SIGTERM interrupt it."""
    with shown_on_stderr(progress) as shown:
        return play(EventView(_ignore, shown), _ports())


def play_in_thread(play: Play, name: str) -> BackgroundJob[RunEvent, RunSummary]:
    """Execute a run in a thread with that name."""

    def work(emit: Emit, cancellation: Cancellation) -> RunSummary:
        def interrupts(queue: EventQueue) -> AbstractContextManager[None]:
            return cancellation.calls(lambda: queue.put(Interrupt()))

        return play(EventView(emit), replace(_ports(), interrupts=interrupts))

    return BackgroundJob(name, work)


def _settings(config: str | Path | None, given: Mapping[str, Any]) -> RunSettings:
    file = None if config is None else Path(config).expanduser()
    return load(RunSettings, file=file, environ=os.environ, flags=given)


def _ports() -> Ports:
    return replace(REAL, prepare=_prepare_in_turn)


def _prepare_in_turn(settings: RunSettings) -> Prepared:
    with TORCH_TURN:
        return REAL.prepare(settings)


def _ignore(event: RunEvent) -> None:
    del event
