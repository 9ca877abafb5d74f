"""Findings of `doctor`: one per check, with a remedy for each warning and failure, printed as lines or as JSON."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import typer

from fedpatch.shared.app.formatting import printable
from fedpatch.shared.errors import FedpatchError

Verdict = Literal["ok", "warn", "fail", "skip"]

_COLOURS: dict[Verdict, str] = {"ok": "green", "warn": "yellow", "fail": "red", "skip": "blue"}
_NAME_COLUMNS = 16


@dataclass(frozen=True)
class Finding:
    """The result of one check. A warning or failure must have a remedy, and no other verdict may; else ValueError.

    Attributes:
        name: Name of the check.
        verdict: Its result.
        detail: Sentence that names the checked part.
        remedy: Advice for the user.

    Example:
        >>> Finding("disk", "warn", "1 GB free", "free some space").verdict
        'warn'
    """

    name: str
    verdict: Verdict
    detail: str
    remedy: str = ""

    def __post_init__(self) -> None:
        if bool(self.remedy) != (self.verdict in ("warn", "fail")):
            raise ValueError(f"{self.name}: a {self.verdict} with the remedy {self.remedy!r}; bad findings have one")


class Checkup:
    """Collection of findings. `show` is called with each finding, `say` with the name of a check that takes long."""

    def __init__(self, show: Callable[[Finding], None], say: Callable[[str], None]) -> None:
        self.findings: list[Finding] = []
        self.say = say
        self._show = show

    @property
    def ok(self) -> bool:
        """True if nothing failed; warnings are allowed."""
        return all(finding.verdict != "fail" for finding in self.findings)

    def add(self, finding: Finding) -> None:
        """Add a finding, and show it."""
        self.findings.append(finding)
        self._show(finding)

    def good(self, name: str, detail: str) -> None:
        """Add the finding that a check passed."""
        self.add(Finding(name, "ok", detail))

    def warn(self, name: str, detail: str, remedy: str) -> None:
        """Add the finding that a part works, but badly or not for long.

        Args:
            detail: Sentence that names the part.
        """
        self.add(Finding(name, "warn", detail, remedy))

    def fail(self, name: str, detail: str, remedy: str) -> None:
        """Add the finding that a part does not work.

        Args:
            detail: Sentence that names the part.
        """
        self.add(Finding(name, "fail", detail, remedy))

    def skip(self, name: str, why: str) -> None:
        """Add the finding that a check was not possible."""
        self.add(Finding(name, "skip", why))


def error_text(error: FedpatchError | OSError) -> str:
    """Return an error's message as one line."""
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename else ""
        return f"{where}{error.strerror or error}"
    return printable(" ".join(str(error).split()))


def conduct(check: Callable[[Checkup], None], *, as_json: bool) -> int:
    """Run the checks of `check`, print the findings, and return the exit code: 1 if one failed.

    stdout gets a line for each finding and one for its remedy or, with `as_json`, one document at the end. Progress goes to
    stderr.
    """
    checkup = Checkup(show=(lambda _finding: None) if as_json else _print, say=lambda text: typer.echo(text, err=True))
    check(checkup)
    if as_json:
        # Scripts read the remedy under the key "mend".
        findings = [
            {"name": finding.name, "verdict": finding.verdict, "detail": finding.detail, "mend": finding.remedy}
            for finding in checkup.findings
        ]
        typer.echo(json.dumps({"ok": checkup.ok, "findings": findings}, allow_nan=False))
    else:
        typer.echo(_summary(checkup.findings))
    return 0 if checkup.ok else FedpatchError.exit_code


def _print(finding: Finding) -> None:
    color = False if os.environ.get("NO_COLOR") else None
    verdict = typer.style(f"{finding.verdict:<4}", fg=_COLOURS[finding.verdict])
    typer.echo(f"{verdict}  {finding.name:<{_NAME_COLUMNS}}  {finding.detail}", color=color)
    if finding.remedy:
        typer.echo(f"{'':4}  {'':{_NAME_COLUMNS}}  remedy: {finding.remedy}")


def _summary(findings: list[Finding]) -> str:
    count = {verdict: sum(finding.verdict == verdict for finding in findings) for verdict in _COLOURS}
    failed = "1 check failed" if count["fail"] == 1 else f"{count['fail']} checks failed"
    warned = "1 warning" if count["warn"] == 1 else f"{count['warn']} warnings"
    return f"{failed}, {warned}, {count['ok']} good, {count['skip']} not made"
