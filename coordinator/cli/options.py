"""Options that several commands of `fedpatch` share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

_STATE_DIR_HELP = "State directory; default: ./fedpatch-state, else that of the run."

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
        help="File with the password, mode 0600.",
    ),
]
