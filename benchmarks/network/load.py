"""A thousand devices at one coordinator and one broker: `python -m benchmarks.network.load`."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.network.load_run import Scale, play
from benchmarks.support.documents import Out, deliver
from fedpatch.shared.app.command import AsJson, command, run_app
from fedpatch.shared.app.signals import interruptible
from fedpatch.shared.errors import UsageError
from fedpatch.shared.tasks.task import find_task

USUAL = ("encoding=fp32+zstd", "encoding=delta-int8")
BROKER = "broker."
"""Begins the name of a broker's option; all others are options of `fedpatch run`."""

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@command(app, "load", example="python -m benchmarks.network.load --variant encoding=delta-int8,upload-slots=16")
def load(
    devices: Annotated[int, typer.Option(min=1, metavar="N", help="MQTT sessions.")] = 1000,
    rounds: Annotated[int, typer.Option(min=1, metavar="N", help="Rounds of each variant; all devices in each.")] = 20,
    task: Annotated[str, typer.Option(metavar="NAME", help="Task, for the size of its model.")] = "mnist",
    variant: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE,..",
            help="Options of `fedpatch run`, and of the broker as broker.NAME (repeatable; without one: fp32 and delta-int8).",
        ),
    ] = None,
    processes: Annotated[int, typer.Option(min=1, metavar="N", help="Processes that the devices share.")] = 4,
    out: Out = None,
    toy: Annotated[bool, typer.Option("--toy", help="A smoke test: 20 devices, 2 rounds of task digits.")] = False,
    as_json: AsJson = False,
) -> None:
    """Play rounds of a thousand light devices through a real broker with the limits that we ship, and a real coordinator."""
    scale = Scale(find_task("digits" if toy else task), *((20, 2, 2) if toy else (devices, rounds, processes)))
    variants = [_parse(text) for text in variant or USUAL]
    with interruptible():
        figures = [_measure(scale, *one) for one in variants]
    document = {"task": scale.task.name, "cores": os.cpu_count(), "variants": figures}
    deliver(document, lambda _: table(figures), out, as_json)


def _measure(scale: Scale, options: Mapping[str, str], limits: Mapping[str, str]) -> dict[str, Any]:
    typer.echo(f"{_named(options, limits)} ...", err=True)
    load_before = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="fedpatch-load-") as folder:
        return {**play(scale, options, limits, Path(folder)), "load_before": load_before}


def _parse(text: str) -> tuple[dict[str, str], dict[str, str]]:
    """Return the options of the run, and those of the broker."""
    pairs = [part.partition("=") for part in text.split(",")]
    if not all(equals and name for name, equals, _ in pairs):
        raise UsageError(f"variant {text!r} is not NAME=VALUE,..; an example: encoding=delta-int8,upload-slots=16")
    options = {name.replace("_", "-"): value for name, _, value in pairs if not name.startswith(BROKER)}
    return options, {name.removeprefix(BROKER): value for name, _, value in pairs if name.startswith(BROKER)}


def _named(options: Mapping[str, str], limits: Mapping[str, str]) -> str:
    given = {**options, **{f"{BROKER}{name}": value for name, value in limits.items()}}
    return ", ".join(value if name == "encoding" else f"{name}={value}" for name, value in given.items())


def table(figures: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield a row for each variant, as Markdown."""
    yield (
        "| variant | s per round (least to most) | coordinator: CPU s per round, peak | mosquitto: CPU s per round, peak | "
        "devices: CPU s per round | messages per round | MB down + up per round | lost |"
    )
    yield "|---|---|---|---|---|---|---|---|"
    for one in figures:
        seconds = one["round_s_all"]
        cells = [
            _named(one["options"], one["limits"]),
            f"{one['round_s']:.1f} ({min(seconds):.1f} to {max(seconds):.1f})",
            f"{one['coordinator_cpu_s']:.1f}, {one['coordinator_peak_bytes'] / 1e6:.0f} MB",
            f"{one['broker_cpu_s']:.1f}, {one['broker_peak_bytes'] / 1e6:.0f} MB",
            f"{one['devices_cpu_s']:.1f}",
            f"{one['messages']:,.0f}",
            f"{one['bytes_down'] / 1e6:.0f} + {one['bytes_up'] / 1e6:.0f}",
            f"{one['lost']} of {one['devices'] * one['rounds']:,} updates, {one['disconnects']} links",
        ]
        yield f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    run_app(app, "python -m benchmarks.network.load")
