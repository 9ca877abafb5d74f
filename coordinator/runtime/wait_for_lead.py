"""A coordinator with standbys waits for the lead of its fleet, with its model built, and then leads."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from fedpatch.coordinator.blobs.blob_store import open_blobs
from fedpatch.coordinator.observability.metrics_endpoint import waiting_as_standby
from fedpatch.coordinator.observability.status_message import View
from fedpatch.coordinator.runtime.broker_probe import BrokerProbe
from fedpatch.coordinator.runtime.event_queue import EventQueue
from fedpatch.coordinator.runtime.ports import Ports
from fedpatch.coordinator.runtime.start_run import check_and_prepare
from fedpatch.coordinator.settings import RunSettings
from fedpatch.coordinator.storage.database.opening import choose_database
from fedpatch.coordinator.storage.leadership import Leadership
from fedpatch.coordinator.storage.run_registry import REGISTRY_FILE, Registry
from fedpatch.shared.app.files import make_directory, refusals_of


@contextmanager
def leading(settings: RunSettings, view: View, ports: Ports, *, again: bool = False) -> Iterator[tuple[Ports, bool]]:
    """Wait until this coordinator leads its fleet, with the model built; yield its ports, and whether it had to wait.

    Args:
        again: Whether this coordinator has led the fleet already.
    """
    assert settings.state is not None
    prepared = check_and_prepare(settings, ports)
    state_dir = settings.state_dir.absolute()
    if not again:  # a former leader retries its store
        open_blobs(settings.blobs, state_dir / "new").check()
    with refusals_of(state_dir):
        make_directory(state_dir)
    choose_database(state_dir / REGISTRY_FILE, settings.state)
    with Leadership(settings.state, settings.fleet) as leadership:
        queue = EventQueue(ports.clock, ports.queue())
        begun = False
        while not begun:
            with (
                ports.interrupts(queue),
                waiting_as_standby(settings, view),
                BrokerProbe(settings, ports, view) as link,
            ):
                again = leadership.wait(view.say, queue.ending, link.connected, again=again)
            Registry(state_dir / REGISTRY_FILE, patient=True).close()  # creates or migrates the tables
            begun = leadership.begin()
        view.say(f"leading fleet {settings.fleet!r}, epoch {leadership.epoch}")
        yield replace(ports, prepare=lambda _: prepared, leadership=leadership), again
