"""The command `fedpatch-agent new-task`."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Annotated

import typer

from device_agent.new_task.skeleton import KINDS, write_skeleton
from shared.command import AsJson, command

EXAMPLE = "fedpatch-agent new-task room-climate --kind regression"


def new_task(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The task's name: lower-case letters, digits, - and _.")],
    parent: Annotated[Path, typer.Option("--dir", metavar="DIR", help="Where to make the folder NAME.")] = Path(),
    kind: Annotated[str, typer.Option("--kind", metavar="KIND", help=f"{' or '.join(KINDS)}.")] = KINDS[0],
    as_json: AsJson = False,
) -> None:
    """Write a task of your own that works, with its tests: a model, growing CSV files, a metric."""
    written = write_skeleton(name, kind, parent)
    folder = written[0].parent
    if as_json:
        typer.echo(
            json.dumps({"task": name, "kind": kind, "folder": str(folder), "files": [str(one) for one in written]})
        )
        return
    for path in written:
        typer.echo(str(path))
    typer.echo(f"next: cd {shlex.quote(str(folder))} && python -m pytest, then read README.md there", err=True)


def register(app: typer.Typer) -> None:
    """Make it a command of `app`."""
    command(app, "new-task", example=EXAMPLE)(new_task)
