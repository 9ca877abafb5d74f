"""`make coverage`: the tests' coverage of lines and branches of the packages, compared with the bounds of this project.

A module of a pure room (the contract in pyproject.toml) needs 100 %, since tests of all its decisions need no network, no
disk and no clock.
Any other file needs 90 % at least; `--all` prints the missing lines of all files.
"""

from __future__ import annotations

import json
import sys
import tomllib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from tests.support.paths import ROOT

REPORT = ROOT / "build" / "coverage" / "report.json"
LEAST_PERCENT = 90.0


def pure_rooms() -> list[Path]:
    """Folders of the pure rooms, and pure modules outside such rooms (without their suffix)."""
    config = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    contracts = config["tool"]["importlinter"]["contracts"]
    modules = next(contract["source_modules"] for contract in contracts if contract.get("id") == "pure")
    return [ROOT / module.removeprefix("fedpatch.").replace(".", "/") for module in modules]


def pure_files() -> frozenset[str]:
    """Paths of the modules in pure rooms."""
    files = [
        path for room in pure_rooms() for path in (room.rglob("*.py") if room.is_dir() else [room.with_suffix(".py")])
    ]
    return frozenset(path.relative_to(ROOT).as_posix() for path in files)


def error_text(path: str, found: Mapping[str, Any]) -> str:
    """Return the coverage of a file and its missing lines and branches; `7->9` is a branch that was never taken."""
    missing = [str(line) for line in found["missing_lines"]]
    missing += [f"{start}->{end}" for start, end in found["missing_branches"] if start not in found["missing_lines"]]
    return f"{path}: {found['summary']['percent_covered']:.1f} %, never run: {' '.join(missing)}"


def shortfalls(files: Mapping[str, Mapping[str, Any]], pure: Collection[str]) -> list[str]:
    """Return the pure files that were not measured, then the files below their bound, the worst first."""
    least = {path: 100.0 if path in pure else LEAST_PERCENT for path in files}
    low = [path for path in files if files[path]["summary"]["percent_covered"] < least[path]]
    low.sort(key=lambda path: files[path]["summary"]["percent_covered"])
    unknown = [f"{path}: pure, and not measured" for path in sorted(set(pure) - set(files))]
    return [*unknown, *(error_text(path, files[path]) for path in low)]


def main(*arguments: str) -> int:
    """Read the report of `coverage json`; return 1 if a file is below its bound."""
    report = json.loads(REPORT.read_bytes())
    files, pure = report["files"], pure_files()
    if "--all" in arguments:
        _print(
            *(error_text(path, found) for path, found in files.items() if found["summary"]["percent_covered"] < 100.0)
        )
    low = shortfalls(files, pure)
    _print(*low)
    percent = report["totals"]["percent_covered"]
    _print(f"{len(files)} files, {percent:.1f} % of lines and branches; {len(low)} below their bound")
    return 1 if low else 0


def _print(*lines: str) -> None:
    sys.stdout.writelines(f"coverage: {line}\n" for line in lines)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
