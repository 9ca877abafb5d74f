"""`fedpatch watch`: listens to what a coordinator tells of its run, and shows it; it writes nothing anywhere.

What was asked for is on stdout: the picture, lines, or JSON. What hinders it is said on stderr, or above the picture.
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
from fedpatch.coordinator.observability.snapshot import Snapshot
from fedpatch.coordinator.observability.status_follower import PATIENCE_S, StatusFollower, timeless
from fedpatch.coordinator.rounds.run_records import RunInfo
from fedpatch.coordinator.storage.database import exists
from fedpatch.coordinator.storage.run_registry import REGISTRY_FILE, Registry
from fedpatch.shared.errors import StateError, UsageError
from fedpatch.shared.mqtt.broker_settings import BrokerSettings, exposure, password_of
from fedpatch.shared.mqtt.client import LinkEvent, MqttLink
from fedpatch.shared.wire.topics import watcher_filters

CONNECT_TIMEOUT_S = 10.0
_IDLE_S = 0.5


class Outlet(ABC):
    """Where things are shown."""

    @abstractmethod
    def show(self, seen: Snapshot, document: dict[str, Any]) -> None:
        """How the run stands, as a picture and as data; called at every opportunity."""

    def say(self, line: str) -> None:
        """Something worth a line of its own: on stderr."""
        typer.echo(line, err=True)


class LiveOutput(Outlet):
    """A live display."""

    def __init__(self, view: LiveView) -> None:
        self._view = view

    def show(self, seen: Snapshot, document: dict[str, Any]) -> None:
        """Drawn at the display's own pace."""
        self._view.show(seen)

    def say(self, line: str) -> None:
        """Above the picture."""
        self._view.say(line)


class LineOutput(Outlet):
    """A line per round, as `fedpatch run` has them."""

    def __init__(self) -> None:
        self._run = ""
        self._view = _Stdout(sys.stdout)

    def show(self, seen: Snapshot, document: dict[str, Any]) -> None:
        """Says what is new."""
        if seen.run != self._run:
            self._run, self._view = seen.run, _Stdout(sys.stdout)
            round_words = f", round {seen.round}/{seen.rounds}" if seen.round else ""
            self._view.say(f"run {seen.run}: {document['task']}{round_words}, {seen.phase}")
        self._view.show(seen)


class JsonOutput(Outlet):
    """A JSON document per change, each on its line."""

    def __init__(self) -> None:
        self._last: dict[str, Any] = {}

    def show(self, seen: Snapshot, document: dict[str, Any]) -> None:
        """Only where something else than the time has changed."""
        if timeless(document) != self._last:
            self._last = timeless(document)
            typer.echo(json.dumps(document, allow_nan=False))


class WatchFrame(Outlet):
    """One picture, and that is all."""

    def show(self, seen: Snapshot, document: dict[str, Any]) -> None:
        """As it would be drawn in a terminal."""
        console = Console(highlight=False, markup=False, emoji=False)
        with console.capture() as captured:
            console.print(draw(seen, lines=console.height))
        encoding = sys.stdout.encoding or "utf-8"
        for line in captured.get().splitlines():
            typer.echo(line.rstrip().encode(encoding, "replace").decode(encoding))


class _Stdout(PlainView):
    """When nobody reads any more, there is nothing left to do."""

    def say(self, line: str) -> None:
        typer.echo(line)


def newest_run(places: Iterable[Path], fleet: str | None) -> RunInfo:
    """The newest run in these state directories, of `fleet` if one is named; one that goes on comes first.

    UsageError where there is none.
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
        return next((run for run in registry.runs() if fleet in (None, run.settings.get("fleet"))), None)


def watch(settings: BrokerSettings, *, once: bool, as_json: bool) -> None:
    """Shows what is told of the fleet's run until somebody presses Ctrl-C; `once`: until something was told.

    Raises BrokerError where the broker cannot be reached at the beginning, and, with `once`, StateError where nothing is
    heard. To be called within shared.app.command.interruptible.
    """
    heard: SimpleQueue[LinkEvent] = SimpleQueue()
    link = MqttLink(
        settings.broker,
        client_id=f"fedpatch.{settings.fleet}.watch.{secrets.token_hex(4)}",
        events=heard.put,
        username=settings.username,
        password=password_of(settings),
        tls=settings.tls_files,
        clean_start=True,
    )
    if warning := exposure(link.broker):
        typer.echo(warning, err=True)
    link.subscribe(*watcher_filters(settings.fleet))
    link.start()
    try:
        link.wait_connected(CONNECT_TIMEOUT_S)
        onlooker = StatusFollower(settings.fleet, str(link.broker), time.monotonic())
        if once:
            _show_once(heard, onlooker, JsonOutput() if as_json else WatchFrame())
        elif as_json:
            _show(heard, onlooker, JsonOutput())
        else:
            _show_to_people(heard, onlooker)
    finally:
        link.stop(0.0)


def _show_to_people(heard: SimpleQueue[LinkEvent], onlooker: StatusFollower) -> None:
    view = make_view(sys.stdout)
    if not isinstance(view, LiveView):
        _show(heard, onlooker, LineOutput())
        return
    with view:
        _show(heard, onlooker, LiveOutput(view))


def _show(heard: SimpleQueue[LinkEvent], onlooker: StatusFollower, outlet: Outlet) -> None:
    while True:
        _hear(heard, onlooker, outlet)
        seen, document = onlooker.picture(time.monotonic()), onlooker.document()
        if seen is not None and document is not None:
            outlet.show(seen, document)


def _show_once(heard: SimpleQueue[LinkEvent], onlooker: StatusFollower, outlet: Outlet) -> None:
    give_up_at = time.monotonic() + PATIENCE_S
    while (seen := onlooker.picture(time.monotonic())) is None:
        if onlooker.alone or time.monotonic() > give_up_at:
            raise StateError(onlooker.why_silent())
        _hear(heard, onlooker, outlet, complain=False)
    outlet.show(seen, onlooker.document() or {})


def _hear(heard: SimpleQueue[LinkEvent], onlooker: StatusFollower, outlet: Outlet, *, complain: bool = True) -> None:
    try:
        lines = onlooker.take(heard.get(timeout=_IDLE_S), time.monotonic())
    except Empty:
        lines = []
    if complain:
        lines += onlooker.tick(time.monotonic())
    for line in lines:
        outlet.say(line)
