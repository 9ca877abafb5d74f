"""The command `fedpatch demo`: a real broker, real agents and a coordinator on this machine, until a target is reached.

The directory holds `coordinator` (the runs of all demos there), `devices/<id>` and `devices/<id>.log`. Devices start without
patches, so that the same seed gives the same result; the devices of the previous demo are removed once this demo can start.
"""

from __future__ import annotations

import shutil
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from fedpatch.coordinator.demo.broker import EmbeddedBroker
from fedpatch.coordinator.demo.devices import (
    DemoDevice,
    device_names,
    serve_forks,
    start_device,
    stop_devices,
    wait_until_ready,
)
from fedpatch.coordinator.demo.settings import DemoSettings
from fedpatch.coordinator.observability.status_message import EMPTY_STATUS, StatusMessage, View
from fedpatch.coordinator.rounds.run_summary import RunSummary
from fedpatch.coordinator.runtime.run_preparation import prepare
from fedpatch.coordinator.runtime.start_run import start_run
from fedpatch.coordinator.storage.state_dirs import DEMO_SUBDIRECTORY
from fedpatch.shared.app.locks import FileLock
from fedpatch.shared.app.signals import ignore_signals
from fedpatch.shared.errors import BrokerError, UsageError
from fedpatch.shared.mqtt.url import parse_broker_url
from fedpatch.shared.tasks.task import Task, find_task
from fedpatch.shared.tensors.patch_policy import SHORTHANDS

FLEET = "demo"
MARK = ".fedpatch-demo"

_DEVICES = "devices"
_BEFORE = ".devices-before"

_PROBE_TIMEOUT_S = 5.0


@dataclass(frozen=True)
class Demo:
    """The result of a demo and its directories."""

    summary: RunSummary
    state_dir: Path
    devices_dir: Path


def run_demo(settings: DemoSettings, view: View) -> Demo:
    """Start broker and devices, run to the end, stop them. Call it within `shared.app.signals.interruptible`.

    Raises:
        UsageError: The task, the directory or a setting does not fit a demo.
        BrokerError: No broker answers.
        FedpatchError: The error that ended a device before the first round.
    """
    task = find_task(settings.task)
    if not task.demo_data:
        raise UsageError(f"task {task.name!r} does not say how to share its data out in a demo; give it demo_data")
    if not task.metric_terms.is_accuracy and settings.target_ua == DemoSettings.target_ua:
        settings = replace(settings, target_ua=None)  # the default target is an accuracy
    with (
        open_directory(settings.out) as out,
        fresh_devices(out) as forget_the_former,
        _broker(settings.broker) as broker,
    ):
        run_settings = settings.run_settings(broker=broker, state_dir=out / DEMO_SUBDIRECTORY, fleet=FLEET)
        with serve_forks(out / _DEVICES) as forks, _devices(settings, task, broker, out / _DEVICES, forks) as devices:
            prepare(run_settings)  # raises errors of the settings before the wait for devices
            forget_the_former()
            wait_until_ready(devices, settings.wait_s, lambda there: view.show(_starting(settings, there)))
            summary = start_run(run_settings, view)
            ignore_signals()  # stopping the fleet takes time, and the result must still be printed
            for device in devices:
                if error := device.why_ended():
                    view.say(str(error))
    return Demo(summary, run_settings.state_dir, out / _DEVICES)


@contextmanager
def _devices(
    settings: DemoSettings, task: Task, broker: str, directory: Path, forks: Path
) -> Iterator[list[DemoDevice]]:
    started: list[DemoDevice] = []
    try:
        for index, name in enumerate(device_names(settings.devices)):
            data = task.demo_data.format(index=index, count=settings.devices)
            options = ["--broker", broker, "--fleet", FLEET, "--task", settings.task, "--data", data]
            options += ["--max-model-mib", str(settings.max_model_mib)]
            # The user of a demo owns its devices, so their limits allow the plan of the run.
            floor = "none" if settings.private in SHORTHANDS else settings.private
            options += ["--private", floor, "--max-steps", "100000000", "--max-epochs", "100000"]
            options += ["--fork-server", str(forks)]
            # To write a model in each short round would take longer than the round; a device writes its last model when it
            # stops.
            options += ["--model-every-s", "600"]
            started.append(start_device(name, options, directory))
        yield started
    finally:
        stop_devices(started)


@contextmanager
def _broker(url: str | None) -> Iterator[str]:
    """Yield the URL of a broker that answers."""
    if url is not None:
        _probe(url)
        yield url
        return
    broker = EmbeddedBroker(port=0)
    broker.start()
    try:
        yield broker.url
    finally:
        broker.stop()


def _probe(url: str) -> None:
    """Check the broker now: devices would retry a wrong URL for ever."""
    address = parse_broker_url(url)
    try:
        socket.create_connection((address.host, address.port), _PROBE_TIMEOUT_S).close()
    except OSError as error:
        raise BrokerError(
            f"no broker at {address}: {error.strerror or error}; start it, or leave --broker out to use the built-in one"
        ) from None


@contextmanager
def open_directory(out: Path) -> Iterator[Path]:
    """Lock `out` for this demo; UsageError where it is in use or has files of another origin."""
    out = out.expanduser().absolute()
    try:
        out.mkdir(parents=True, exist_ok=True)
        foreign = not (out / MARK).exists() and any(out.iterdir())
    except (FileExistsError, NotADirectoryError):
        raise UsageError(f"--out: {out} is not a directory; name one") from None
    if foreign:
        raise UsageError(f"--out: {out} holds files that no demo made; name an empty or a new directory")
    with FileLock(out / MARK, f"--out: a demo is running in {out}; name another directory"):
        yield out


@contextmanager
def fresh_devices(out: Path) -> Iterator[Callable[[], None]]:
    """Yield a function that removes the devices of the previous demo; unless it is called, they are restored."""
    devices, before = out / _DEVICES, out / _BEFORE

    def restore() -> None:
        if before.exists():
            shutil.rmtree(devices, ignore_errors=True)
            before.rename(devices)

    restore()  # a demo was killed before its start was complete
    devices.mkdir(mode=0o700, exist_ok=True)
    devices.rename(before)
    devices.mkdir(mode=0o700)
    try:
        yield lambda: shutil.rmtree(before)
    finally:
        restore()


def _starting(settings: DemoSettings, present: int) -> StatusMessage:
    """The status before the run exists."""
    status = replace(
        EMPTY_STATUS,
        rounds_in_all=settings.rounds,
        target_ua=settings.target_ua,
        present=present,
        wanted=settings.devices,
    )
    return StatusMessage("demo", 0, status)
