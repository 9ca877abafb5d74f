"""Cost of models over MQTT and by URL: `python -m benchmarks.network.models_by_url`. Linux only; needs nginx.

Light devices download a model of 50 MB and answer with an invented measurement (`fedpatch evaluate`), alternately through
mosquitto and from nginx with TLS. The devices run on the same machine; of the figures, only seconds include their processor
time.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.device.clocks import cpu_s
from benchmarks.device.light_devices import LightDevices
from benchmarks.device.process_memory import memory_of
from benchmarks.network.shipped_broker import shipped_broker
from benchmarks.support.contests import ratios, spread
from benchmarks.support.documents import (
    DeviceCounts,
    Document,
    Out,
    Toy,
    deliver,
    machine_line,
    parse_counts,
    table,
    within,
)
from benchmarks.support.report import begun
from fedpatch.shared.app.command import AsJson, command, run_app
from fedpatch.shared.app.signals import interruptible
from fedpatch.shared.errors import FedpatchError
from fedpatch.shared.tasks.task import find_task
from tests.support.nginx import Nginx
from tests.system.fleet import Fleet

BENCHMARK = "models-by-url"
FLEET = "benchmark"
WAYS = ("mqtt", "https")
MODEL = "benchmarks.support.synthetic_task:LARGE"
ENCODING = "delta-int8"
"""Encoding of the updates of the preparation; a device without a model downloads the whole model with any of them."""
_BEGUN = "measuring without training"  # the coordinator's line after its imports, before it publishes
_SECONDS = ("download_s", "broker_cpu_s", "coordinator_cpu_s", "nginx_cpu_s")
_BYTES = ("broker_bytes", "broker_peak_bytes", "coordinator_peak_bytes", "devices_peak_bytes")
_FIGURES = (*_SECONDS, *_BYTES)

log = logging.getLogger("fedpatch.benchmark")

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@command(
    app, BENCHMARK, example="python -m benchmarks.network.models_by_url --out results/benchmarks/models-by-url.json"
)
def models_by_url(
    task: Annotated[str, typer.Option(metavar="TASK", help="Whose model travels.")] = MODEL,
    devices: DeviceCounts = "10,50",
    turns: Annotated[int, typer.Option(min=1, metavar="N", help="Turns of each way.")] = 3,
    toy: Toy = False,
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """Compare downloads of a model through mosquitto and from nginx: seconds, processor time, memory, bytes."""
    if toy:
        task, devices, turns = "benchmarks.support.synthetic_task:TASK", "2", 1
    counts = parse_counts(devices)
    document: Document = begun(BENCHMARK, turns)
    with interruptible():
        document["measured"] = [_compare(task, count, turns) for count in counts]
        document["agent_peak_bytes"] = {way: _agent_peak_bytes(task, way) for way in WAYS}
    deliver(document, tables, out, as_json)


@dataclass
class _Way:
    """One way to download: the run of its fleet, and the figures of its turns."""

    state: Path
    terms: Mapping[str, Any]
    ca_file: Path | None
    figures: dict[str, list[float]] = field(default_factory=lambda: {name: [] for name in _FIGURES})


def _compare(task: str, devices: int, turns: int) -> dict[str, Any]:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fedpatch-models-")))
        nginx = stack.enter_context(Nginx())
        ways = {
            "mqtt": _Way(folder / "mqtt", {}, None),
            "https": _Way(folder / "https", _served(nginx), nginx.ca_file),
        }
        for name, way in ways.items():
            log.info("%d devices: preparing a run over %s", devices, name)
            _turn(task, devices, way, folder, nginx, new=True)
        for turn in range(1, turns + 1):
            for name, way in ways.items():
                _turn(task, devices, way, folder, nginx)
                log.info(
                    "%d devices, turn %d of %d over %s: %.1f s",
                    devices,
                    turn,
                    turns,
                    name,
                    way.figures["download_s"][-1],
                )
    mqtt, https = (ways[name].figures for name in WAYS)
    return {
        "task": task,
        "devices": devices,
        **{name: {way: spread(found[name]) | {"all": found[name]} for way, found in zip(WAYS, (mqtt, https), strict=True)}
           for name in _FIGURES},
        "download_ratio": ratios(mqtt["download_s"], https["download_s"]),
    }  # fmt: skip


def _served(nginx: Nginx) -> dict[str, Any]:
    return {"models-store": nginx.store, "models-url": nginx.url}


def _turn(task: str, devices: int, way: _Way, folder: Path, nginx: Nginx, *, new: bool = False) -> None:
    """Let all devices download the model; if `new`, begin the run by a round of one device."""
    with tempfile.TemporaryDirectory(dir=folder) as place, shipped_broker(Path(place)) as broker:
        light = LightDevices(
            broker=broker.url,
            fleet=FLEET,
            task=find_task(task),
            count=devices,
            processes=min(2, devices),
            ca_file=way.ca_file,
        )
        with light:
            light.wait_ready()
            used_s = cpu_s([broker.pid]), cpu_s(nginx.pids)
            cpu, peak = _coordinate(
                _begins(task, devices, broker.url, way) if new else ["evaluate", "last", "--broker", broker.url],
                way.state,
            )
            broker_s, nginx_s = cpu_s([broker.pid]) - used_s[0], cpu_s(nginx.pids) - used_s[1]
            memory = memory_of(broker.pid)
    if new:
        return
    report = light.report
    if len(report.downloads_s) != devices:
        raise FedpatchError(f"{len(report.downloads_s)} of {devices} devices have downloaded the model")
    found: list[float] = [max(report.downloads_s), broker_s, cpu, nginx_s, report.received_bytes]
    found += [memory.peak_bytes if memory else 0, peak, report.peak_bytes]
    for name, value in zip(_FIGURES, found, strict=True):
        way.figures[name].append(float(value))


def _begins(task: str, devices: int, broker: str, way: _Way) -> list[str]:
    terms = {"broker": broker, "fleet": FLEET, "task": task, "devices": devices, "rounds": 1, "encoding": ENCODING}
    terms |= {"strategy": "fedavg", "private": "none", "participation": 1 / devices, "metrics": "none", **way.terms}
    terms |= dict.fromkeys(("wait-s", "grace-s", "recruit-deadline-s"), 300) | {"deadline-s": 600}
    return ["run", *(f"--{name}={value}" for name, value in terms.items())]


def _coordinate(words: Sequence[str], state: Path) -> tuple[float, int]:
    """Run a coordinator to its end; return the processor seconds after its start, and its greatest memory in bytes."""
    line = [sys.executable, "-m", "fedpatch", *words, "--state-dir", str(state)]
    with subprocess.Popen(line, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as process:
        assert process.stderr is not None
        began_s, said = 0.0, []
        for one in process.stderr:
            said.append(one)
            if _BEGUN in one:
                began_s = cpu_s([process.pid])
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise FedpatchError(f"the coordinator ended with {process.returncode}: {''.join(said)[-1000:]}")
    return used.ru_utime + used.ru_stime - began_s, used.ru_maxrss * 1024


def _agent_peak_bytes(task: str, way: str) -> int:
    """Return the peak memory of a real agent's process that takes part in one round."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fedpatch-models-")))
        nginx = stack.enter_context(Nginx())
        broker = stack.enter_context(shipped_broker(folder))
        fleet = stack.enter_context(Fleet(broker.url, folder, name=FLEET))
        options = ["--models-ca-file", str(nginx.ca_file), "--private", "none"]
        agent = fleet.start("pi", task, "client:1,seed=0", options=options)
        terms = _Way(folder / "state", _served(nginx) if way == "https" else {}, None)
        _coordinate(_begins(task, 1, broker.url, terms), terms.state)
        memory = memory_of(agent.pid)
        return memory.peak_bytes if memory else 0


def tables(document: Document) -> Iterator[str]:
    """Yield a row for each number of devices and way."""
    yield machine_line(document)
    yield ""
    yield from table(
        (
            "devices", "way", "download of all, s", "mosquitto, s of processor", "coordinator, s", "nginx, s",
            "MB over the broker", "mosquitto, MB", "coordinator, MB",
        ),
        (
            (
                f"{one['devices']:,}",
                way,
                within(one["download_s"][way], 1),
                *(f"{one[name][way]['median']:.2f}" for name in _SECONDS[1:]),
                *(f"{one[name][way]['median'] / 1e6:,.1f}" for name in _BYTES[:3]),
            )
            for one in document["measured"]
            for way in WAYS
        ),
    )  # fmt: skip
    yield ""
    peaks = {way: peak / 1e6 for way, peak in document["agent_peak_bytes"].items()}
    yield f"Greatest memory of an agent's process: {peaks['mqtt']:.0f} MB over MQTT, {peaks['https']:.0f} MB over HTTPS."


if __name__ == "__main__":
    run_app(app, "python -m benchmarks.network.models_by_url")
