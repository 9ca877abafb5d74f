"""The command `fedpatch-agent new-task`.

Fills in the templates of a new task, and writes them into a new or empty folder.
"""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Iterator, Mapping
from importlib.resources import files
from pathlib import Path
from typing import Annotated

import typer

from fedpatch.shared.app.command import AsJson, command
from fedpatch.shared.app.files import remedy_for
from fedpatch.shared.app.plugins import load_entry_points
from fedpatch.shared.errors import StateError, UsageError, unknown_name
from fedpatch.shared.tasks.task import ENTRY_POINT_GROUP

KINDS = ("classification", "regression")

_NAME = re.compile(r"[a-z][a-z0-9_-]{0,31}")
_TEMPLATES = {
    "pyproject.toml": "pyproject.toml.template",
    "@MODULE@.py": "task.py.template",
    "test_@STEM@.py": "test.py.template",
    "README.md": "README.md.template",
}


def module_name(name: str) -> str:
    """Return the Python module of the task `name`. UsageError if the name is not valid for a task, or is taken."""
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"{name!r} cannot be the name of a task; use 1 to 32 lower-case letters, digits, '-' and '_', a letter first"
        )
    if name in load_entry_points(ENTRY_POINT_GROUP):
        raise UsageError(f"a task {name!r} is installed already; choose another name")
    return name.replace("-", "_") + "_task"


def render(name: str, kind: str) -> Mapping[str, str]:
    """Return the files of the skeleton: text by file name. UsageError if the name or the kind is not valid."""
    if kind not in KINDS:
        raise unknown_name("kind", kind, KINDS)
    module = module_name(name)

    def filled(text: str) -> str:
        return text.replace("@NAME@", name).replace("@MODULE@", module).replace("@STEM@", name.replace("-", "_"))

    folder = files(__package__)
    return {
        filled(file): filled("".join(_of_kind(folder.joinpath(template).read_text("utf-8"), kind)))
        for file, template in _TEMPLATES.items()
    }


def _of_kind(text: str, kind: str) -> Iterator[str]:
    """Yield the lines outside of `#[kind]` ... `#[end]`, and inside of it those of this kind."""
    wanted = True
    for line in text.splitlines(keepends=True):
        if mark := re.fullmatch(r"#\[(\w+)\]\n", line):
            wanted = mark[1] in (kind, "end")
        elif wanted:
            yield line


def write_skeleton(name: str, kind: str, parent: Path) -> tuple[Path, ...]:
    """Make the folder `name` in `parent`; return the paths of its files.

    Raises UsageError if the folder is not empty, or the name or the kind is not valid; StateError if the disk refuses. No
    existing file is overwritten.
    """
    texts = render(name, kind)
    folder = parent.expanduser() / name
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise UsageError(f"{folder} is not empty; choose another name, or another --dir")
        for file, text in texts.items():
            with (folder / file).open("x", encoding="utf-8") as out:
                out.write(text)
    except (FileExistsError, NotADirectoryError) as error:
        blocking = next(one for one in (folder, *folder.parents) if os.path.lexists(one))
        another = "name" if blocking == folder else "--dir"
        raise UsageError(f"{blocking} is a file, and not a folder; choose another {another}") from error
    except OSError as error:
        remedy = remedy_for(error, "make it writable, or choose another --dir")
        raise StateError(f"{error.filename or folder}: {error.strerror or error}; {remedy}") from error
    return tuple(folder / file for file in texts)


EXAMPLE = "fedpatch-agent new-task room-climate --kind regression"


def new_task(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Task: lower-case letters, digits, - and _.")],
    parent: Annotated[Path, typer.Option("--dir", metavar="DIR", help="Parent of the folder NAME.")] = Path(),
    kind: Annotated[
        str, typer.Option("--kind", metavar="KIND", help=f"{' or '.join(KINDS)} (accuracy or mean absolute error).")
    ] = KINDS[0],
    as_json: AsJson = False,
) -> None:
    """Write a working task of your own into the new folder NAME: model, growing CSV files, metric, tests."""
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


def add_new_task(app: typer.Typer) -> None:
    """Add the command to `app`."""
    command(app, "new-task", example=EXAMPLE)(new_task)
