"""Play all checks, part by part, and print what was played: `make check-all`.

    make check-all                       every part
    make check-all PARTS="slow faults"   these parts

A part is a target of the Makefile, with CI=true: the same examples and seeds each time. Hypothesis draws 100 examples of a
law, or FEDPATCH_EXAMPLES. The output of a part goes to build/check-all/PART.log. A failed part does not stop the next one.
The exit code is 1 if a part failed.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
LOGS = ROOT / "build" / "check-all"
SETTINGS = {"CI": "true", "FEDPATCH_EXAMPLES": os.environ.get("FEDPATCH_EXAMPLES", "100")}
AGAIN = " ".join(f"{name}={value}" for name, value in SETTINGS.items()) + " .venv/bin/python -m pytest"
_SUMMARY = re.compile(r"^=+ (.*\d+ (?:passed|failed|skipped|error|deselected).*) =+$")
_FAILED = re.compile(r"^(?:FAILED|ERROR) (tests/.+?)(?: - .*)?$")


@dataclass(frozen=True)
class Played:
    """The result of one part: its exit code, its seconds, pytest's closing lines, and the names of failed tests."""

    part: str
    code: int
    seconds: float
    summaries: tuple[str, ...]
    failed: tuple[str, ...]


def play(part: str) -> Played:
    """Run `make PART` with SETTINGS."""
    log = LOGS / f"{part}.log"
    began = time.monotonic()
    with log.open("wb") as output:
        environment = {**os.environ, **SETTINGS}
        command = ["make", "--no-print-directory", part]
        code = subprocess.run(
            command, cwd=ROOT, env=environment, stdout=output, stderr=subprocess.STDOUT, check=False
        ).returncode
    lines = log.read_text("utf-8", errors="replace").splitlines()
    summaries = tuple(found[1] for line in lines if (found := _SUMMARY.match(line)))
    failed = tuple(dict.fromkeys(found[1] for line in lines if (found := _FAILED.match(line))))
    return Played(part, code, time.monotonic() - began, summaries, failed)


def report(played: list[Played]) -> str:
    """Return a table of the parts, and the command that repeats each failed test."""
    lines = []
    for one in played:
        result = "passed" if one.code == 0 else "FAILED"
        lines.append(f"{one.part:12} {result} {one.seconds / 60:6.1f} min  {'; '.join(one.summaries) or 'no tests'}")
        lines += [f"    again: {AGAIN} {shlex.quote(test)}" for test in one.failed]
        if one.code != 0:
            lines.append(f"    output: {(LOGS / one.part).relative_to(ROOT)}.log")
    return "".join(f"{line}\n" for line in lines)


def main() -> int:
    """Play the parts that the command line names; return 1 if one failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="+", metavar="PART", help="targets of the Makefile")
    parts = parser.parse_args().parts
    LOGS.mkdir(parents=True, exist_ok=True)
    played = []
    for part in parts:
        sys.stdout.write(f"check-all: make {part}\n")
        sys.stdout.flush()
        played.append(play(part))
        sys.stdout.write(report(played[-1:]))
    sys.stdout.write(f"\ncheck-all: {len(played)} parts\n{report(played)}")
    return 1 if any(one.code for one in played) else 0


if __name__ == "__main__":
    sys.exit(main())
