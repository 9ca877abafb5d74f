"""`fedpatch demo`: a whole fleet on this machine, with real processes and a real broker, that trains to a target.

Below its directory: `coordinator` (every run of every demo there), `devices/<id>` and `devices/<id>.log`. Devices begin
without patches, those of the demo before are removed once this one can begin: the same seed then gives the same result.
"""

from __future__ import annotations

import shutil
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from fedpatch.coordinator.demo.broker import EmbeddedBroker
from fedpatch.coordinator.demo.devices import DemoDevice, device_names, start_device, stop_devices, wait_until_ready
from fedpatch.coordinator.demo.settings import DemoSettings
from fedpatch.coordinator.observability.snapshot import Snapshot, View
from fedpatch.coordinator.rounds.run_records import RunSummary
from fedpatch.coordinator.runtime.run_execution import start_run
from fedpatch.coordinator.runtime.run_preparation import prepare
from fedpatch.shared.app.locks import FileLock
from fedpatch.shared.app.signals import ignore_signals
from fedpatch.shared.errors import BrokerError, UsageError
from fedpatch.shared.mqtt.url import parse_broker_url
from fedpatch.shared.tasks.task import Task, find_task

FLEET = "demo"
MARK = ".fedpatch-demo"

_DEVICES = "devices"
_BEFORE = ".devices-before"

_PROBE_TIMEOUT_S = 5.0


@dataclass(frozen=True)
class Demo:
    """What a demo came to, and where it left what."""

    summary: RunSummary
    state_dir: Path
    devices_dir: Path


def run_demo(settings: DemoSettings, view: View) -> Demo:
    """Start broker and devices, play the run, end them. To be called within shared.app.command.interruptible.

    Raises UsageError, BrokerError, or whatever error ended a device before the first round.
    """
    task = find_task(settings.task)
    if not task.demo_data:
        raise UsageError(f"task {task.name!r} does not say how to share its data out in a demo; give it demo_data")
    if not task.metric_terms.is_accuracy and settings.target_ua == DemoSettings.target_ua:
        settings = replace(
            settings, target_ua=None
        )  # the usual target is an accuracy, and says nothing of another measure
    with (
        open_directory(settings.out) as out,
        fresh_devices(out) as forget_the_former,
        _broker(settings.broker) as broker,
    ):
        run_settings = settings.run_settings(broker=broker, state_dir=out / "coordinator", fleet=FLEET)
        with _devices(settings, task, broker, out / _DEVICES) as devices:
            prepare(run_settings)  # what is wrong with the run is told now, not when all devices are there
            forget_the_former()
            wait_until_ready(devices, settings.wait_s, lambda there: view.show(_starting(settings, there)))
            summary = start_run(run_settings, view)
            ignore_signals()  # ending the fleet takes a while, and the result is still to be told
            for device in devices:
                if error := device.why_ended():
                    view.say(str(error))
    return Demo(summary, run_settings.state_dir, out / _DEVICES)


@contextmanager
def _devices(settings: DemoSettings, task: Task, broker: str, directory: Path) -> Iterator[list[DemoDevice]]:
    started: list[DemoDevice] = []
    try:
        for index, name in enumerate(device_names(settings.devices)):
            data = task.demo_data.format(index=index, count=settings.devices)
            options = ["--broker", broker, "--fleet", FLEET, "--task", settings.task, "--data", data]
            options += ["--max-model-mib", str(settings.max_model_mib)]
            # Who plays a demo owns its devices too, so what the run asks for is within their limits.
            options += ["--private", settings.private, "--max-steps", "100000000", "--max-epochs", "100000"]
            started.append(start_device(name, options, directory))
        yield started
    finally:
        stop_devices(started)


@contextmanager
def _broker(url: str | None) -> Iterator[str]:
    """The URL of a broker that answers."""
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
    """Devices try for ever; whoever mistyped the URL wants to know at once."""
    address = parse_broker_url(url)
    try:
        socket.create_connection((address.host, address.port), _PROBE_TIMEOUT_S).close()
    except OSError as error:
        raise BrokerError(
            f"no broker at {address}: {error.strerror or error}; start it, or leave --broker out to use the built-in one"
        ) from None


@contextmanager
def open_directory(out: Path) -> Iterator[Path]:
    """`out` for this demo alone. UsageError where it is in use or holds what no demo made."""
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
    """No devices in `out`; those of the demo before come back, unless what is yielded was called."""
    devices, before = out / _DEVICES, out / _BEFORE

    def restore() -> None:
        if before.exists():
            shutil.rmtree(devices, ignore_errors=True)
            before.rename(devices)

    restore()  # a demo was killed before it could begin
    devices.mkdir(mode=0o700, exist_ok=True)
    devices.rename(before)
    devices.mkdir(mode=0o700)
    try:
        yield lambda: shutil.rmtree(before)
    finally:
        restore()


def _starting(settings: DemoSettings, there: int) -> Snapshot:
    """The picture before there is a run."""
    return Snapshot(
        run="demo",
        round=0,
        rounds=settings.rounds,
        target_ua=settings.target_ua,
        phase="waiting",
        present=there,
        wanted=settings.devices,
    )
