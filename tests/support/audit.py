"""`make audit`: prints the vulnerabilities of the pinned dependencies that the Python Package Index lists.

Exit code 1 for a vulnerability that is not in IGNORED. If the index does not answer or does not have a package, the result is
unknown: this is printed, and is no failure.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tests.support.paths import ROOT

CONSTRAINTS = ROOT / "constraints.txt"
LIMIT_S = 120.0

IGNORED: dict[str, str] = {}
"""Vulnerabilities that do not concern fedpatch: the id, and the reason. Review each of them with every new pin."""


@dataclass(frozen=True)
class Verdict:
    """The result: vulnerable packages, ignored vulnerabilities, packages unknown to the index, and number of audited ones."""

    vulnerable: tuple[str, ...]
    ignored: tuple[str, ...]
    unknown: tuple[str, ...]
    audited: int


def judge(report: Mapping[str, Any], ignored: Mapping[str, str]) -> Verdict:
    """Read pip-audit's JSON; `ignored` may have the id of a vulnerability or any alias of it."""
    vulnerable: list[str] = []
    explained: list[str] = []
    unknown: list[str] = []
    audited = 0
    for one in report["dependencies"]:
        if "skip_reason" in one:
            unknown.append(one["name"])
            continue
        audited += 1
        for found in one["vulns"]:
            ids = [found["id"], *found.get("aliases", ())]
            reason = next((ignored[name] for name in ids if name in ignored), None)
            remedy = f"fixed in {', '.join(found['fix_versions'])}" if found.get("fix_versions") else "not fixed yet"
            text = f"{one['name']} {one['version']}: {found['id']}, {remedy}"
            (vulnerable if reason is None else explained).append(
                text if reason is None else f"{text}; ignored: {reason}"
            )
    return Verdict(tuple(vulnerable), tuple(explained), tuple(unknown), audited)


def error_text(verdict: Verdict) -> list[str]:
    lines = [f"vulnerable: {one}" for one in verdict.vulnerable] + list(verdict.ignored)
    pins = verdict.audited + len(verdict.unknown)
    if not verdict.audited:
        return [*lines, f"not audited: the index that answered knows none of the {pins} pinned packages"]
    if verdict.unknown:
        lines.append(f"not audited, for the index does not know them: {', '.join(verdict.unknown)}")
    return [*lines, f"{verdict.audited} of {pins} pinned packages audited, {len(verdict.vulnerable)} vulnerabilities"]


def main() -> int:
    command = [sys.executable, "-m", "pip_audit", "--requirement", str(CONSTRAINTS), "--no-deps", "--disable-pip"]
    command += ["--format", "json", "--progress-spinner", "off"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
        report = json.loads(done.stdout)
    except subprocess.TimeoutExpired:
        _print(f"not audited: the index has not answered within {LIMIT_S:g} s")
        return 0
    except ValueError:
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        _print(f"not audited: pip-audit ended with {done.returncode} and no result: {last[:300]}")
        return 0
    verdict = judge(report, IGNORED)
    _print(*error_text(verdict))
    return 1 if verdict.vulnerable else 0


def _print(*lines: str) -> None:
    sys.stdout.writelines(f"audit: {line}\n" for line in lines)


if __name__ == "__main__":
    sys.exit(main())
