"""Options that several commands of `fedpatch` have in common."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

StateDir = Annotated[
    Path | None,
    typer.Option(
        "--state-dir",
        envvar="FEDPATCH_STATE_DIR",
        metavar="PATH",
        help="Directory that the runs are in; without it ./fedpatch-state, or else where the run was begun.",
    ),
]
PasswordFile = Annotated[
    Path | None,
    typer.Option(
        envvar="FEDPATCH_PASSWORD_FILE",
        metavar="PATH",
        help="File that holds the password, which only its owner may read (mode 0600).",
    ),
]
