"""What an agent holds and writes on its device: `python -m benchmarks.footprint`.

A real agent at a real mosquitto plays rounds of a real coordinator; the kernel tells what its two processes hold. Linux only.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from benchmarks.documents import Out, Toy, deliver
from benchmarks.process_memory import Memory, bytes_written, children_of, memory_of
from benchmarks.programs import running
from benchmarks.shipped_broker import shipped_broker
from shared.command import AsJson, command, interruptible, run_app
from shared.errors import FedpatchError

NAME = "benchmarks.footprint"
PATIENCE_S = 300.0
RELEASE_S = 5.0
"""The agent's idle_release_s; within it, what is held right after the last round is measured."""
QUIET_S = 20.0

_POLL_S = 0.02

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@command(
    app, "footprint", example="FEDPATCH_DATA=... python -m benchmarks.footprint --out results/benchmarks/footprint.json"
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
        agent = stack.enter_context(_process(folder, "device_agent", *options, "--idle-release-s", str(RELEASE_S)))
        states: list[dict[str, Any]] = []

        def note(state: str, found: dict[str, Memory]) -> None:
            states.append({"state": state, **{who: memory.to_dict() for who, memory in found.items()}})

        _wait(agent, lambda: _status(folder).get("tasks"), "is ready")
        note("ready, nothing trained yet", _both(agent.pid))
        run = ["--broker", url, "--task", task, "--devices", "1", "--rounds", str(rounds), "--json"]
        with _process(folder, "coordinator", *run, "--state-dir", str(folder / "coordinator")) as coordinator:
            most: dict[str, Memory] = {}
            while coordinator.poll() is None:
                for who, memory in _both(agent.pid).items():
                    most[who] = memory.most(most.get(who, memory))
                time.sleep(_POLL_S)
            if coordinator.returncode:
                raise FedpatchError(f"the run failed: {(folder / 'coordinator.log').read_text()[-2000:]}")
        note("while rounds are played (the most)", most)
        note("after the last round", _both(agent.pid))
        _wait(agent, lambda: not children_of(agent.pid), "gives the memory of training back")
        note("idle, training released", _both(agent.pid))
        before = bytes_written(agent.pid), _spent_s(agent.pid)
        time.sleep(quiet_s)
        written, spent_s = bytes_written(agent.pid) - before[0], _spent_s(agent.pid) - before[1]
    quiet = {"seconds": quiet_s, "bytes_written": written, "cpu_s": round(spent_s, 3)}
    return {"task": task, "data": data, "rounds": rounds, "states": states, "quiet": quiet}


def _both(agent: int) -> dict[str, Memory]:
    """The agent, and its training process where there is one."""
    found = {"agent": memory_of(agent)}
    for child in children_of(agent):
        found["training"] = memory_of(child)
    return {who: memory for who, memory in found.items() if memory is not None}


def _spent_s(pid: int) -> float:
    user, system = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def _status(folder: Path) -> dict[str, Any]:
    path = folder / "agent" / "status.json"
    return dict(json.loads(path.read_bytes())) if path.exists() else {}


def _wait(process: subprocess.Popen[bytes], fits: Callable[[], object], what: str) -> None:
    give_up_at = time.monotonic() + PATIENCE_S
    while not fits():
        if process.poll() is not None or time.monotonic() > give_up_at:
            raise FedpatchError(f"the agent never {what}")
        time.sleep(_POLL_S)


@contextmanager
def _process(folder: Path, package: str, *options: str) -> Iterator[subprocess.Popen[bytes]]:
    """`run` of a command of ours; what it says goes to a file."""
    with running(folder / f"{package}.log", [sys.executable, "-P", "-m", package, "run", *options]) as process:
        yield process


def _table(document: dict[str, Any]) -> Iterator[str]:
    yield "| state | agent RSS | agent PSS | training RSS | training PSS | training peak |"
    yield "|---|---|---|---|---|---|"
    for row in document["states"]:
        cells = [_mb(row, "agent", "rss_bytes"), _mb(row, "agent", "pss_bytes"), _mb(row, "training", "rss_bytes")]
        cells += [_mb(row, "training", "pss_bytes"), _mb(row, "training", "peak_bytes")]
        yield f"| {row['state']} | {' | '.join(cells)} |"
    quiet = document["quiet"]
    yield f"idle for {quiet['seconds']:g} s: {quiet['bytes_written']} bytes written, {quiet['cpu_s']} s of processor time"


def _mb(row: dict[str, Any], who: str, what: str) -> str:
    return f"{row[who][what] / 1e6:.0f} MB" if who in row else "-"


def main() -> NoReturn:
    """Runs the command."""
    run_app(app, f"python -m {NAME}")


if __name__ == "__main__":
    main()
