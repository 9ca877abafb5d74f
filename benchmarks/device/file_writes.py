"""Bytes that a device writes in a round, by file: `python -m benchmarks.device.file_writes`.

A real agent takes part in rounds of a real coordinator under strace, which records each write(2) with its file. The kernel may
write less to a card: a file that is deleted within seconds is never written. Needs strace.
"""

from __future__ import annotations

import re
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.device.idle_agent import status_of, wait_until
from benchmarks.network.shipped_broker import shipped_broker
from benchmarks.support.documents import Out, Toy, deliver, table
from benchmarks.support.programs import end_of, running
from fedpatch.shared.app.command import AsJson, command, run_app
from fedpatch.shared.app.files import UNFINISHED
from fedpatch.shared.app.signals import interruptible
from fedpatch.shared.errors import FedpatchError, UsageError

_CALLS = "write,pwrite64,writev,pwritev,pwritev2,copy_file_range,sendfile"
_WRITE = re.compile(r"(?:write|pwrite64|writev|pwritev2?)\(\d+<([^>]*)>.* = (\d+)$")
_OTHER = re.compile(r"(?:copy_file_range|sendfile)\(.*\) = [1-9]")

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@command(app, "file-writes", example="FEDPATCH_DATA=... python -m benchmarks.device.file_writes --strategy fedavg")
def file_writes(  # noqa: PLR0913 - one keyword per choice of the user
    task: Annotated[str, typer.Option(metavar="NAME", help="Task that is trained.")] = "mnist",
    data: Annotated[str, typer.Option(metavar="SPEC", help="The device's data.")] = "shard:0/10",
    rounds: Annotated[int, typer.Option(min=1, metavar="N", help="Rounds to play.")] = 10,
    strategy: Annotated[list[str] | None, typer.Option(metavar="NAME", help="Only this one; repeat it.")] = None,
    agent_option: Annotated[list[str] | None, typer.Option(metavar="OPTION", help="Option of the agent.")] = None,
    run_option: Annotated[list[str] | None, typer.Option(metavar="OPTION", help="Option of the run.")] = None,
    toy: Toy = False,
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """Count the bytes that an agent and its training process write to each file in a session of rounds."""
    if shutil.which("strace") is None:
        raise UsageError("strace is not installed; apt install strace")
    if toy:
        task, data, rounds = "digits", "shard:0/10", 2
    strategies = strategy or (["fedavg-adam"] if toy else ["fedavg", "fedavg-adam"])
    runs = []
    with interruptible():
        for name in strategies:
            with tempfile.TemporaryDirectory(prefix="fedpatch-writes-") as folder:
                written = _measure(
                    Path(folder).resolve(), task, data, rounds, name, agent_option or [], run_option or []
                )
            runs.append({"strategy": name, "bytes": dict(written.most_common())})
    document = {"task": task, "data": data, "rounds": rounds, "agent_options": agent_option or []}
    document |= {"run_options": run_option or [], "runs": runs}
    deliver(document, _tables, out, as_json)


def _measure(
    folder: Path,
    task: str,
    data: str,
    rounds: int,
    strategy: str,
    agent_options: Iterable[str],
    run_options: Iterable[str],
) -> Counter[str]:
    """Run the rounds; return the bytes by file from the agent's start to its end."""
    state, trace = folder / "agent", folder / "trace"
    with ExitStack() as stack:
        url = stack.enter_context(shipped_broker(folder)).url
        tracer = ["strace", "-DDD", "-f", "--seccomp-bpf", "-q", "-y", "-s", "0", "-e", "signal=none", "-e"]
        tracer += [f"trace={_CALLS}", "-o", str(trace)]
        options = ["--broker", url, "--task", task, "--data", data, "--state-dir", str(state), *agent_options]
        line = [*tracer, sys.executable, "-m", "fedpatch.device_agent", "run", *options]
        with running(folder / "agent.log", line) as agent:
            wait_until(agent, folder / "agent.log", lambda: status_of(state).get("tasks"), "is ready")
            run = ["--broker", url, "--task", task, "--devices", "1", "--rounds", str(rounds), "--strategy", strategy]
            run += run_options
            run = [sys.executable, "-m", "fedpatch", "run", *run, "--state-dir", str(folder / "coordinator")]
            with running(folder / "run.log", run) as coordinator:
                if coordinator.wait():
                    raise FedpatchError(f"the run failed: {end_of(folder / 'run.log')}")
        return bytes_by_file(trace.read_text(errors="replace").splitlines(), state)


def bytes_by_file(trace: Iterable[str], state: Path) -> Counter[str]:
    """Sum the writes of a trace by file below `state`; names of runs, rounds and temporary files become patterns."""
    written: Counter[str] = Counter()
    begun: dict[str, str] = {}
    for line in trace:
        process, _, call = line.partition(" ")
        call = call.strip()
        if call.endswith("<unfinished ...>"):
            begun[process] = call.removesuffix("<unfinished ...>")
            continue
        if call.startswith("<..."):
            call = begun.pop(process, "") + call.partition(" resumed>")[2]
        if _OTHER.match(call):
            raise FedpatchError(f"a call that this benchmark cannot count: {call[:200]}")
        found = _WRITE.match(call)
        if found and found[1].startswith(f"{state}/"):
            written[_pattern(found[1].removeprefix(f"{state}/"))] += int(found[2])
    return written


def _pattern(path: str) -> str:
    """Return the file's path in the words of docs/reference/files.md."""
    while path.endswith(UNFINISHED):  # renamed to the file later; write_after has two suffixes
        folder, _, name = path.rpartition("/")
        stem = name.removeprefix(".").removesuffix(UNFINISHED)
        random = re.search(r"\.[a-z0-9_]{8}$", stem)
        path = f"{folder}/{stem[: random.start()] if random else stem}".lstrip("/")
    path = re.sub(r"-[0-9a-f]{16}\.", "-DIGEST.", path)
    path = re.sub(r"[0-9a-f]{64}", "DIGEST", path)
    return re.sub(r"/(\.unfinished|\.staged|\d{6}-[^/]+)/", "/VERSION/", path)


def _tables(document: dict[str, Any]) -> Iterator[str]:
    rounds = document["rounds"]
    for run in document["runs"]:
        rows = [(path, f"{count / rounds / 1e3:.1f}") for path, count in run["bytes"].items() if count >= rounds * 50]
        rows.append(("all", f"{sum(run['bytes'].values()) / rounds / 1e3:.1f}"))
        yield from table((f"{run['strategy']}, {rounds} rounds", "kB in a round"), rows)
        yield ""


if __name__ == "__main__":
    run_app(app, "python -m benchmarks.device.file_writes")
