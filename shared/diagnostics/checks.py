"""The findings of a doctor: one per check, each warning and failure with its remedy; printed as lines or as JSON."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import typer

from fedpatch.shared.errors import FedpatchError

Verdict = Literal["ok", "warn", "fail", "skip"]

_COLOURS: dict[Verdict, str] = {"ok": "green", "warn": "yellow", "fail": "red", "skip": "blue"}
_NAME_COLUMNS = 16


@dataclass(frozen=True)
class Finding:
    """The result of one check: `detail` is a sentence that names the thing, `remedy` says what the user can do about it.

    ValueError for a warning or a failure without a remedy, and for a good verdict with one.
    """

    name: str
    verdict: Verdict
    detail: str
    remedy: str = ""

    def __post_init__(self) -> None:
        if bool(self.remedy) != (self.verdict in ("warn", "fail")):
            raise ValueError(f"{self.name}: a {self.verdict} with the remedy {self.remedy!r}; bad findings have one")


class Checkup:
    """Collects findings; `show` gets each as it is made, `say` what is being looked at meanwhile."""

    def __init__(self, show: Callable[[Finding], None], say: Callable[[str], None]) -> None:
        self.findings: list[Finding] = []
        self.say = say
        self._show = show

    @property
    def ok(self) -> bool:
        """Whether nothing failed; warnings are allowed."""
        return all(one.verdict != "fail" for one in self.findings)

    def add(self, finding: Finding) -> None:
        """Take a finding in, and show it."""
        self.findings.append(finding)
        self._show(finding)

    def good(self, name: str, detail: str) -> None:
        """It is as it should be."""
        self.add(Finding(name, "ok", detail))

    def warn(self, name: str, detail: str, remedy: str) -> None:
        """It works, though not as well as it could, or perhaps not for long."""
        self.add(Finding(name, "warn", detail, remedy))

    def fail(self, name: str, detail: str, remedy: str) -> None:
        """It does not work."""
        self.add(Finding(name, "fail", detail, remedy))

    def skip(self, name: str, why: str) -> None:
        """It could not be looked at, or must not be now."""
        self.add(Finding(name, "skip", why))


def error_text(error: FedpatchError | OSError) -> str:
    """An error as one line."""
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename else ""
        return f"{where}{error.strerror or error}"
    return " ".join(str(error).split())


def conduct(check: Callable[[Checkup], None], *, as_json: bool) -> int:
    """Runs the checks that `check` makes and prints them; returns the exit code: 1 when one failed.

    On stdout a line per finding as it comes, and one for its remedy; with `as_json` one document at the end. What is being
    looked at goes to stderr.
    """
    checkup = Checkup(show=(lambda _finding: None) if as_json else _print, say=lambda text: typer.echo(text, err=True))
    check(checkup)
    if as_json:
        # Scripts read the remedy under the key "mend".
        found = [
            {"name": one.name, "verdict": one.verdict, "detail": one.detail, "mend": one.remedy}
            for one in checkup.findings
        ]
        typer.echo(json.dumps({"ok": checkup.ok, "findings": found}, allow_nan=False))
    else:
        typer.echo(_summary(checkup.findings))
    return 0 if checkup.ok else FedpatchError.exit_code


def _print(one: Finding) -> None:
    plain = False if os.environ.get("NO_COLOR") else None
    verdict = typer.style(f"{one.verdict:<4}", fg=_COLOURS[one.verdict])
    typer.echo(f"{verdict}  {one.name:<{_NAME_COLUMNS}}  {one.detail}", color=plain)
    if one.remedy:
        typer.echo(f"{'':4}  {'':{_NAME_COLUMNS}}  remedy: {one.remedy}")


def _summary(findings: list[Finding]) -> str:
    count = {verdict: sum(one.verdict == verdict for one in findings) for verdict in _COLOURS}
    failed = "1 check failed" if count["fail"] == 1 else f"{count['fail']} checks failed"
    warned = "1 warning" if count["warn"] == 1 else f"{count['warn']} warnings"
    return f"{failed}, {warned}, {count['ok']} good, {count['skip']} not made"
