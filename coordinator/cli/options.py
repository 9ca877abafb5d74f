"""Options that several commands of `fedpatch` share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

_STATE_DIR_HELP = "Directory that the runs are in; without it ./fedpatch-state, or else where the run was begun."

StateDir = Annotated[
    Path | None, typer.Option("--state-dir", envvar="FEDPATCH_STATE_DIR", metavar="PATH", help=_STATE_DIR_HELP)
]
# For a subcommand of a group with a StateDir: the group has read the variable, and an option before the subcommand's name
# overrides the variable.
InnerStateDir = Annotated[Path | None, typer.Option("--state-dir", metavar="PATH", help=_STATE_DIR_HELP)]
PasswordFile = Annotated[
    Path | None,
    typer.Option(
        envvar="FEDPATCH_PASSWORD_FILE",
        metavar="PATH",
        help="File that holds the password, which only its owner may read (mode 0600).",
    ),
]
