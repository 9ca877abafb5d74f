"""The work of `fedpatch watch`: receive the status messages of a coordinator and show them. It publishes nothing.

The status goes to stdout as frames, lines or JSON. Warnings and errors go to stderr, or above the frame.
"""

from __future__ import annotations

import json
import secrets
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

import typer
from rich.console import Console

from fedpatch.coordinator.observability.live_view import LiveView, PlainView, draw, make_view
from fedpatch.coordinator.observability.status_follower import PATIENCE_S, StatusFollower, timeless_document
from fedpatch.coordinator.observability.status_message import StatusMessage
from fedpatch.coordinator.rounds.run_summary import RunInfo
from fedpatch.coordinator.storage.database.opening import exists
from fedpatch.coordinator.storage.run_registry import REGISTRY_FILE, Registry
from fedpatch.coordinator.storage.state_dirs import as_it_is
from fedpatch.shared.errors import StateError, UsageError
from fedpatch.shared.mqtt.broker_settings import BrokerSettings, exposure, link_options
from fedpatch.shared.mqtt.client import LinkEvent, MqttLink
from fedpatch.shared.wire.topics import watcher_filters

CONNECT_TIMEOUT_S = 10.0
_IDLE_S = 0.5


class Output(ABC):
    """A form in which the status is shown."""

    @abstractmethod
    def show(self, message: StatusMessage, document: dict[str, Any]) -> None:
        """Show the status, given as a message and as plain data. Called after every event."""

    def say(self, line: str) -> None:
        """Print a line on stderr."""
        typer.echo(line, err=True)


class LiveOutput(Output):
    """The status as a live display in a terminal."""

    def __init__(self, view: LiveView) -> None:
        self._view = view

    def show(self, message: StatusMessage, document: dict[str, Any]) -> None:
        """Hand the status to the display, which draws at its own pace."""
        self._view.show(message)

    def say(self, line: str) -> None:
        """Print a line above the frame."""
        self._view.say(line)


class LineOutput(Output):
    """One line per round, as `fedpatch run` prints them."""

    def __init__(self) -> None:
        self._run = ""
        self._view = _Stdout(sys.stdout)

    def show(self, message: StatusMessage, document: dict[str, Any]) -> None:
        """Print what is new since the last call."""
        if message.run != self._run:
            self._run, self._view = message.run, _Stdout(sys.stdout)
            round_text = f", round {message.round}/{message.status.rounds_in_all}" if message.round else ""
            self._view.say(f"run {message.run}: {document['task']}{round_text}, {message.status.phase}")
        self._view.show(message)


class JsonOutput(Output):
    """One JSON document per change, each on a line."""

    def __init__(self) -> None:
        self._last: dict[str, Any] = {}

    def show(self, message: StatusMessage, document: dict[str, Any]) -> None:
        """Print the document if more than the time has changed."""
        if timeless_document(document) != self._last:
            self._last = timeless_document(document)
            typer.echo(json.dumps(document, allow_nan=False))


class FrameOutput(Output):
    """A single frame."""

    def show(self, message: StatusMessage, document: dict[str, Any]) -> None:
        """Print the frame as a live display would draw it."""
        console = Console(highlight=False, markup=False, emoji=False)
        with console.capture() as captured:
            console.print(draw(message, lines=console.height))
        encoding = sys.stdout.encoding or "utf-8"
        for line in captured.get().splitlines():
            typer.echo(line.rstrip().encode(encoding, "replace").decode(encoding))


class _Stdout(PlainView):
    """Lines on stdout. A closed stdout ends the command, unlike a closed stderr in `fedpatch run`."""

    def say(self, line: str) -> None:
        typer.echo(line)


def newest_run(places: Iterable[Path], fleet: str | None) -> RunInfo:
    """Return the newest run in these state directories; a running one comes before newer ones.

    Args:
        places: State directories; one without a registry has no runs.
        fleet: Only runs of this fleet, if given.

    Raises:
        UsageError: There is no such run.
    """
    found = [run for place in places if (run := _newest_of(place, fleet))]
    if not found:
        of_fleet = f" of fleet {fleet!r}" if fleet else ""
        raise UsageError(f"no run{of_fleet} was begun here; say where it is, with --broker URL and --fleet NAME")
    return max(found, key=lambda run: (run.status == "running", run.created_at))


def _newest_of(place: Path, fleet: str | None) -> RunInfo | None:
    if not exists(place / REGISTRY_FILE):
        return None
    with Registry(place / REGISTRY_FILE, readonly=True) as registry:
        runs = (as_it_is(run, place, registry) for run in registry.runs())
        return next((run for run in runs if fleet in (None, run.settings.get("fleet"))), None)


def watch(settings: BrokerSettings, *, once: bool, as_json: bool) -> None:
    """Show the status of the fleet's run until Ctrl-C. Call it within `shared.app.signals.interruptible`.

    Args:
        settings: Broker, fleet and credentials.
        once: Show one status and return.

    Raises:
        BrokerError: The broker cannot be reached at the start.
        StateError: With `once`: no status arrived.
    """
    events: SimpleQueue[LinkEvent] = SimpleQueue()
    link = MqttLink(
        settings.broker,
        client_id=f"fedpatch.{settings.fleet}.watch.{secrets.token_hex(4)}",
        events=events.put,
        **link_options(settings),
        clean_start=True,
    )
    if warning := exposure(link.broker):
        typer.echo(warning, err=True)
    link.subscribe(*watcher_filters(settings.fleet))
    link.start()
    try:
        link.wait_connected(CONNECT_TIMEOUT_S)
        follower = StatusFollower(settings.fleet, str(link.broker), time.monotonic())
        if once:
            _show_once(events, follower, JsonOutput() if as_json else FrameOutput())
        elif as_json:
            _show(events, follower, JsonOutput())
        else:
            _show_text(events, follower)
    finally:
        link.stop(0.0)


def _show_text(events: SimpleQueue[LinkEvent], follower: StatusFollower) -> None:
    view = make_view(sys.stdout)
    if not isinstance(view, LiveView):
        _show(events, follower, LineOutput())
        return
    with view:
        _show(events, follower, LiveOutput(view))


def _show(events: SimpleQueue[LinkEvent], follower: StatusFollower, output: Output) -> None:
    while True:
        _take_event(events, follower, output)
        message, document = follower.message(time.monotonic()), follower.document()
        if message is not None and document is not None:
            output.show(message, document)


def _show_once(events: SimpleQueue[LinkEvent], follower: StatusFollower, output: Output) -> None:
    give_up_at = time.monotonic() + PATIENCE_S
    while (message := follower.message(time.monotonic())) is None:
        if follower.alone or time.monotonic() > give_up_at:
            raise StateError(follower.why_silent())
        _take_event(events, follower, output, explain=False)
    output.show(message, follower.document() or {})


def _take_event(
    events: SimpleQueue[LinkEvent], follower: StatusFollower, output: Output, *, explain: bool = True
) -> None:
    try:
        lines = follower.take(events.get(timeout=_IDLE_S), time.monotonic())
    except Empty:
        lines = []
    if explain:
        lines += follower.tick(time.monotonic())
    for line in lines:
        output.say(line)
