"""Ten thousand devices and more, in simulated time, through the real engine: `python -m benchmarks.network.load_virtual`."""

from __future__ import annotations

import json
import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any

import typer

from benchmarks.device.process_memory import memory_bytes
from benchmarks.support.documents import Out, deliver
from benchmarks.support.programs import measured_apart
from fedpatch.shared.app.command import AsJson, command, run_app
from fedpatch.shared.app.signals import interruptible
from fedpatch.simulator.fleet.settings import FleetTerms
from fedpatch.simulator.fleet.simulation import SimulatedFleet

FLEETS = (1_000, 10_000, 100_000)
SIZES = (800_000, 45_000)
"""Bytes of the model and of an update: the 2NN as fp32, and as delta-int8."""

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@command(
    app, "load_virtual", example="python -m benchmarks.network.load_virtual --out results/benchmarks/load-virtual.json"
)
def load_virtual(  # noqa: PLR0913 - one keyword per choice of the user
    devices: Annotated[list[int] | None, typer.Option(min=1, metavar="N", help="Sizes of fleets (repeatable).")] = None,
    size: Annotated[
        list[int] | None, typer.Option(min=1, metavar="BYTES", help="Of model and update (repeatable).")
    ] = None,
    rounds: Annotated[int, typer.Option(min=1, metavar="N", help="Rounds of each fleet.")] = 2,
    asked: Annotated[int, typer.Option(min=1, metavar="N", help="Devices that a round asks at most.")] = 10_000,
    out: Out = None,
    toy: Annotated[bool, typer.Option("--toy", help="A smoke test: 20 and 40 devices.")] = False,
    sites: Annotated[
        int, typer.Option(min=0, metavar="N", help="Relays: each fleet is the devices of one site. 0: one level.")
    ] = 0,
    alone: Annotated[
        bool, typer.Option("--alone", hidden=True, help="Play the one fleet in this very process.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Play rounds of whole fleets in simulated time, each in a process of its own, and print how time and memory grow."""
    fleets = devices or ((20, 40) if toy else FLEETS)
    with interruptible():
        if alone:
            assert devices and size
            alone_at = measure_sites if sites else measure
            typer.echo(json.dumps(alone_at(_terms(devices[0], size[0], rounds, asked), sites)))
            return
        common = ["benchmarks.network.load_virtual", "--alone", f"--rounds={rounds}"]
        common += [f"--asked={asked}", f"--sites={sites}"]
        found = [
            measured_apart(*common, f"--devices={count}", f"--size={each}")
            for each in size or SIZES
            for count in fleets
        ]
    deliver({"fleets": found, "cores": os.cpu_count()}, lambda _: table(found), out, as_json)


def _terms(devices: int, size_bytes: int, rounds: int, asked: int) -> FleetTerms:
    return FleetTerms(
        devices=devices,
        rounds=rounds,
        participation=min(1.0, asked / devices),
        over_select=1.0,
        model_bytes=size_bytes,
        update_bytes=size_bytes,
    )


def measure(terms: FleetTerms, sites: int = 0, train_s_of: Callable[[int, int], float] | None = None) -> dict[str, Any]:
    """Run all rounds of a fleet, and return its time and memory.

    Args:
        terms: The fleet.
        sites: Number of relays if its devices are relays, only for the result; 0 if they are devices.
        train_s_of: Returns the training time in seconds of a device in a round; None: it is drawn.
    """
    devices, rounds = terms.devices, terms.rounds
    before = memory_bytes("VmRSS")
    began, spent = time.perf_counter(), time.process_time()
    fleet = SimulatedFleet(terms, train_s_of=train_s_of)
    fleet.run()
    wall_s, cpu_s = time.perf_counter() - began, time.process_time() - spent
    return {
        "devices": devices,
        "sites": sites,
        "size_bytes": terms.update_bytes,
        "rounds": rounds,
        "asked": round(terms.participation * devices),
        "wall_s": wall_s / rounds,
        "cpu_s": cpu_s / rounds,
        "events": fleet.agenda.done / rounds,
        "us_per_event": 1e6 * cpu_s / fleet.agenda.done,
        "bytes_per_device": (memory_bytes("VmHWM") - before) / devices,
        "virtual_s": sum(one.seconds for one in fleet.rounds) / rounds,
        "failed": sum(one.outcome != "aggregated" for one in fleet.rounds),
        "reported": sum(one.reported for one in fleet.rounds) / rounds,
        "round_s": [one.seconds for one in fleet.rounds],
    }


def measure_sites(terms: FleetTerms, sites: int) -> dict[str, Any]:
    """Run the rounds of all sites, then those of a hub whose devices are their relays.

    In each round of the hub, a relay takes as long as the round of its site, and sends one update. A site's round depends on
    the hub only by the time at which it begins, so the sites can be simulated one after the other.

    Args:
        terms: Fleet of one site; the seed of each site differs.
        sites: Number of sites.

    Returns:
        The figures of the hub; under "site" the means of the sites' figures.
    """
    hub = replace(terms, devices=sites, participation=1.0, unwilling=0.0, dropout_training=0.0, dropout_upload=0.0)
    memory = measure(hub, sites)["bytes_per_device"]  # first, before the sites raise the peak of the process
    found = [measure(replace(terms, seed=number)) for number in range(1, sites + 1)]
    result = measure(hub, sites, lambda relay, number: found[relay - 1]["round_s"][number - 1])
    result["bytes_per_device"] = memory
    names = ("cpu_s", "events", "virtual_s", "reported", "failed")
    result["site"] = {name: statistics.mean(one[name] for one in found) for name in names}
    result["site"] |= {"devices": terms.devices, "asked": found[0]["asked"]}
    return result


def table(found: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield a row for each fleet, as Markdown."""
    yield (
        "| devices | asked | model and update | CPU s per round | events per asked device | us per event | kB per device | "
        "a round in simulated time | reported |"
    )
    yield "|---|---|---|---|---|---|---|---|---|"
    for one in found:
        cells = [
            f"{one['sites']:,} relays x {one['site']['devices']:,}" if one.get("sites") else f"{one['devices']:,}",
            f"{one['asked']:,}",
            f"{one['size_bytes'] / 1e3:.0f} kB",
            f"{one['cpu_s']:.1f}",
            f"{one['events'] / one['asked']:.0f}",
            f"{one['us_per_event']:.0f}",
            f"{one['bytes_per_device'] / 1e3:.1f}",
            f"{one['virtual_s']:.0f} s{', failed' if one['failed'] else ''}",
            f"{one['reported']:,.0f}",
        ]
        yield f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    run_app(app, "python -m benchmarks.network.load_virtual")
