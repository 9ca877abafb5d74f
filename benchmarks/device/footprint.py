"""Memory and disk writes of an agent on its device: `python -m benchmarks.device.footprint`.

A real agent at a real mosquitto takes part in rounds of a real coordinator; the kernel reports the memory of its two
processes. Linux only.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.device.clocks import children_of, cpu_s, family
from benchmarks.device.idle_agent import RELEASE_S, status_of, wait_until
from benchmarks.device.process_memory import Memory, bytes_written, memory_of
from benchmarks.network.shipped_broker import shipped_broker
from benchmarks.support.documents import Out, Toy, deliver
from benchmarks.support.programs import end_of, running
from fedpatch.shared.app.command import AsJson, command, run_app
from fedpatch.shared.app.signals import interruptible
from fedpatch.shared.errors import FedpatchError

QUIET_S = 20.0

_POLL_S = 0.02

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@command(
    app,
    "footprint",
    example="FEDPATCH_DATA=... python -m benchmarks.device.footprint --out results/benchmarks/footprint.json",
)
def footprint(
    task: Annotated[str, typer.Option(metavar="NAME", help="Task that is trained.")] = "mnist",
    data: Annotated[str, typer.Option(metavar="SPEC", help="The device's data.")] = "shard:0/10",
    rounds: Annotated[int, typer.Option(min=1, metavar="N", help="Rounds to play.")] = 3,
    quiet_s: Annotated[float, typer.Option(min=0.0, metavar="S", help="How long to watch an idle agent.")] = QUIET_S,
    toy: Toy = False,
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """Measure the memory of an agent and of its training process in each state, and what an idle agent writes."""
    if toy:
        task, data, rounds, quiet_s = "digits", "shard:0/10", 2, min(quiet_s, 2.0)
    with interruptible(), tempfile.TemporaryDirectory(prefix="fedpatch-footprint-") as folder:
        document = _measure(Path(folder), task, data, rounds, quiet_s)
    deliver(document, _table, out, as_json)


def _measure(folder: Path, task: str, data: str, rounds: int, quiet_s: float) -> dict[str, Any]:
    with ExitStack() as stack:
        url = stack.enter_context(shipped_broker(folder)).url
        options = ["--broker", url, "--task", task, "--data", data, "--state-dir", str(folder / "agent")]
        agent = stack.enter_context(
            _process(folder, "fedpatch.device_agent", *options, "--idle-release-s", str(RELEASE_S))
        )
        log = _log(folder, "fedpatch.device_agent")
        states: list[dict[str, Any]] = []

        def note(state: str, found: dict[str, Memory]) -> None:
            states.append({"state": state, **{who: asdict(memory) for who, memory in found.items()}})

        wait_until(agent, log, lambda: status_of(folder / "agent").get("tasks"), "is ready")
        note("ready, nothing trained yet", _both(agent.pid))
        run = ["--broker", url, "--task", task, "--devices", "1", "--rounds", str(rounds), "--json"]
        with _process(folder, "fedpatch", *run, "--state-dir", str(folder / "coordinator")) as coordinator:
            most: dict[str, Memory] = {}
            while coordinator.poll() is None:
                for who, memory in _both(agent.pid).items():
                    most[who] = memory.most(most.get(who, memory))
                time.sleep(_POLL_S)
            if coordinator.returncode:
                raise FedpatchError(f"the run failed: {end_of(_log(folder, 'fedpatch'))}")
        note("while rounds are played (the most)", most)
        note("after the last round", _both(agent.pid))
        wait_until(agent, log, lambda: not children_of(agent.pid), "gives the memory of training back")
        note("idle, training released", _both(agent.pid))
        before = bytes_written(agent.pid), cpu_s([agent.pid])
        time.sleep(quiet_s)
        written, spent_s = bytes_written(agent.pid) - before[0], cpu_s([agent.pid]) - before[1]
    quiet = {"seconds": quiet_s, "bytes_written": written, "cpu_s": round(spent_s, 3)}
    return {"task": task, "data": data, "rounds": rounds, "states": states, "quiet": quiet}


def _both(agent: int) -> dict[str, Memory]:
    """Return the memory of the agent, of its training process if it has one, and of both with all their descendants."""
    found = {"agent": memory_of(agent)}
    for child in children_of(agent):
        found["training"] = memory_of(child)
    every = [memory for memory in map(memory_of, family(agent)) if memory is not None]
    sums = (sum(one.rss_bytes for one in every), sum(one.pss_bytes for one in every))
    found["all"] = Memory(*sums, peak_bytes=sums[1])
    return {who: memory for who, memory in found.items() if memory is not None}


def _log(folder: Path, package: str) -> Path:
    return folder / f"{package}.log"


def _process(folder: Path, package: str, *options: str) -> AbstractContextManager[subprocess.Popen[bytes]]:
    """Start `run` of one of our commands; its output goes to a file."""
    return running(_log(folder, package), [sys.executable, "-m", package, "run", *options])


def _table(document: dict[str, Any]) -> Iterator[str]:
    yield "| state | agent RSS | agent PSS | training RSS | training PSS | training peak | all PSS |"
    yield "|---|---|---|---|---|---|---|"
    for row in document["states"]:
        cells = [_mb(row, "agent", "rss_bytes"), _mb(row, "agent", "pss_bytes"), _mb(row, "training", "rss_bytes")]
        cells += [_mb(row, "training", "pss_bytes"), _mb(row, "training", "peak_bytes")]
        cells.append(_mb(row, "all", "pss_bytes"))
        yield f"| {row['state']} | {' | '.join(cells)} |"
    quiet = document["quiet"]
    yield f"idle for {quiet['seconds']:g} s: {quiet['bytes_written']} bytes written, {quiet['cpu_s']} s of processor time"


def _mb(row: dict[str, Any], who: str, what: str) -> str:
    return f"{row[who][what] / 1e6:.0f} MB" if who in row else "-"


if __name__ == "__main__":
    run_app(app, "python -m benchmarks.device.footprint")
