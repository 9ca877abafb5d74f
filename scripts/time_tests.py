"""Table of the seconds and processor seconds of each test file and fixture.

    python -m scripts.time_tests -m "not hosts"       run pytest with these options, print the table
    python -m scripts.time_tests --only-print         print the table of the last run again

A row is a test file, or a fixture in the file that defines it. `seconds` is the time of its tests with their fixtures,
`processor` the processor time of its process and all that it started. As root a control group counts them; otherwise those
processes are missing that a test does not wait for. A file that runs for long and
computes little waits: for a deadline, a server, or the start of a process.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
from collections import defaultdict
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
RECORDS = ROOT / "build" / "test-times"


def _own_group() -> Path | None:
    """Move this process into a control group of its own, which also counts processes without a waiting parent.

    None without control groups.
    """
    ours = dict(line.split(":", 2)[1:] for line in Path("/proc/self/cgroup").read_text().splitlines())
    for kind in ("cpuacct", ""):
        group = Path("/sys/fs/cgroup", kind, ours.get(kind, "/").lstrip("/"), f"fedpatch-tests-{os.getpid()}")
        with suppress(OSError):
            group.mkdir()
            (group / "cgroup.procs").write_text(str(os.getpid()))
            return group
    return None


_GROUP = _own_group()


def _processor_s() -> float:
    """Return the processor seconds of this process and its descendants; without a group, of those that it waited for."""
    if _GROUP is None:
        used = (resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN))
        return sum(one.ru_utime + one.ru_stime for one in used)
    if (usage := _GROUP / "cpuacct.usage").exists():
        return int(usage.read_text()) / 1e9
    return int((_GROUP / "cpu.stat").read_text().split()[1]) / 1e6


@contextmanager
def _recorded(kind: str, name: str) -> Iterator[None]:
    """Append one line with the time of the block to this process's file of records."""
    seconds, processor_s = monotonic(), _processor_s()
    try:
        yield
    finally:
        record = {
            "kind": kind,
            "name": name,
            "seconds": round(monotonic() - seconds, 4),
            "processor": round(_processor_s() - processor_s, 4),
        }
        with (RECORDS / f"{os.getpid()}.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Record the time of a test with its fixtures."""
    with _recorded("test", item.nodeid):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[Any]) -> Generator[None, object, object]:
    """Record the time that a fixture's set-up takes."""
    path = Path(fixturedef.func.__code__.co_filename)
    name = path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT / "tests") else "pytest"
    with _recorded("fixture", f"{name}::{fixturedef.argname}"):
        return (yield)


def read_rows(kind: str) -> list[tuple[str, int, float, float]]:
    """Return name, count, seconds and processor seconds of each file (kind `test`) or fixture, the longest first."""
    sums: defaultdict[str, list[float]] = defaultdict(lambda: [0, 0.0, 0.0])
    for file in RECORDS.glob("*.jsonl"):
        for record in map(json.loads, file.read_text("utf-8").splitlines()):
            if record["kind"] == kind:
                name = record["name"].partition("::")[0] if kind == "test" else record["name"]
                for at, value in enumerate((1, record["seconds"], record["processor"])):
                    sums[name][at] += value
    rows = [(name, int(count), seconds, processor_s) for name, (count, seconds, processor_s) in sums.items()]
    return sorted(rows, key=lambda row: -row[2])


def write_table(kind: str, *, least_s: float) -> None:
    """Print the rows that take at least `least_s` seconds, and the sum of all."""
    rows = read_rows(kind)
    sys.stdout.write(f"{'seconds':>9} {'processor':>10} {'count':>6}  {kind}\n")
    for name, count, seconds, processor_s in rows:
        if seconds >= least_s:
            sys.stdout.write(f"{seconds:9.1f} {processor_s:10.1f} {count:6}  {name}\n")
    _, counts, seconds_s, processors_s = zip(*rows, strict=True) if rows else ((), (), (), ())
    sys.stdout.write(f"{sum(seconds_s):9.1f} {sum(processors_s):10.1f} {sum(counts):6}  all {len(rows)}\n")


def main() -> int:
    """Run pytest and print the tables; return its exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only-print", action="store_true", help="print the tables of the last run")
    parser.add_argument("--least-s", type=float, default=2.0, metavar="S", help="leave shorter rows out (2)")
    options, arguments = parser.parse_known_args()
    code = 0
    if not options.only_print:
        RECORDS.mkdir(parents=True, exist_ok=True)
        for file in RECORDS.glob("*.jsonl"):
            file.unlink()
        command = [sys.executable, "-m", "pytest", "-p", "scripts.time_tests", *arguments]
        code = subprocess.run(command, cwd=ROOT, check=False).returncode
    for kind in ("test", "fixture"):
        write_table(kind, least_s=options.least_s)
    return code


if __name__ == "__main__":
    sys.exit(main())
