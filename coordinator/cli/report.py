"""The command `fedpatch report`, in a file of its own: the drawing code is imported when the command runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from fedpatch.coordinator.cli.options import StateDir, state_dir_to_read
from fedpatch.shared.app.command import AsJson, command
from fedpatch.shared.errors import UsageError

Runs = Annotated[
    list[str] | None,
    typer.Argument(metavar="[RUN...]", help="Runs, by id, its beginning, or: last, the default."),
]
Out = Annotated[
    Path | None,
    typer.Option("--out", metavar="FILE", help="Page to write; default: RUN.html."),
]
Csv = Annotated[Path | None, typer.Option("--csv", metavar="FILE", help="Also write all rounds, .csv.")]
Png = Annotated[Path | None, typer.Option("--png", metavar="FILE", help="Also draw the curves, .png.")]


def add_report(app: typer.Typer) -> None:
    """Add the command to `app`."""

    @command(app, "report", example="fedpatch report last --out last.html")
    def report(
        runs: Runs = None,
        out: Out = None,
        csv: Csv = None,
        png: Png = None,
        state_dir: StateDir = None,
        as_json: AsJson = False,
    ) -> None:
        """Write a run, in any state, as one HTML page that needs no other file; compare several runs."""
        try:
            from fedpatch.coordinator.report.load import Wanted, plain_runs, read_runs, write_report
        except ModuleNotFoundError as error:
            raise UsageError(
                f"a report needs the package {error.name}, which is not installed; pip install 'fedpatch[coordinator]'"
            ) from error

        from fedpatch.coordinator.storage.run_registry import LAST

        runs = runs or [LAST]
        wanted = Wanted(out, csv, png)
        wanted.check()
        if LAST in runs:
            state_dir_to_read(state_dir, LAST)  # prints the path of a demo's directory
        found = read_runs(state_dir, runs)
        written = write_report(found, wanted)
        if as_json:
            typer.echo(json.dumps({**written, "runs": plain_runs(found)}, allow_nan=False))
            return
        for what, path in written.items():
            if path is not None:
                typer.echo(f"{what}: {path}")
