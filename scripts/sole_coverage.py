"""Table of the lines of the packages that one test file runs and no other: what would run no more without that file.

    python -m scripts.sole_coverage -n 3 --dist loadfile -m "not slow"    run pytest with these options, print the table
    python -m scripts.sole_coverage --only-print                          print the table of the last run again

A line counts for each file whose tests run it, also in processes that they start. Lines that run at an import count for none.
A file without a row protects the code by its assertions alone: `make mutants` tells whether it does.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

import coverage
import pytest

ROOT = Path(__file__).parents[1]
RECORDS = ROOT / "build" / "sole-coverage"
_NAMED = 3


def _begin(context: str) -> None:
    """Count lines for `context` from now on, in this process and in those that it starts."""
    running = coverage.Coverage.current()
    if running is None or running.config.context == context:
        return
    running.config.context = context  # a process that is started reads it from the variable
    os.environ["COVERAGE_PROCESS_CONFIG"] = running.config.serialize()
    running.switch_context(context)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> None:
    """Count what the test and its fixtures run for the test's file."""
    _begin(item.nodeid.partition("::")[0])


def read_sole(data: coverage.CoverageData) -> dict[str, dict[str, int]]:
    """Return, for each test file, the number of lines that it alone runs in each file of the packages."""
    sole: defaultdict[str, defaultdict[str, int]] = defaultdict(lambda: defaultdict(int))
    for path in data.measured_files():
        for contexts in data.contexts_by_lineno(path).values():
            files = _files_of(contexts)
            if len(files) == 1 and "" not in files:
                sole[files.pop()][os.path.relpath(path, ROOT)] += 1
    return {file: dict(counts) for file, counts in sole.items()}


def _files_of(contexts: Iterable[str]) -> set[str]:
    """Return the test files of a line; a process has its file's context twice, joined by "|"."""
    return {context.partition("|")[0] for context in contexts}


def write_table(sole: dict[str, dict[str, int]]) -> None:
    """Print a row for each test file, the most lines first, with the files of the packages where most of them are."""
    sys.stdout.write(f"{'lines':>6}  test file: where\n")
    for file, counts in sorted(sole.items(), key=lambda item: -sum(item[1].values())):
        most = sorted(counts.items(), key=lambda item: -item[1])[:_NAMED]
        where = ", ".join(f"{path} {count}" for path, count in most)
        sys.stdout.write(f"{sum(counts.values()):6}  {file}: {where}\n")


def main() -> int:
    """Run pytest and print the table; return its exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only-print", action="store_true", help="print the table of the last run")
    options, arguments = parser.parse_known_args()
    code, data_file = 0, RECORDS / "data"
    measure = (sys.executable, "-m", "coverage")
    if not options.only_print:
        shutil.rmtree(RECORDS, ignore_errors=True)
        RECORDS.mkdir(parents=True)
        command = [
            *measure,
            "run",
            f"--data-file={data_file}",
            "-m",
            "pytest",
            "-p",
            "scripts.sole_coverage",
            *arguments,
        ]
        code = subprocess.run(command, cwd=ROOT, check=False).returncode
        subprocess.run([*measure, "combine", "--quiet", f"--data-file={data_file}", RECORDS], cwd=ROOT, check=True)
    data = coverage.CoverageData(str(data_file))
    data.read()
    write_table(read_sole(data))
    return code


if __name__ == "__main__":
    sys.exit(main())
