"""Options that several commands of `fedpatch` share."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from fedpatch.shared.app.command import option, say, with_options

_STATE_DIR_HELP = "State directory; default: ./fedpatch-state, else the one of a demo here."

StateDir = Annotated[
    Path | None, typer.Option("--state-dir", envvar="FEDPATCH_STATE_DIR", metavar="PATH", help=_STATE_DIR_HELP)
]
# For a subcommand of a group with a StateDir: the group has read the variable, and its own option overrides the variable.
InnerStateDir = Annotated[Path | None, typer.Option("--state-dir", metavar="PATH", help=_STATE_DIR_HELP)]
PasswordFile = Annotated[
    Path | None,
    typer.Option(envvar="FEDPATCH_PASSWORD_FILE", metavar="PATH", help="File with the password, mode 0600."),
]


def _from_environment(name: str, kind: Any, metavar: str, help: str) -> inspect.Parameter:
    return option(name, Annotated[kind, typer.Option(envvar=f"FEDPATCH_{name.upper()}", metavar=metavar, help=help)])


_TEXT, _FILE = str | None, Path | None
_CONNECTION = (
    _from_environment("fleet", _TEXT, "NAME", "Fleet; default: the run's."),
    _from_environment("username", _TEXT, "NAME", "User name for the broker."),
    option("password_file", PasswordFile),
    _from_environment("ca_file", _FILE, "PATH", "Trusted CA certificate, PEM."),
    _from_environment("cert_file", _FILE, "PATH", "Own certificate and key in one PEM file."),
    option(
        "insecure",
        Annotated[
            bool | None,
            typer.Option(
                "--insecure/--no-insecure",
                envvar="FEDPATCH_INSECURE",
                help="Allow mqtt:// to another machine, without TLS.",
            ),
        ],
    ),
)


def broker_options(broker_help: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that gives a command the options of a connection to the broker, as its argument `given`."""
    return with_options((_from_environment("broker", _TEXT, "URL", broker_help), *_CONNECTION), "given")


def state_dir_to_read(named: Path | None, run: str | None = None) -> Path:
    """Return the state directory of --state-dir or of a run; print the path of a demo's directory that is read by default."""
    from fedpatch.coordinator.storage.run_registry import LAST
    from fedpatch.coordinator.storage.state_dirs import default, find

    found = find(named, run)
    if named is None and run in (None, LAST) and found != default():
        say(f"in {found}")
    return found
