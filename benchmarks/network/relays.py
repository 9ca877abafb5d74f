"""Two-level rounds against flat ones: `python -m benchmarks.network.relays`.

One hub, and two fleets with the same number of light devices: all at the hub's broker, or in sites with a broker and a relay
each. The two fleets alternate on one machine, so that other programs slow both.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.device.light_devices import LightDevices
from benchmarks.network.shipped_broker import shipped_broker
from benchmarks.support.documents import Document, Out, Toy, deliver
from benchmarks.support.programs import ROOT
from benchmarks.support.report import begun
from fedpatch.shared.app.command import AsJson, command, run_app
from fedpatch.shared.app.signals import interruptible
from fedpatch.shared.errors import FedpatchError
from fedpatch.shared.tasks.task import Task, find_task

FLAT, TREE = "flat", "tree"
PATIENCE_S = 1800.0
_UNBOUNDED = ("--norm-bound", "off", "--max-num-examples", "off")

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@command(app, "relays", example="python -m benchmarks.network.relays --out results/benchmarks/relays.json")
def relays(
    devices: Annotated[
        int, typer.Option(min=1, metavar="N", help="Devices in all; the same number in each site.")
    ] = 40,
    sites: Annotated[int, typer.Option(min=1, metavar="N", help="Sites, with a broker and a relay each.")] = 4,
    rounds: Annotated[int, typer.Option(min=2, metavar="N", help="Rounds of a turn; the first is not counted.")] = 10,
    turns: Annotated[int, typer.Option(min=1, metavar="N", help="Turns with flat and with two-level rounds.")] = 5,
    task: Annotated[str, typer.Option(metavar="NAME", help="Task, for the size of its model.")] = "mnist",
    toy: Toy = False,
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """Measure rounds of light devices at one hub, and of as many behind relays: seconds, and bytes over the hub's broker."""
    if toy:
        devices, sites, rounds, turns, task = 4, 2, 2, 1, "digits"
    document = begun("network.relays", turns)
    found = find_task(task)
    with interruptible(), tempfile.TemporaryDirectory(prefix="fedpatch-relays-") as name, ExitStack() as stack:
        folder = Path(name)
        hub = stack.enter_context(_two_fleets(folder, found, devices, sites))
        records: dict[str, list[dict[str, Any]]] = {FLAT: [], TREE: []}
        for turn in range(turns):
            for fleet, count in ((FLAT, devices), (TREE, sites)):
                place = folder / f"{fleet}-{turn}"
                records[fleet] += _rounds(hub, fleet, count, place, task=task, rounds=rounds, members=devices)
    document |= {"devices": devices, "sites": sites, "rounds": rounds, "task": task}
    document |= {fleet: _figures(own) for fleet, own in records.items()}
    deliver(document, _lines, out, as_json)


@contextmanager
def _two_fleets(folder: Path, task: Task, devices: int, sites: int) -> Iterator[str]:
    """Run the hub's broker with the flat fleet, and the sites; yield the URL of the broker."""
    with ExitStack() as stack:
        fleets = []

        def begin(broker: str, fleet: str, count: int) -> None:
            own = LightDevices(broker=broker, fleet=fleet, task=task, count=count, processes=1)
            fleets.append(stack.enter_context(own))

        hub = stack.enter_context(shipped_broker(_folder(folder / "hub"))).url
        begin(hub, FLAT, devices)
        for number in range(sites):
            place = _folder(folder / f"site-{number}")
            site = stack.enter_context(shipped_broker(place)).url
            begin(site, "site", devices // sites)
            stack.enter_context(_relay(hub, site, place, number, task, devices // sites))
        for one in fleets:
            one.wait_ready()
        yield hub


def _folder(path: Path) -> Path:
    path.mkdir()
    return path


@contextmanager
def _relay(hub: str, site: str, place: Path, number: int, task: Task, devices: int) -> Iterator[None]:
    line = ["run", "--until-stdin-closes", "--up", hub, "--up-fleet", TREE, "--device-id", f"site-{number}"]
    line += ["--down", site, "--fleet", "site", "--task", task.name, "--state-dir", str(place / "relay")]
    line += ["--min-cohort", str(devices), "--quorum", "1", *_UNBOUNDED]
    with (place / "relay.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "fedpatch.relay", *line], cwd=ROOT, stdin=subprocess.PIPE, stdout=log, stderr=log
        )
    try:
        yield
    finally:
        assert process.stdin is not None
        process.stdin.close()
        process.wait()


def _rounds(
    hub: str, fleet: str, count: int, place: Path, *, task: str, rounds: int, members: int
) -> list[dict[str, Any]]:
    """Do a run and return its records; raise FedpatchError unless each round has all devices."""
    line = ["run", "--json", "--broker", hub, "--fleet", fleet, "--state-dir", str(place), "--task", task]
    line += ["--devices", str(count), "--rounds", str(rounds), "--max-members", str(members), "--quorum", "1"]
    line += ["--strategy", "fedavg", "--encoding", "fp32", "--independent-every", "0", "--metrics", "none"]
    line += ["--wait-s", "300", "--grace-s", "300", "--recruit-deadline-s", "300", "--rejoin-s", "300", *_UNBOUNDED]
    done = subprocess.run(
        [sys.executable, "-m", "fedpatch", *line],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    if done.returncode:
        raise FedpatchError(f"the run of fleet {fleet} ended with {done.returncode}:\n{done.stderr[-2000:]}")
    records: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])["rounds"]
    if incomplete := [one["round"] for one in records if one["measured"] != members]:
        raise FedpatchError(f"rounds {incomplete} of fleet {fleet} lack devices:\n{done.stderr[-2000:]}")
    return records


def _figures(records: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Return medians over rounds, without the first of each run, which waits for the devices."""
    later = [one for one in records if one["round"] > 1]
    return {
        "round_s": statistics.median(sum(one["phase_seconds"].values()) for one in later),
        "bytes_up": statistics.median(one["bytes_up"] for one in later),
        "bytes_down": statistics.median(one["bytes_down"] for one in later),
    }


def _lines(document: Document) -> Iterator[str]:
    flat, tree = document[FLAT], document[TREE]
    yield f"{document['devices']} devices of task {document['task']}, flat and in {document['sites']} sites"
    yield "| | flat | two levels | ratio |"
    yield "|---|---|---|---|"
    for name, scale, unit in (("round_s", 1, "s"), ("bytes_up", 1e6, "MB"), ("bytes_down", 1e6, "MB")):
        one, other = flat[name] / scale, tree[name] / scale
        yield f"| {name}, {unit} | {one:.3g} | {other:.3g} | {other / one:.2f} |"


if __name__ == "__main__":
    run_app(app, "python -m benchmarks.network.relays")
